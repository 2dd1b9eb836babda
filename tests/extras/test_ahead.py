"""Sampling in another process while the policy learns: one update behind, otherwise the same run."""
import copy
import os
import signal

import pytest
import torch
from ding.entry import serial_pipeline, serial_pipeline_onpolicy

from ding_common import ConfigError, PeerError, TaskError, read_json_lines
from ding_grpo.data.batch import Batch
from ding_grpo.data.plain import plain
from ding_grpo.extras.ahead import AheadProcess
from ding_grpo.policy import GRPOPolicy
from tests.shipped import small


@pytest.fixture
def seen(monkeypatch):
    """Weights and groups at the start of each update."""
    found, forward = [], GRPOPolicy._forward_learn

    def _forward_learn(self, data):
        found.append((copy.deepcopy(self._model.state_dict()), copy.deepcopy(data)))
        found.append((self, forward(self, data)))
        return found[-1][1]

    monkeypatch.setattr(GRPOPolicy, '_forward_learn', _forward_learn)
    return found


def stale(config, **learn):
    main, create = config
    main.policy.collect.stale = 1
    main.policy.learn.update(dict(dict(learning_rate=1e-2), **learn))
    main.env.stop_value = 1e9
    return main, create


@pytest.mark.envtest
class TestRun:

    @pytest.mark.parametrize('name', ['think_answer_grpo', 'key_and_door_grpo', 'cartpole_grpo'])
    def test_each_update_learns_from_the_weights_before_the_last_one(self, tmp_path, monkeypatch, seen, name):
        monkeypatch.chdir(tmp_path)
        serial_pipeline_onpolicy(stale(small(name)), seed=0, max_train_iter=4)
        starts, ends = seen[::2], seen[1::2]
        policy = ends[0][0]
        steps = [0, *torch.tensor([m['optimizer_steps'] for _, m in ends]).cumsum(0).int().tolist()]
        changed = []
        for update, (own, data) in enumerate(starts):
            batch, before = Batch.of(data), starts[max(update - 1, 0)][0]
            gaps = []
            for weights in (before, own):
                policy._model.load_state_dict(weights)
                gap = (policy._learning.updater.read(batch) - batch.logp_old)[batch.weight != 0].abs().max().item()
                gaps.append(gap)
            assert gaps[0] < 2e-5
            if any(not torch.equal(own[name], before[name]) for name in own):  # the last update had a gradient
                assert gaps[1] > 1e-3
                changed.append(update)
            assert {g['collect_iter'] for g in data} == {update}
            assert {g['sampled_after'] for g in data} == {steps[max(update - 1, 0)]}
        assert changed and [m['staleness_max'] for _, m in ends] == [0, 1, 1, 1]

    def test_the_first_two_updates_have_the_rows_of_weights_that_do_not_change(self, think_answer, seen):
        """A row is a function of (seed, update, group, row) and of the weights, whichever process samples it."""
        main, create = think_answer
        main.policy.learn.learning_rate = 1e-30
        main.env.stop_value = 1e9
        for name, stale in (('sync', 0), ('ahead', 1)):
            main.exp_name, main.policy.collect.stale = name, stale
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=3)
        sync, ahead = seen[:6:2], seen[6::2]
        for (_, a), (_, b) in zip(sync, ahead):
            for one, other in zip(a, b):
                assert torch.equal(one['action'], other['action'])
                if torch.get_num_threads() == 1:
                    assert torch.equal(one['logp_old'], other['logp_old'])
                else:  # the process that samples ahead may have another number of threads, which rounds differently
                    assert torch.allclose(one['logp_old'], other['logp_old'], rtol=0, atol=1e-6)
        steps = [
            [r['envstep'] for r in read_json_lines(f'{run}/log/learner/metrics.jsonl')] for run in ('sync', 'ahead')
        ]
        assert steps[0] == steps[1]

    def test_its_process_ends_with_the_run(self, think_answer, monkeypatch):
        made, init = [], AheadProcess.__init__
        monkeypatch.setattr(AheadProcess, '__init__', lambda self, *args: made.append(self) or init(self, *args))
        serial_pipeline_onpolicy(stale(think_answer), seed=0, max_train_iter=2)
        process, = made
        assert process._process.exitcode == -signal.SIGKILL

    def test_an_error_of_the_scorer_is_one_line(self, think_answer, monkeypatch):
        from dizoo_llm.tasks.think_answer import ThinkAnswerTask
        parent, score = os.getpid(), ThinkAnswerTask.score

        def fail(self, problem, completion):
            if os.getpid() != parent:
                raise ValueError('injected')
            return score(self, problem, completion)

        monkeypatch.setattr(ThinkAnswerTask, 'score', fail)
        with pytest.raises(TaskError, match='ValueError: injected'):
            serial_pipeline_onpolicy(stale(think_answer), seed=0, max_train_iter=3)


@pytest.mark.unittest
class TestProcess:

    def test_weights_of_the_moment_of_the_request(self):
        weight = torch.zeros(3)
        process = AheadProcess([weight], lambda request: (request, weight.tolist()))
        try:
            for value in (1., 2.):
                weight.fill_(value)
                process.request('a')
                weight.fill_(9.)
                assert process.answer() == ('a', [value] * 3)
        finally:
            process.close()

    def test_an_error_is_raised_here_with_its_place(self):

        class Odd(Exception):

            def __init__(self, a, b):
                super().__init__(f'{a} and {b}')

        def fail(request):
            raise KeyError(request) if request == 'key' else Odd(1, 2)

        process = AheadProcess([], fail)
        try:
            process.request('key')
            with pytest.raises(KeyError, match='key') as info:
                process.answer()
            assert 'in fail' in str(info.value.__cause__)
            process.request('odd')  # it goes on
            with pytest.raises(RuntimeError, match='1 and 2'):
                process.answer()
        finally:
            process.close()

    def test_a_kill_is_told(self):
        process = AheadProcess([], lambda request: os.kill(os.getpid(), signal.SIGKILL))
        process.request('')
        with pytest.raises(PeerError, match=r'policy.collect.stale = 1\) has ended with exit code -9'):
            process.answer()
        process.close()

    def test_plain(self):
        import numpy as np
        value = dict(a=np.float32(0.5), b=[np.arange(2), (np.bool_(True), 'x')], c=None)
        assert plain(value) == dict(a=0.5, b=[[0, 1], (True, 'x')], c=None)


@pytest.mark.unittest
class TestRefused:

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(multi_gpu=True), 'policy.collect.stale = 1: not available with policy.multi_gpu = True'),
            (dict(stale=2), 'policy.collect.stale = 2: must be one of 0, 1'),
        ]
    )
    def test_keys(self, think_answer, changes, message):
        main, create = stale(think_answer)
        main.policy.collect.stale = changes.pop('stale', 1)
        main.policy.update(changes)
        with pytest.raises(ConfigError, match=message):
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)

    def test_environments_in_processes(self, think_answer):
        main, create = stale(think_answer)
        create.env_manager.type = 'subprocess'
        with pytest.raises(ConfigError, match="env_manager.type = 'subprocess': must be 'base' with"):
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)

    def test_a_replay_buffer(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError, match='policy.collect.stale = 1: only available with ding -m serial_onpolicy'):
            serial_pipeline(stale(small('think_answer_grpo_serial')), seed=0, max_train_iter=1)
