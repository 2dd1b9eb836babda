"""Segments of uneven length in grids: none lost, none much padded."""
import pytest
import torch

from ding_grpo.model import PromptBatch
from ding_grpo.model.read.attention import Options
from ding_grpo.model.read.bands import Band, Packed, divide
from ding_grpo.model.read.prompts import PromptTree
from ding_grpo.model.read.row_tree import RowTree
from ding_grpo.model.read.whole import Whole

from tests.model.helper import CPU, divisions


def quadratic(count, n):
    return 50 + count * n * n


def cost_of(bands, sizes, cost):
    return sum(cost(len(band), *map(max, zip(*(sizes[i] for i in band)))) for band in bands)


@pytest.mark.parametrize(
    'bands, order',
    [
        ([[(0, 2)], [(2, 3)]], [0, 1, 2, 3, 4]),
        ([[(2, 3)], [(0, 2)]], [3, 4, 0, 1, 2]),
        ([[(7, 1), (3, 2)], [(1, 1)]], [3, 1, 2, 0]),  # no band has the tokens 0, 2, 5 and 6
    ]
)
def test_tokens_of_bands_return_to_the_order_of_the_row(bands, order):
    made = [Band(segments, CPU) for segments in bands]
    parts = [torch.stack([band.tokens, band.tokens + 100], 1) for band in made]
    joined = Packed(made).join(parts)
    assert torch.equal(joined, torch.cat(parts)[order]) and joined[:, 0].tolist() == sorted(joined[:, 0].tolist())


class TestDivide:

    def test_least_cost_of_all_divisions(self):
        """Against every way to cut the sorted sizes."""
        torch.manual_seed(0)
        for _ in range(20):
            sizes = [(n, ) for n in torch.randint(1, 30, (7, )).tolist()]
            order = sorted(range(7), key=lambda i: sizes[i], reverse=True)
            every = [cost_of([order[b:e] for b, e in cuts], sizes, quadratic) for cuts in divisions(7)]
            bands = divide(sizes, quadratic)
            assert sorted(sum(bands, [])) == list(range(7))
            assert cost_of(bands, sizes, quadratic) == min(every)

    @pytest.mark.parametrize(
        'sizes, bands',
        [
            ([(5, 5)] * 4, [[0, 1, 2, 3]]),  # equal sizes are one band in their order
            ([(64, 64)] * 3 + [(1024, 1024), (64, 64)], [[0, 1, 2, 4], [3]]),  # one long segment among short ones
            # a band is as large as the largest of each number: the first two must not be together
            ([(1000, 10), (10, 1000), (990, 10)], [[0, 2], [1]]),
        ]
    )
    def test_by_hand(self, sizes, bands):
        assert sorted(divide(sizes, lambda count, m, n: 500 + count * m * n)) == bands

    def test_many_different_sizes_are_not_compared_one_by_one(self):
        asked = []
        sizes = [(n, ) for n in range(1, 3001)]
        bands = divide(sizes, lambda count, n: asked.append(1) or quadratic(count, n))
        assert len(asked) < 2000 and sorted(sum(bands, [])) == list(range(3000))
        assert cost_of(bands, sizes, quadratic) < 1.2 * sum(quadratic(1, n) for n, in sizes)


LOG_NORMAL = torch.empty(64).log_normal_(4.6, 1., generator=torch.Generator().manual_seed(0)).clamp(1, 2000).int()


@pytest.mark.parametrize('lengths, prompt', [([1024] + [64] * 31, [64]), (LOG_NORMAL.tolist(), [16, 900])])
def test_few_pairs_are_computed_in_vain(lengths, prompt):
    """Pairs of a query and a key in the grids, against those of each row by itself."""
    row = torch.arange(len(lengths)) % len(prompt)
    order = row.argsort(stable=True)
    lengths = torch.tensor(lengths)[order]
    row = row[order]
    batch = PromptBatch.of([torch.arange(prompt[i]) + i for i in row.tolist()], CPU)
    tree = PromptTree.of(batch)
    completion = torch.arange(len(row)).unsqueeze(1) + torch.arange(int(lengths.max()) + 1)  # no common beginnings
    plan = Whole(tree, RowTree.of(tree, completion, lengths, 32))
    computed = sum(x.band.shape[0] * x.band.shape[1] ** 2 for x in plan.own)
    computed += sum(q.shape[0] * q.shape[1] * k.shape[1] for above in plan.above for q, k in above.bands)
    needed = sum(n * n for n in prompt) + sum(n * n + n * prompt[i] for n, i in zip(lengths.tolist(), row.tolist()))
    assert computed <= 1.3 * needed


def test_a_padded_cell_whose_scores_are_large_reaches_no_gradient():
    """It repeats the first token of its segment, and would see later tokens with the first one's normaliser."""
    batch = PromptBatch.of([torch.arange(4), torch.arange(3) + 5], CPU)
    plan = Whole(PromptTree.of(batch), part=0)
    assert len(plan.own) == 1 and not plan.own[0].band.even
    q, k, v = (torch.randn(1, 1, 7, 16, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3))
    with torch.no_grad():
        q[0, 0, 4], k[0, 0, 4:] = 30., torch.linspace(-30, 30, 3).unsqueeze(1)  # the first token of the shorter one
    out = plan.attend(0, q, k, v, Options(1.))
    out.square().sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
