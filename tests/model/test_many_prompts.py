"""More than 1,024 prompts in one batch, some with common beginnings: read as each row alone."""
import pytest
import torch

from ding_grpo.model import PromptBatch
from ding_grpo.rl_utils import naive_method
from ding_grpo.rollout import Sampling, generate
from tests.model.helper import CPU, alone, make, tokens_read, uniform

pytestmark = pytest.mark.unittest
PROMPTS, SIZE, TOKENS = 1100, 2, 4


@pytest.fixture(scope='module')
def rows():
    """1,100 prompts of 2 to 40 tokens, two rows each, in random order. A third begin with the same 70 tokens."""
    generator = torch.Generator().manual_seed(0)
    length = torch.randint(2, 41, (PROMPTS, ), generator=generator).tolist()
    prompts = [torch.randint(0, 40, (n, ), generator=generator) for n in length]
    common = torch.randint(0, 40, (70, ), generator=generator)
    prompts = [torch.cat([common, p]) if i % 3 == 0 else p for i, p in enumerate(prompts)]
    assert len({tuple(p.tolist()) for p in prompts}) > 1024
    return [prompts[i // SIZE] for i in torch.randperm(PROMPTS * SIZE, generator=generator).tolist()]


def test_more_than_1024_prompts_at_once(rows):
    model = make('llama')
    read, batch = tokens_read(model), PromptBatch.of(rows, CPU)
    out = generate(model, batch, TOKENS, range(4), Sampling(), uniform(len(rows), TOKENS))
    action, counted = out.action.clamp(min=0), out.action >= 0
    with torch.no_grad():
        learned = naive_method(model.completion_logits(batch, action, out.length), action)
    assert (learned - out.logp)[counted].abs().max() < 1e-4
    some = list(range(0, len(rows), 100))
    with torch.no_grad():
        wanted = alone(model, [rows[i] for i in some], action[some])
    assert torch.allclose(learned[some][counted[some]], wanted[counted[some]], atol=1e-4)
    distinct = {tuple(row.tolist()) for row in rows}
    unshared = sum(map(len, distinct))
    with_beginning = sum(len(row) > 41 for row in distinct)
    assert read[0] <= unshared - 70 * (with_beginning - 1)  # once for all, in sampling and in learning
