"""Every cause at its threshold: a history just beyond it, and one just before it."""
import re

import pytest
import torch

from ding_grpo.instruments import causes
from ding_grpo.instruments.causes import CAUSES, EXPLAINS
from ding_grpo.instruments.history import History, Setting
from ding_grpo.instruments.scorer_trial import of_probes

SAMPLES = dict(rows=20, cut=5, groups=4, equal=1, copies=0, low=0.0, high=1.0, mean=0.4, std=0.3, parts={})
MASK = dict(outside=0, inside=100, steps=100)
METRICS = dict(entropy=2.0, sampler_gap_mean=1e-7, cur_lr=1e-3)
LOOK = dict(steps=50, moved=0.05, outside=0.1, follow=0.3, fresh=50, surprise=1.0, squares=50.0)


def history(updates=5, samples={}, mask={}, metrics={}, look={}, first={}):
    """A healthy history, but for these figures; ``first`` are those of its first update."""
    found = History()
    for i in range(updates):
        begins = first if i == 0 else {}
        found.add(
            dict(SAMPLES, **dict(samples, **begins.get('samples', {}))), dict(MASK, **mask),
            dict(METRICS, **dict(metrics, **begins.get('metrics', {}))), dict(LOOK, **look)
        )
    return found


def evaluated(times, greedy, sampled, **figures):
    """A healthy history with evaluations; its returns are from 0 to 1."""
    found = history(**figures)
    found.add_returns([0.0, 1.0])
    for _ in range(times):
        found.add_evaluation(greedy, sampled)
    return found


def ended(cut_at_bar):
    """A healthy history whose last evaluation ends the run."""
    found = history(1)
    found.cut_at_bar = cut_at_bar
    return found


def gone(entropy, mean=0.4):
    """The entropy was 3 nats at first, and the mean reward 0.4."""
    first = dict(metrics=dict(entropy=3.0), samples=SAMPLES)
    return history(6, dict(mean=mean), metrics=dict(entropy=entropy), first=first)


def parts(parts, rows=200):
    return history(5, dict(parts=parts, rows=rows))


def cut(updates):
    """All rows are cut since the first update."""
    return history(updates, CUT, first=dict(samples=dict(cut=0)))


def copied(updates, mean, entropy):
    """All groups are copies of one row now. The entropy was 2 nats at first, and the mean reward 0.4."""
    first = dict(samples=dict(copies=0, mean=0.4), metrics=dict(entropy=2.0))
    h = history(updates, dict(copies=4, mean=mean), metrics=dict(entropy=entropy), first=first)
    h.recent = h.recent if updates < 5 else [*h.recent[1:], h.recent[-1]]
    return h


def one_token(updates, identical, entropy):
    """Rows of groups are the same whatever their rewards, some of which are the best."""
    return history(updates, dict(identical=identical, equal=identical, mean=0.5), metrics=dict(entropy=entropy))


def causes_of(found, **setting):
    return [name for name, find in CAUSES.items() if find(found, Setting(**setting)) is not None]


EQUAL = dict(low=0.0, high=0.0, mean=0.0, std=0.0, equal=4)
PAID = dict(EQUAL, low=2.0, high=2.0, mean=2.0)
FORMAT = dict(answer=[0., 0., 0.], format=[0., 0.5, 0.46])
LEARNING = dict(answer=[0., 0., 0.], format=[0., 0.5, 0.44])
NEVER = dict(a=[0., 0., 0.])
CUT = dict(cut=150, rows=150)
HALF = dict(exact=False)
BOTH = dict(reward_weights=dict(answer=1., format=1.))
ONE = dict(reward_weights=dict(a=1.))
NARROW = dict(narrow='policy.collect.top_p = 1e-12')
REPORTED = dict(return_part='solved', reward_weights=dict(solved=0., format=1., tidy=0.))


def test_a_healthy_history_has_no_cause():
    assert causes_of(history()) == [] and causes_of(history(30)) == []


