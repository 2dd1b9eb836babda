"""Self-distillation with an ideal reader of contexts, against its formula."""
import pytest
import torch

from ding_grpo.gradient_bench.distilled import run, steps, teacher
from ding_grpo.gradient_bench.estimate import Bench
from ding_grpo.rl_utils import DIVERGENCES

SMALL = Bench(group_sizes=(2, ), vocabulary=3, length=2)


def test_the_teacher_is_the_policy_given_its_success():
    """By Bayes' rule over all completions, for the first token: p(a | success) = p(a) E[R | a] / E[R]."""
    world, logits, _, _ = SMALL.world(0)
    p = world.log_prob_of_rows(logits).exp()
    joint = torch.stack([(p * world.reward)[world.token[:, 0] == a].sum() for a in range(3)])
    found = teacher(world, logits, 1.).exp()
    assert torch.allclose(found[:, 0], (joint / joint.sum()).expand(len(p), 3))
    counted = world.weight > 0
    assert torch.allclose(found.sum(-1)[counted], torch.ones(1, dtype=torch.double))
    half, own = teacher(world, logits, 0.5).exp(), logits.softmax(-1)[world.state]
    assert torch.allclose(half[counted], 0.5 * (found + own)[counted])


def test_forward_kl_is_the_policy_gradient_divided_by_the_value_of_each_state():
    world, logits, _, _ = SMALL.world(1)
    p, own = world.log_prob_of_rows(logits).exp(), logits.softmax(-1)
    expected = torch.zeros(len(p), *logits.shape, dtype=torch.double)
    for c in range(len(p)):
        for t in range(int(world.weight[c].sum())):
            same = (world.token[:, :t] == world.token[c, :t]).all(1)
            value = (p * world.reward)[same].sum() / p[same].sum()
            state = world.state[c, t]
            for a in range(3):
                those = same & (world.token[:, t] == a)
                gain = (p * world.reward)[those].sum() / p[those].sum() - value
                score = torch.nn.functional.one_hot(torch.tensor(a), 3) - own[state]
                expected[c, state] += 0.7 * own[state, a] * gain / value * score
    found = steps(world, logits, 'forward_kl', True, 0.7)
    assert torch.allclose(found, expected.flatten(1), atol=1e-10) and expected.abs().max() > 0.01


@pytest.mark.parametrize('divergence', DIVERGENCES)
def test_the_sampled_form_has_the_same_mean(divergence):
    lines = {line['loss']: line for line in run(SMALL, 0)}
    for trust in ('0.5', '0.9'):
        exact, sampled = (lines[f'{divergence}, {form}, trust {trust}'] for form in ('exact', 'sampled'))
        for name in ('scale', 'bias', 'cosine'):
            assert exact[name] == pytest.approx(sampled[name], abs=1e-9)
        assert exact['noise'] < sampled['noise']


def test_one_token_with_forward_kl_is_the_policy_gradient():
    lines = run(Bench(group_sizes=(2, ), vocabulary=4, length=1), 0)
    assert all(line['bias'] < 1e-9 for line in lines if line['loss'].startswith('forward_kl'))
