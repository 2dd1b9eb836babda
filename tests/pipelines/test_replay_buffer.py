"""``ding -m serial``: groups through DI-engine's replay buffer."""
import collections
import os
import threading

import pytest
from ding.entry import serial_pipeline

from ding_common import ConfigError
from tests.runs import each_update, evaluations, train

pytestmark = pytest.mark.envtest


@pytest.fixture
def serial(think_answer):
    main, create = think_answer
    main.policy.learn.update(update_per_collect=3, batch_groups=2)
    main.policy.other = dict(replay_buffer=dict(replay_buffer_size=8, max_use=2, max_staleness=4))
    return main, create


def test_a_replayed_group_is_whole_and_not_older_than_the_bound(serial, monkeypatch, capsys):
    """It comes from DI-engine's buffer, and its ratio is to the policy that sampled it."""
    main, create = serial
    create.pop('evaluator', None)  # may be left out, as with serial_onpolicy
    main.policy.eval.evaluator.samples_per_start = 2
    learned, ratios = [], []
    each_update(
        monkeypatch, lambda _, policy, data: learned.append([dict(sample) for sample in data]),
        lambda _, policy, metrics: ratios.append((metrics['staleness_max'] > 0, metrics['ratio_max']))
    )
    train(serial, 20, pipeline=serial_pipeline, learning_rate=1e-2)
    assert len(learned) >= 20
    uses = collections.Counter()
    for update, batch in enumerate(learned):
        for sample in batch:
            assert len(sample['action']) == len(sample['weight']) == len(sample['reward']) == 4  # the group size
            assert sample['staleness'] == update - sample['collect_iter'] < 4
            uses[sample['collect_iter'], sample['group_id']] += 1
    assert max(uses.values()) == 2  # groups are used again, and no more often than they may be
    fresh, stale = ([ratio for old, ratio in ratios if old == which] for which in (False, True))
    assert max(fresh) == pytest.approx(1, abs=1e-4) and min(stale[:4]) > 1.001
    assert 'sampled_return' in evaluations()[0]
    assert '2 groups x 4 = 8 episodes a collect, batches of 2 groups\n' in capsys.readouterr().out


UNBOUND = dict(replay_buffer_size=8)
BOUND = dict(UNBOUND, max_use=2)


def by_clock(**limit):
    return dict(BOUND, thruput_controller=dict(push_sample_rate_limit=limit))


@pytest.mark.parametrize(
    'buffer, kind, learn, message',
    [
        (UNBOUND, 'advanced', {}, 'max_use = inf.*max_staleness = inf.*needs a bound.*-m serial_onpolicy'),
        # the advice was to set keys that this buffer refuses
        (UNBOUND, 'naive', {}, "^create_config.replay_buffer.type = 'naive': cannot .* Use 'advanced'"),
        (BOUND, 'advanced', dict(target_kl=0.02), 'policy.learn.target_kl = 0.02: not available with a replay buffer'),
        (BOUND, 'advanced', dict(max_ratio=10.0), 'policy.learn.max_ratio = 10.0: not available with a replay buffer'),
        (by_clock(max=2.0), 'advanced', {}, 'push_sample_rate_limit = .*depends on wall-clock time'),
        (by_clock(min=0.5), 'advanced', {}, 'push_sample_rate_limit = .*depends on wall-clock time'),
    ]
)
def test_what_is_refused(serial, buffer, kind, learn, message):
    """A buffer without a bound, bounds to older policies, and a limit by the clock."""
    main, create = serial
    main.policy.other.replay_buffer, create.replay_buffer = buffer, dict(type=kind)
    with pytest.raises(ConfigError, match=message):
        train(serial, 2, pipeline=serial_pipeline, **learn)
    assert not os.path.exists('run')


def test_no_thread_writes_into_the_log_after_the_run(serial):
    """DI-engine's thread wrote every minute, and created the run's folder again in the current directory."""
    before = set(threading.enumerate())
    train(serial, 2, pipeline=serial_pipeline)
    left = [thread for thread in threading.enumerate() if thread.name == 'periodic_thruput_log']
    for thread in set(left) - before:
        thread.join(5)  # it looks once a second
        assert not thread.is_alive()
