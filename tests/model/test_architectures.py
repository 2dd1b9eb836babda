"""What every architecture must give: one table of small random models."""
import pytest
import torch
from transformers import AutoModelForCausalLM

from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.sharding import layers_of
from ding_grpo.rl_utils import linear_log_prob

from tests.model.helper import CONFIGS, CPU, gradient, make, modules_called

pytestmark = pytest.mark.unittest
COMPLETION = torch.randint(0, 40, (5, 7), generator=torch.Generator().manual_seed(3))


@pytest.fixture(params=list(CONFIGS))
def name(request):
    return request.param


@pytest.fixture
def prompts():
    torch.manual_seed(1)
    rows = [torch.randint(0, 40, (n, )) for n in (9, 4, 6)]
    return [rows[0], rows[0], rows[1], rows[2], rows[1]]


def learned(model, prompts):
    """Log-probabilities as learning computes them."""
    hidden = model.completion_hidden(PromptBatch.of(prompts, CPU), COMPLETION)
    return linear_log_prob(hidden, index=COMPLETION, **model.output_head()._asdict())


class TestArchitecture:

    def test_layers_computed_again_change_nothing(self, name, prompts):
        model, other = make(name), make(name, gradient_checkpointing=True)
        expected, got = learned(model, prompts), learned(other, prompts)
        assert torch.equal(got, expected)
        parts = [next(layer.children()) for layer in layers_of(other)]
        with modules_called() as called:
            found = gradient(other, learned(other, prompts))
        assert [called.count(part) for part in parts] == [2, 2]  # and once more for the gradient
        assert torch.allclose(found, gradient(model, expected), atol=1e-5 * found.abs().max().item())
        assert not any(layer.training for layer in other.modules())

    def test_save_and_load(self, name, prompts, tmp_path):
        model = make(name)
        model.save_pretrained(str(tmp_path))
        assert torch.equal(learned(CausalLM(pretrained=str(tmp_path)), prompts), learned(model, prompts))
        plain, ids = AutoModelForCausalLM.from_pretrained(str(tmp_path)), prompts[0][None]
        assert torch.equal(plain(ids).logits, model.lm(ids).logits)
