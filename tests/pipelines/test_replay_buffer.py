"""``ding -m serial``: groups through DI-engine's replay buffer."""
import collections
import os
import threading

import pytest
from ding.entry import serial_pipeline
from ding.worker.replay_buffer import AdvancedReplayBuffer
from easydict import EasyDict

from ding_common import ConfigError, read_json_lines
from ding_grpo.policy import GRPOPolicy


@pytest.fixture
def serial(think_answer):
    main, create = think_answer
    main.policy.learn.update(update_per_collect=3, batch_size=2)
    main.policy.other = EasyDict(replay_buffer=dict(replay_buffer_size=8, max_use=2, max_staleness=4))
    return main, create


@pytest.fixture
def learned(monkeypatch):
    """What each update learned from, with the number of updates before it."""
    seen = []
    forward = GRPOPolicy._forward_learn

    def note(self, data):
        seen.append([dict(sample) for sample in data])
        return forward(self, data)

    monkeypatch.setattr(GRPOPolicy, '_forward_learn', note)
    return seen


@pytest.mark.envtest
class TestSerial:

    def test_a_replayed_group_is_whole_and_not_older_than_the_bound(self, serial, learned):
        serial_pipeline(serial, seed=0, max_train_iter=20)
        assert len(learned) >= 20
        uses = collections.Counter()
        for update, batch in enumerate(learned):
            for sample in batch:
                assert len(sample['action']) == len(sample['weight']) == len(sample['reward']) == 4  # the group size
                assert sample['staleness'] == update - sample['collect_iter'] < 4
                uses[sample['collect_iter'], sample['group_id']] += 1
        assert max(uses.values()) == 2  # groups are used again, and no more often than they may be
        assert any(update > batch[0]['collect_iter'] for update, batch in enumerate(learned))

    def test_the_ratio_is_to_the_policy_that_sampled(self, serial, monkeypatch):
        main, _ = serial
        main.policy.learn.learning_rate = 1e-2
        ratios = []
        forward = GRPOPolicy._forward_learn
        monkeypatch.setattr(
            GRPOPolicy, '_forward_learn', lambda self, data: ratios.append(forward(self, data)) or ratios[-1]
        )
        serial_pipeline(serial, seed=0, max_train_iter=6)
        fresh = [m['ratio_max'] for m in ratios if m['staleness_max'] == 0]
        stale = [m['ratio_max'] for m in ratios if m['staleness_max'] > 0]
        assert max(fresh) == pytest.approx(1, abs=1e-4) and min(stale) > 1.001

    def test_without_a_bound(self, serial):
        main, _ = serial
        main.policy.other.replay_buffer = EasyDict(replay_buffer_size=8)
        with pytest.raises(ConfigError, match='max_use = inf.*max_staleness = inf.*needs a bound.*-m serial_onpolicy'):
            serial_pipeline(serial, seed=0, max_train_iter=2)
        assert not os.path.exists('run')

    def test_a_buffer_that_has_no_bound(self, serial):
        """The advice was to set keys that this buffer refuses."""
        main, create = serial
        create.replay_buffer = EasyDict(type='naive')
        main.policy.other.replay_buffer = EasyDict(replay_buffer_size=8)
        with pytest.raises(ConfigError, match="^create_config.replay_buffer.type = 'naive': cannot .* Use 'advanced'"):
            serial_pipeline(serial, seed=0, max_train_iter=2)
        assert not os.path.exists('run')

    @pytest.mark.parametrize('key, value', [('target_kl', 0.02), ('max_ratio', 10.0)])
    def test_bounds_to_older_policies(self, serial, key, value):
        main, create = serial
        main.policy.learn[key] = value
        with pytest.raises(ConfigError, match=f'policy.learn.{key} = {value}: not available with a replay buffer'):
            serial_pipeline((main, create), seed=0, max_train_iter=2)

    @pytest.mark.parametrize('limit', [dict(max=2.0), dict(min=0.5)])
    def test_a_limit_by_the_clock(self, serial, limit):
        main, create = serial
        main.policy.other.replay_buffer.thruput_controller = EasyDict(push_sample_rate_limit=limit)
        with pytest.raises(ConfigError, match='push_sample_rate_limit = .*depends on wall-clock time'):
            serial_pipeline((main, create), seed=0, max_train_iter=2)

    def test_no_thread_writes_into_the_log_after_the_run(self, serial):
        """DI-engine's thread wrote every minute, and created the run's folder again in the current directory."""
        before = set(threading.enumerate())
        serial_pipeline(serial, seed=0, max_train_iter=2)
        left = [thread for thread in threading.enumerate() if thread.name == 'periodic_thruput_log']
        for thread in set(left) - before:
            thread.join(5)  # it looks once a second
            assert not thread.is_alive()

    def test_the_evaluator_needs_no_choice(self, serial, capsys):
        """create_config.evaluator may be left out, as with serial_onpolicy."""
        main, create = serial
        create.pop('evaluator', None)
        main.policy.eval.evaluator.samples_per_start = 2
        serial_pipeline((main, create), seed=0, max_train_iter=2)
        assert 'sampled_return' in read_json_lines('run/log/evaluator/evaluations.jsonl')[0]
        assert '2 groups x 4 = 8 episodes a collect, batches of 2 groups\n' in capsys.readouterr().out

    def test_the_buffer_is_di_engines(self, serial, monkeypatch):
        pushed = []
        push = AdvancedReplayBuffer.push
        monkeypatch.setattr(
            AdvancedReplayBuffer, 'push',
            lambda self, data, **kwargs: pushed.append(len(data)) or push(self, data, **kwargs)
        )
        serial_pipeline(serial, seed=0, max_train_iter=3)
        assert pushed and set(pushed) == {2}  # n_sample groups, each one item
