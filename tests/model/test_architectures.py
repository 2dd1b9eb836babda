"""What every architecture must give: one table of small random models."""
import pytest
import torch
from transformers import AutoModelForCausalLM

from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.sharding import layers_of

from tests.cases import brief
from tests.model.helper import CPU, FEW, NAMES, gradient, learned, make, modules_called

PROMPTS = [torch.arange(n) * 3 + n for n in (9, 9, 4, 6, 4)]
GIVEN = PromptBatch.of(PROMPTS, CPU), torch.randint(0, 40, (5, 7), generator=torch.Generator().manual_seed(3))
pytestmark = pytest.mark.parametrize('name', brief(NAMES, FEW))


def test_layers_computed_again_change_nothing(name):
    model, other = make(name), make(name, gradient_checkpointing=True)
    expected, got = learned(model, *GIVEN), learned(other, *GIVEN)
    assert torch.equal(got, expected)
    parts = [next(layer.children()) for layer in layers_of(other)]
    with modules_called() as called:
        found = gradient(other, learned(other, *GIVEN))
    assert [called.count(part) for part in parts] == [2, 2]  # and once more for the gradient
    assert torch.allclose(found, gradient(model, expected), atol=1e-5 * found.abs().max().item())
    assert not any(layer.training for layer in other.modules())


def test_save_and_load(name, tmp_path):
    model = make(name)
    model.save_pretrained(str(tmp_path))
    assert torch.equal(learned(CausalLM(pretrained=str(tmp_path)), *GIVEN), learned(model, *GIVEN))
    plain, ids = AutoModelForCausalLM.from_pretrained(str(tmp_path)), PROMPTS[0][None]
    assert torch.equal(plain(ids).logits, model.lm(ids).logits)
