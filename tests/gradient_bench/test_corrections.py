"""Corrections for rows of an older policy, in worlds where their mean step is known."""
import torch
from click.testing import CliRunner

from ding_grpo.gradient_bench import main
from ding_grpo.gradient_bench.corrections import WAYS, corrected, run
from ding_grpo.gradient_bench.estimate import Bench

SMALL = Bench(group_sizes=(2, ), length=2)


def bias(bench, seed=0):
    """By name and staleness."""
    return {(line['loss'], line['staleness']): line['bias'] for line in run(bench, seed)}


def test_without_a_bound_rows_have_no_bias_and_tokens_none_if_they_are_one():
    found, of_one = bias(SMALL), bias(Bench(group_sizes=(2, ), vocabulary=4, length=1))
    assert {name for name, _ in found} == set(WAYS)
    for staleness in SMALL.staleness:
        assert found['sequence, no bound', staleness] < 1e-9 and of_one['token, no bound', staleness] < 1e-9
        assert all(value < 1e-9 for (_, s), value in found.items() if s == 0)
    assert found['token, no bound', 0.5] > 0.01 and found['none', 0.5] > 0.1


def test_no_correction_is_the_loss_as_it_is_measured_without():
    found, plain = run(SMALL, 0), Bench(['dr_grpo'], ['rloo'], [2], length=2).run(0)
    assert [line for line in found if line['loss'] == 'none'] == [dict(line, loss='none') for line in plain]


def test_the_advantages_by_hand():
    world, learner, change, _ = SMALL.world(0)
    sampler = learner + 2 * change
    new, old = world.log_prob(learner), world.log_prob(sampler)
    log_ratio, length = (new - old) * world.weight, world.weight.sum(1)
    row = torch.arange(len(length)).unsqueeze(1)  # batches of one row
    adv = torch.tensor([1., -1.]).double().repeat(len(row))[:len(row)].view(-1, 1, 1).expand(-1, 1, 2)
    found = {name: corrected(world, learner, sampler, row, adv, way)[:, 0] for name, way in WAYS.items()}
    counted, ratio, mean = world.weight > 0, log_ratio.exp(), -log_ratio.sum(1) / length
    inside = (ratio >= 0.5) & (ratio <= 5)
    k3 = ((log_ratio.exp() - 1 - log_ratio) * world.weight).sum(1) / length
    far = (mean > 0.05).unsqueeze(1) & (adv[:, 0] < 0)
    expected = {
        'none': torch.ones_like(ratio),
        'token, 0.5 to 5, outside masked (IcePop)': ratio * inside,
        'sequence, no bound': log_ratio.sum(1, keepdim=True).exp().expand_as(ratio),
        'token, bound 2, row_mask 0.05 by k1': ratio.clamp(max=2) * (mean.abs() <= 0.05).unsqueeze(1),
        'token, bound 2, row_mask 0.05 by k3': ratio.clamp(max=2) * (k3 <= 0.05).unsqueeze(1),
        'token, bound 2, mask 0.05': ratio.clamp(max=2) * ~far,
    }
    for name, factor in expected.items():
        assert torch.allclose(found[name][counted], (adv[:, 0] * factor)[counted]), name
        assert name == 'none' or (factor != 1)[counted].any()
    assert far.any() and not inside.all()


def test_the_command(tmp_path):
    options = '--corrections --length 2 --seeds 0,1 --group-sizes 2 --staleness 0,0.5 --out'.split()
    result = CliRunner().invoke(main, [*options, str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert '| correction | bias, s = 0 | bias, s = 0.5 | noise, s = 0 | noise, s = 0.5 |' in result.output
    assert '| sequence, no bound | 0 | 0 |' in result.output and (tmp_path / 'gradient_bench.png').exists()
