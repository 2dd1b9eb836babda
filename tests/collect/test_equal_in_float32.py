"""Different rewards of a group that are equal in float32 teach nothing: the run says so, once."""
import pytest
import torch

from ding_grpo.collect.group import Collected, equal_in_float32
from tests.runs import rescore, train


def group(exact, learned=None):
    reward = torch.tensor(exact if learned is None else learned, dtype=torch.float64).float().unsqueeze(1)
    return Collected(dict(reward=reward), [dict(exact_reward=value) for value in exact], 1, 0)


class TestEqualInFloat32:

    @pytest.mark.parametrize(
        'exact, learned, found',
        [
            ([1e8, 1e8 + 0.001], None, (1e8, 1e8 + 0.001)),
            ([1e8 + 50, 1e8 + 0.003, 1e8 + 90, 1e8], None, (1e8, 1e8 + 0.003)),
            ([0., 1e8 + 0.003, 5., 1e8], None, None),  # a difference that the others outweigh
            ([-1e8, -1e8 - 1e-3], None, (-1e8 - 1e-3, -1e8)),
            ([1., 2.], None, None),
            ([1e8, 1e8 + 100], None, None),
            ([0.1 + 0.2, 0.3, 0.], None, None),  # the rounding of a sum
            ([sum([0.1] * 1000), 100.], None, None),
            ([0., -0., 0.], None, None),
            ([5., 7.], [1., 1.], None),  # a wrapper clips rewards
        ]
    )
    def test_by_hand(self, exact, learned, found):
        assert equal_in_float32([group([1., 2.]), group(exact, learned)]) == found

    def test_an_environment_that_does_not_tell(self):
        assert equal_in_float32([Collected(dict(reward=torch.zeros(2, 1)), [{}, {}], 1, 0)]) is None


@pytest.mark.envtest
def test_a_run_says_so_once(think_answer, monkeypatch, capfd):
    rescore(monkeypatch, lambda self, problem, text: dict(answer=1e8, format=len(text) % 2 / 100, solved=0.))
    train(think_answer, 3, 3)
    assert capfd.readouterr().out.count('of a group (update') == 1
