"""
The gradient of rows that an older policy sampled, with each correction and mask of ``policy.learn.off_policy``, at the
start of an update: with a ``correction``, ratios are relative to the policy at the start, so each is 1.
"""
from typing import Any, Dict, Iterator, List

from torch import Tensor

from ding_grpo.compare.table import markdown
from ding_grpo.rl_utils import LOSS_PRESETS, divergent_rows, far_rows, sampler_correction

from .batches import Batches
from .estimate import Bench, estimates
from .gradients import advantages
from .table import ADVANTAGE, LOSS, Line, bias_of, distinct, median_of, select
from .world import World

NO_BOUND = 1e9
ROWS = dict(correction='token', row_mask=0.05)
WAYS: Dict[str, Dict[str, Any]] = {
    'none': {},
    'token, bound 2': dict(correction='token'),
    'token, bound 2, outside masked': dict(correction='token', outside='mask'),
    'token, 0.5 to 5, outside masked (IcePop)': dict(correction='token', low=0.5, bound=5.0, outside='mask'),
    'token, no bound': dict(correction='token', bound=NO_BOUND),
    'sequence, bound 2': dict(correction='sequence'),
    'sequence, bound 2, outside masked': dict(correction='sequence', outside='mask'),
    'sequence, no bound': dict(correction='sequence', bound=NO_BOUND),
    'token, bound 2, row_mask 0.05 by k1': dict(ROWS, row_mask_type='k1'),
    'token, bound 2, row_mask 0.05 by k3': dict(ROWS, row_mask_type='k3'),
    'token, bound 2, mask 0.05': dict(correction='token', mask=0.05),
}


def corrected(world: World, learner: Tensor, sampler: Tensor, row: Tensor, adv: Tensor, way: Dict[str, Any]) -> Tensor:
    """The advantages (K, B, S) of the completions ``row`` (K, B) with the options of ``policy.learn.off_policy``."""
    way = dict(way)
    given = world.log_prob(learner), world.log_prob(sampler), world.weight
    if 'mask' in way:
        far = far_rows(*given, way.pop('mask'))[row].unsqueeze(-1)
        adv = adv.masked_fill(far & (adv < 0), 0)
    if 'row_mask' in way:
        divergent = divergent_rows(*given, way.pop('row_mask'), way.pop('row_mask_type'))[row].unsqueeze(-1)
        adv = adv.masked_fill(divergent, 0)
    if 'correction' in way:
        adv = adv * sampler_correction(*given, way.pop('correction'), **way)[0][row]
    return adv


def run(bench: Bench, seed: int) -> Iterator[Line]:
    """As ``Bench.run``: one line for each way, with one loss and one advantage."""
    world, learner, change, generator = bench.world(seed)
    true = world.gradient(learner)
    for staleness in bench.staleness:
        sampler = learner + staleness * change
        for size in bench.group_sizes:
            batches = Batches.make(world, sampler, size, bench.samples, generator)
            adv = advantages(ADVANTAGE, world, learner, sampler, batches.row)
            for name, way in WAYS.items():
                of_way = corrected(world, learner, sampler, batches.row, adv, way).unsqueeze(0)
                old = learner if 'correction' in way else sampler
                found, = estimates(LOSS_PRESETS[LOSS], world, learner, old, batches, of_way, true)
                yield found.line(seed, size, name, ADVANTAGE, staleness, world.divergence(sampler, learner).item())


def table(lines: List[Line]) -> str:
    """Bias and noise of each way by staleness, at the largest group size, as Markdown."""
    size, levels = distinct(lines, 'group_size')[-1], distinct(lines, 'staleness')
    rows = [['correction', *(f'{name}, s = {s:g}' for name in ('bias', 'noise') for s in levels)]]
    for name in distinct(lines, 'loss'):
        own = select(lines, loss=name, group_size=size)
        bias = [bias_of(own, staleness=s) for s in levels]
        rows.append([name, *bias, *(f"{median_of(own, 'noise', staleness=s):.2f}" for s in levels)])
    return markdown(rows)
