"""Oversampling: which rows count, and where the others stop."""
import pytest
import torch

from ding_grpo.model import PromptBatch
from ding_grpo.rollout import EarlyStop, Sampling, generate
from tests.rollout.test_generate import CPU, prompts_of, uniform_of

ONE_GROUP = [(0, 0), (0, 1), (0, 2), (0, 3)]


def play(keys, enough, lengths):
    """(length at which each row ended or was stopped, whether it counts) of rows that would have these lengths."""
    stop, at = EarlyStop(keys, enough, CPU), torch.zeros(len(keys)).long()
    live, running = torch.arange(len(keys)), torch.ones(len(keys)).bool()
    for t in range(1, max(lengths) + 1):
        at[live[running]] = t
        running = running & (torch.tensor(lengths)[live] > t)
        if t < max(lengths):
            running = stop.after_token(live, running)
        if t % 2 == 0:  # lines leave the batch now and then, as in ``generate``
            live, running = live[running], running[running]
    return at.tolist(), stop.counted(at)


@pytest.mark.parametrize(
    'keys, enough, lengths, at, counted',
    [
        # Row 1 ends first, then rows 2 and 0: three of four have ended after 5 tokens, where row 3 is stopped.
        (ONE_GROUP, 3, [5, 2, 4, 9], [5, 2, 4, 5], [0, 1, 2]),
        # Row 2 has ended, the others end together: row 0 counts, although row 1 has been sampled to its end too.
        (ONE_GROUP, 2, [3, 3, 1, 7], [3, 3, 1, 3], [0, 2]),
        # Row 0 is stopped after 3 tokens. It has as many tokens as row 1 then, and a smaller number, but it goes on.
        (ONE_GROUP[:3], 2, [8, 3, 2], [3, 3, 2], [1, 2]),
        # Rows of the limit are those of the largest length.
        (ONE_GROUP[:3], 2, [6, 6, 6], [6, 6, 6], [0, 1]),
        # Groups 7 and 4 stop without each other. Their rows are mixed and in another order than their numbers.
        ([(7, 1), (4, 0), (7, 0), (4, 1), (7, 2), (4, 2)], 2, [2, 6, 2, 5, 4, 9], [2, 6, 2, 5, 2, 6], [0, 1, 2, 3]),
        # Ties go by the number of the row, and not by its line.
        ([(0, 2), (0, 0), (0, 1)], 2, [4, 4, 4], [4, 4, 4], [1, 2]),
    ]
)
def test_by_hand(keys, enough, lengths, at, counted):
    assert play(keys, enough, lengths) == (at, [row in counted for row in range(len(keys))])


def test_counted_rows_are_the_shortest_and_sampling_ends_with_the_last_of_them(tiny_model, decoded):
    rows, enough, most = 5, 3, 14
    batch = PromptBatch.of([p for p in prompts_of([4, 7, 5]) for _ in range(rows)], CPU)
    keys = [(group, row) for group in (5, 0, 2) for row in range(rows)]
    stop = EarlyStop(keys, enough, CPU)
    whole, out = (
        generate(tiny_model, batch, most, [1, 2, 3, 4], Sampling(), uniform_of(len(keys), most), early_stop=early)
        for early in (None, stop)
    )
    counted, longest = stop.counted(out.length), int(whole.length.max())
    assert len(set(whole.length.tolist())) > 4
    for start in range(0, 3 * rows, rows):
        lines = range(start, start + rows)
        shortest = sorted(lines, key=lambda line: (int(whole.length[line]), line))[:enough]
        assert [line for line in lines if counted[line]] == sorted(shortest)
        last = max(int(whole.length[line]) for line in shortest)
        for line in lines:  # the others are as long as the longest that counts, or ended together with it
            n = int(out.length[line])
            assert n == int(whole.length[line]) if counted[line] else n == last
            assert torch.equal(out.action[line, :n], whole.action[line, :n]) and (out.action[line, n:] == -1).all()
            assert torch.allclose(out.logp[line, :n], whole.logp[line, :n], atol=1e-5)
    # the prompts, and a step for each token but the last
    assert len(decoded) - longest == int(out.length[torch.tensor(counted)].max()) < longest
