"""Sampling in another process while the policy learns: one update behind, otherwise the same run."""
import copy
import multiprocessing
import os
import re
import signal
import time

import numpy as np
import pytest
import torch
from ding.entry import serial_pipeline, serial_pipeline_onpolicy

from ding_common import ConfigError, PeerError
from ding_common.processes.tally import tally
from ding_grpo.check import built
from ding_grpo.data.batch import Batch
from ding_grpo.data.plain import plain
from ding_grpo.extras.ahead import AheadProcess
from tests.cases import long
from tests.dizoo_llm.helper import PROBLEMS
from tests.runs import each_update, metrics, state, train, weights
from tests.shipped import small

SCORER_THAT_FAILS_ONCE_ELSEWHERE = '''
import os
HERE, FAILED = os.getpid(), []


async def score(problem, completion):
    if os.getpid() != HERE and not FAILED:
        FAILED.append(1)
        raise ConnectionError
    return 1.0
'''


@pytest.fixture
def seen(own_folder, monkeypatch):
    """Policy, weights and groups at the start of each update."""
    found = []
    each_update(monkeypatch, lambda _, policy, data: found.append((policy, weights(policy), copy.deepcopy(data))))
    return found


def ahead(name='think_answer_grpo', **policy):
    main, create = small(name, policy=policy)
    main.policy.collect.setdefault('max_staleness', 1)
    return main, create


@pytest.mark.envtest
class TestRun:

    @pytest.mark.parametrize('name', ['think_answer_grpo', long('key_and_door_grpo'), 'cartpole_grpo'])
    def test_each_update_learns_from_the_weights_before_the_last_one(self, seen, name):
        policy = train(ahead(name), 4, learning_rate=1e-2)
        steps = [0, *np.cumsum([m['optimizer_steps'] for m in metrics()])]
        changed = []
        for update, (_, own, data) in enumerate(seen[:4]):
            batch, before = Batch.of(data), seen[max(update - 1, 0)][1]
            gaps = []
            for loaded in (before, own):
                policy.whole_model.load_state_dict(loaded)
                gap = policy._learning.updater.read(batch) - batch.logp_old
                gaps.append(gap[batch.weight != 0].abs().max().item())
            assert gaps[0] < 2e-5
            if any(not torch.equal(own[name], before[name]) for name in own):  # the last update had a gradient
                assert gaps[1] > 1e-3
                changed.append(update)
            assert {g['collect_iter'] for g in data} == {update}
            assert {g['sampled_after'] for g in data} == {steps[max(update - 1, 0)]}
        assert changed and [m['staleness_max'] for m in metrics()] == [0, 1, 1, 1]

    def test_a_process_that_is_slow_to_begin_has_the_weights_of_the_request(self, seen, monkeypatch):
        """On a busy machine it took those of the next update, and runs were not repeated exactly."""
        take = AheadProcess.take

        def late(process):
            time.sleep(0.5)  # an update takes a tenth of this
            take(process)

        monkeypatch.setattr(AheadProcess, 'take', late)
        train(ahead(), 4, learning_rate=1e-2)
        steps = [0, *np.cumsum([m['optimizer_steps'] for m in metrics()])]
        for update, (_, _, data) in enumerate(seen[:4]):
            assert {g['sampled_after'] for g in data} == {steps[max(update - 1, 0)]}

    def test_the_first_two_updates_have_the_rows_of_weights_that_do_not_change(self, seen):
        """A row is a function of (seed, update, group, row) and of the weights, whichever process samples it."""
        children = set(multiprocessing.active_children())
        for name, stale in (('sync', 0), ('ahead', 1)):
            train(ahead(collect=dict(max_staleness=stale)), 3, name=name, learning_rate=1e-30)
        assert set(multiprocessing.active_children()) <= children  # it ends with the run
        for (_, _, a), (_, _, b) in zip(seen[:3], seen[3:]):
            for one, other in zip(a, b):
                assert torch.equal(one['action'], other['action'])
                if torch.get_num_threads() == 1:
                    assert torch.equal(one['logp_old'], other['logp_old'])
                else:  # the process that samples ahead may have another number of threads, which rounds differently
                    assert torch.allclose(one['logp_old'], other['logp_old'], rtol=0, atol=1e-6)
        assert [m['envstep'] for m in metrics('sync')] == [m['envstep'] for m in metrics('ahead')]

    def test_each_group_counts_once_in_the_success_rates(self, own_folder):
        pools = dict(success_from=0.1, newest=0.3, easy_share=1., hard_share=1.)  # no problem is passed over
        for name, stale in (('sync', 0), ('ahead', 1)):
            config = ahead(collect=dict(max_staleness=stale, problem_order='pools', pools=pools))
            train(config, 3, name=name, learning_rate=1e-30)
        sync, other = (state(3, name)['run']['collector']['pools']['rate'] for name in ('sync', 'ahead'))
        assert torch.equal(sync, other) and ((0 < sync) & (sync < 1)).any()

    def test_scores_that_are_awaited_there_are_counted_at_the_end_of_the_run(self, tmp_path, own_folder, capsys):
        (tmp_path / 't.py').write_text(PROBLEMS + SCORER_THAT_FAILS_ONCE_ELSEWHERE)
        main, create = ahead(collect=dict(max_staleness=1))
        main.env.update(task=dict(type='file', path=str(tmp_path / 't.py')), tokenizer=dict(chars='0123456789+ ='))
        train((main, create), 3, learning_rate=1e-30)
        assert re.findall('scorers that wait: .* scores, ([0-9]+) retries', capsys.readouterr().out) == ['1']

    def test_the_process_ends_when_the_policy_is_set_anew(self):
        children = set(multiprocessing.active_children())
        with built(*ahead(), seed=0) as (policy, collector):
            collector.collect(train_iter=0)
            assert len(set(multiprocessing.active_children()) - children) == 1
            collector.reset_policy(policy.collect_mode)
            assert set(multiprocessing.active_children()) <= children