@pytest.mark.parametrize(
    'cause, setting, beyond, before',
    [
        ('mask', {}, [history(mask=dict(outside=1)), history(mask=dict(inside=0))],
         [history(mask=dict(inside=0, steps=0))]),
        ('apart', {}, [history(metrics=dict(sampler_gap_mean=0.011))], [history(metrics=dict(sampler_gap_mean=0.009))]),
        ('apart', HALF, [history(metrics=dict(sampler_gap_mean=0.51))], [history(metrics=dict(sampler_gap_mean=0.4))]),
        # 5 x 20 / sqrt(5 x 50) = 6.3 errors and 0.4 nats; 5 x 18 / sqrt(5 x 50) = 5.7 errors
        ('apart', {}, [history(look=dict(surprise=s)) for s in (20., -20.)],
         [history(look=dict(surprise=s)) for s in (18., -18.)]),
        ('step_small', {}, [history(3, look=dict(moved=m)) for m in (9e-6, 0.)],
         [history(3, look=dict(moved=1.1e-5)), history(2, look=dict(moved=0.)),
          history(3, metrics=dict(cur_lr=4e-4), look=dict(moved=0.))]),
        ('step_large', {}, [history(2, look=dict(outside=0.8))],
         [history(2, look=dict(outside=0.7)), history(1, look=dict(outside=0.8))]),
        ('copies', {}, [history(3, dict(copies=2))],
         [history(3, dict(copies=1)), history(2, dict(copies=2)), history(5, dict(copies=4, mean=1.0))]),
        # a policy that always samples the same needs neither another temperature nor other seeds
        ('copies', {}, [copied(5, 0.8, 0.001), copied(5, 0.4, 1.0)], [copied(5, 0.4, 0.001), copied(3, 0.4, 0.001)]),
        ('entropy_gone', {}, [copied(5, 0.4, 0.001)],
         [copied(3, 0.4, 0.001), copied(5, 0.8, 0.001), copied(5, 0.4, 1.0)]),
        # sampling that leaves one token
        ('copies', NARROW, [one_token(3, 4, 1e-9)],
         [one_token(2, 4, 1e-9), one_token(3, 3, 1e-9), one_token(3, 4, 0.1)]),
        ('copies', {}, [], [one_token(3, 4, 1e-9)]),
        ('no_part', ONE, [history(5, EQUAL)],
         [history(4, EQUAL), history(5, dict(EQUAL, rows=19)), history(5, dict(EQUAL, parts=NEVER)), history(5, PAID)]),
        ('no_success', {}, [history(5, EQUAL)],
         [history(4, EQUAL), history(5, dict(EQUAL, rows=19)), history(5, EQUAL, first=dict(samples=dict(high=0.1)))]),
        ('always_paid', {}, [history(5, PAID)], [history(4, PAID)]),
        ('one_part', BOTH, [parts(FORMAT)], [parts(LEARNING), parts(FORMAT, rows=199)]),
        ('no_end', {}, [history(5, dict(cut=20))],
         [history(4, dict(cut=20)), history(5, dict(cut=20), first=dict(samples=dict(cut=19)))]),
        ('cut', {}, [cut(22)], [cut(20)]),
        ('cut', dict(masks_truncated=True), [cut(6)], [cut(5)]),
        ('against', {}, [history(look=dict(follow=-0.06))],
         [history(look=dict(follow=-0.04)), history(4, look=dict(follow=-0.9))]),
        ('greedy_behind', {}, [evaluated(3, 0.125, 0.875)],
         [evaluated(2, 0.125, 0.875), evaluated(3, 0.13, 0.875), evaluated(3, 0.125, None),
          evaluated(3, 0.125, 0.875, metrics=dict(entropy=0.009))]),
        ('cut_paid', {}, [history(5, dict(mean=0.98, cut=10)), ended(0.5)],
         [history(5, dict(mean=0.97, cut=10)), history(5, dict(mean=0.98, cut=9)),
          history(4, dict(mean=0.98, cut=10)), ended(0.49)]),
        ('equal', {}, [history(5, dict(equal=4))],
         [history(4, dict(equal=4)), history(5, dict(equal=3)), history(5, dict(equal=4, mean=0.99))]),
        # 2 % of 3 nats is 0.06; the mean of 0.4 was 0.4 at first
        ('entropy_gone', {}, [gone(0.05)], [gone(0.07), gone(0.05, mean=0.71)]),
        # the entropy of continuous actions may be negative
        ('entropy_gone', dict(tokens=False), [], [gone(-2.0)]),
        ('cut', dict(tokens=False), [], [history(30, CUT)]),  # a time limit
        ('apart', dict(tokens=False), [history(metrics=dict(sampler_gap_mean=5.))], []),
        # dropout and batch norm: the advice was to set temperature, top_k and top_p, which such a model does not have
        ('apart', dict(tokens=False, exact=False), [], [history(metrics=dict(sampler_gap_mean=5.))]),
        # a part that is only reported
        ('one_part', dict(return_part='right', reward_weights=dict(right=1., length=0.)), [],
         [parts(dict(right=[0., 1., 0.95], length=[0., 0., 0.]))]),
    ]
)  # yapf: disable
def test_beyond_and_before_a_threshold(cause, setting, beyond, before):
    assert all(cause in causes_of(found, **setting) for found in beyond)
    assert not any(cause in causes_of(found, **setting) for found in before)


