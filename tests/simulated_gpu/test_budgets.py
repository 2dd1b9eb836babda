"""What a GPU would have to do must not grow: launches and waits of four architectures, counted without a GPU."""
import pytest

from tools.gpu_counts import Found, count

# At most, with prompts of uneven lengths: see docs/results/gpu_counts.md.
BUDGETS = dict(
    llama=Found(56, 70, 1.5, 65, 133, 130, 9),
    qwen3=Found(68, 70, 1.5, 77, 161, 130, 9),
    gemma3_text=Found(86, 74, 1.5, 95, 189, 136, 9),
    mixtral=Found(71, 70, 3.5, 81, 154, 130, 11),
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
