"""What a GPU would have to do must not grow: launches and waits of four architectures, counted without a GPU."""
import pytest

from ding_grpo.instruments.watch import EACH_BEFORE
from tests.policies import reward, sample_groups, token_policy
from tools.gpu_counts import Found, count

# At most, with prompts of uneven lengths: see docs/results/gpu_counts.md.
BUDGETS = dict(
    llama=Found(38, 67, 1.5, 49, 102, 117, 9),
    qwen3=Found(40, 67, 1.5, 51, 104, 117, 9),
    gemma3_text=Found(48, 71, 1.5, 59, 105, 123, 9),
    mixtral=Found(53, 67, 3.5, 65, 122, 117, 11),
)


@pytest.mark.unittest
@pytest.mark.parametrize(
    'kind',
    [pytest.param(kind, marks=[pytest.mark.algotest] if kind in ('qwen3', 'mixtral') else []) for kind in BUDGETS]
)
def test_launches_and_waits(kind):
    found = count(kind, 'uneven')
    over = {name: (x, most) for name, x, most in zip(Found._fields, found, BUDGETS[kind]) if x > most}
    assert not over, f'{kind}: counted and at most'


def test_waits_of_an_update(gpu):
    policy, waits = token_policy(dict(cuda=True)), []
    for number in range(EACH_BEFORE + 1):
        data = sample_groups(policy, collect=number, reward=reward)
        gpu.counts.reset()
        policy.learn_mode.forward(data)
        waits.append(gpu.counts.waits.total())
    assert waits[-1] <= 12 and max(waits) <= 32  # while the instruments look at each update