@pytest.mark.parametrize(
    'find, found, setting, said', [
        (causes.cut, history(20, CUT), dict(turns=3), 'env.max_turns'),
        (causes.no_success, history(5, dict(EQUAL, low=-500., high=-500.)), dict(tokens=False), '-500'),
        (causes.step_small, history(look=dict(moved=0.)), {}, 'policy.learn.learning_rate = 0.001'),
        (causes.step_large, history(look=dict(outside=1.)), {}, 'policy.learn.learning_rate = 0.001'),
        (causes.apart, history(look=dict(surprise=25.)), {}, 'less probable .* a higher temperature'),
        (causes.apart, history(look=dict(surprise=-25.)), {}, 'more probable .* a lower temperature'),
        (causes.one_part, history(1), REPORTED, "'solved'"),
        (causes.entropy_gone, copied(5, 0.4, 0.001), {}, 'fell from 2 to 0.001 nats before the reward came'),
        (causes.copies, copied(5, 0.8, 0.001), {}, 'fell from 2 to 0.001 nats before the best reward came'),
        (causes.copies, copied(5, 0.4, 1.0), {}, 'raise policy.collect.temperature = 1, or check the seeds'),
        (causes.copies, one_token(3, 4, 1e-9), NARROW, 'change policy.collect.top_p = 1e-12,'),
    ]
)
def test_a_message_says_what_to_change(find, found, setting, said):
    assert re.search(said, find(found, Setting(**setting))['message'])


def test_a_changed_reference_is_a_drift_unless_it_was_renewed():
    found = history()
    for checksum in (7, 7):
        found.add_reference(checksum)
        assert causes.drift(found, Setting()) is None
    found.add_reference(8)
    assert 'ref_sync_freq' in causes.drift(found, Setting())['message']
    renewed = history()
    renewed.add_reference(7)
    renewed.reference = None  # as ``Watch.reference_renewed`` does
    renewed.add_reference(8)
    assert causes.drift(renewed, Setting()) is None


def test_symptoms_are_causes():
    assert {name for names in EXPLAINS.values() for name in names} <= set(CAUSES)


def test_a_history_survives_a_checkpoint(tmp_path):
    found = history(7, dict(parts=FORMAT))
    found.add_reference(5)
    torch.save(found.state_dict(), tmp_path / 'state')
    state = found.state_dict()
    found.recent[0]['mean'] = 9  # the state is a copy
    assert state['recent'][0]['mean'] == 0.4
    assert History(**torch.load(tmp_path / 'state', weights_only=True)) == History(**state)


def probes(demonstration, junk, empty=0.0, problem=0, ended=True):
    texts = dict(demonstration=demonstration, junk=junk, empty=empty)
    return [
        dict(problem=problem, kind=kind, text=kind, reward=value, value=value, ended=ended)
        for kind, value in texts.items()
    ]


@pytest.mark.parametrize(
    'rows, cause',
    [
        (probes(1., 0.), None),
        (probes(1., 0.9), None),
        (probes(1., 1.), 'junk_pays'),
        (probes(0.5, 1.), 'junk_pays'),
        (probes(0., 0., -1.), 'wrong_key'),
        (probes(0., 0.), 'no_success'),
        (probes(1., 1., 1.), 'always_paid'),
        (probes(1., 0., ended=False), 'no_end'),
        (probes(None, 0.), None),
        ([], None),
        # half of the problems are not most of them
        (probes(1., 1.) + probes(1., 0., problem=1), None),
        (probes(1., 1.) + probes(1., 0., problem=1) + probes(1., 1., problem=2), 'junk_pays'),
    ]
)  # yapf: disable
def test_what_the_scorer_pays_more_for(rows, cause):
    found = of_probes(rows)
    assert (None if found is None else found[0]) == cause


def test_the_text_that_pays_is_shown():
    _, found = of_probes(probes(0.5, 1.))
    assert (found['demonstration'], found['other']) == (0.5, 1.) and "'junk'" in found['message']