@pytest.fixture
def process():
    """A process of (weights, function), which is closed."""
    made = []

    def start(tensors, function):
        made.append(AheadProcess(tensors, function))
        return made[-1]

    yield start
    for each in made:
        each.close()


class TestProcess:

    def test_weights_that_were_put_last(self, process):
        weight = torch.zeros(3)
        started = process([weight], lambda request, there: (request, weight.tolist(), there.updates, there.steps))
        for value in (1., 2.):
            weight.fill_(value)
            started.put(3, int(value))
            started.request('a')
            weight.fill_(9.)
            assert started.answer() == ('a', [value] * 3, 3, value)

    def test_requests_wait_and_begin_with_the_newest_weights(self, process):
        weight, begun, may_end = torch.zeros(1), multiprocessing.Event(), multiprocessing.Event()

        def respond(request, there):
            begun.set()
            assert may_end.wait(60)
            return request, weight.item(), there.steps, b'0' * 2 ** 20  # more than a pipe holds

        started = process([weight], respond)
        started.put(0, 0)
        for request in 'abc':
            started.request(request)
        assert begun.wait(60) and not started.has_answered
        weight.fill_(5.)
        started.put(1, 8)
        may_end.set()
        assert [started.answer()[:3] for _ in range(3)] == [('a', 0., 0), ('b', 5., 8), ('c', 5., 8)]
        assert not started.has_answered

    def test_newer_weights_are_taken_before_an_answer(self, process):
        weight, begun = torch.zeros(1), multiprocessing.Event()

        def respond(request, there):
            first, begun_with = there.has_newer, weight.item()
            begun.set()
            while not there.has_newer:
                time.sleep(0.01)
            there.take()
            return first, begun_with, weight.item(), there.updates, there.steps, there.has_newer

        started = process([weight], respond)
        started.put(0, 0)
        started.request('a')
        assert begun.wait(60)
        weight.fill_(5.)
        started.put(1, 8)
        assert started.answer() == (False, 0., 5., 1, 8, False)

    def test_an_answer_that_cannot_be_sent_is_told(self, process):
        started = process([], lambda *_: lambda: None)
        started.request('')
        with pytest.raises(PeerError, match='exit code 1'):
            started.answer()

    def test_an_error_is_raised_here_with_its_place(self, process):

        class Odd(Exception):

            def __init__(self, a, b):
                super().__init__(f'{a} and {b}')

        def fail(request, *_):
            raise KeyError(request) if request == 'key' else Odd(1, 2)

        started = process([], fail)
        started.request('key')
        with pytest.raises(KeyError, match='key') as info:
            started.answer()
        assert 'in fail' in str(info.value.__cause__)
        started.request('odd')  # it goes on
        with pytest.raises(RuntimeError, match='1 and 2'):
            started.answer()

    def test_what_it_counts_is_counted_here_once(self, process):
        counts = tally('test')
        counts['before'] = 5

        def count(request, *_):
            counts['calls'] += request
            if request == 3:
                raise KeyError
            return dict(counts)

        started = process([], count)
        for request in (1, 2):
            started.request(request)
            assert started.answer() == dict(calls=request)
        started.request(3)
        with pytest.raises(KeyError):
            started.answer()
        assert counts == dict(before=5, calls=6)

    def test_a_kill_is_told(self, process):
        started = process([], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        started.request('')
        with pytest.raises(PeerError, match=r'max_staleness > 0\) has ended with exit code -9'):
            started.answer()

    def test_closed_it_has_ended(self, process):
        started = process([], lambda *_: os.getpid())
        started.request('')
        pid = started.answer()
        started.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_plain(self):
        value = dict(a=np.float32(0.5), b=[np.arange(2), (np.bool_(True), 'x')], c=None)
        assert plain(value) == dict(a=0.5, b=[[0, 1], (True, 'x')], c=None)


REFUSED = {
    'staleness = 1: not available with policy.multi_gpu = True': dict(multi_gpu=True),
    'staleness = 2: .* policy.collect.engine': dict(collect=dict(max_staleness=2)),
    'in_flight = True: only available with': dict(collect=dict(in_flight=True)),
    "env_manager.type = 'subprocess': must be 'base' with": dict(manager='subprocess'),
    "env_manager.type = 'vector': must be 'base' with": dict(name='cartpole_grpo', manager='vector'),
    'max_staleness = 1: only available with ding -m serial_onpolicy': dict(
        name='think_answer_grpo_serial', pipeline=serial_pipeline
    ),
}


@pytest.mark.parametrize('told', REFUSED)
def test_refused(own_folder, told):

    def start(name='think_answer_grpo', manager='base', pipeline=serial_pipeline_onpolicy, **policy):
        main, create = ahead(name, **policy)
        create.env_manager.type = manager
        train((main, create), 1, pipeline=pipeline)

    with pytest.raises(ConfigError, match=told):
        start(**REFUSED[told])
