"""Whole runs with an engine: with a server of somebody, and with one that the run starts, which is killed."""
import glob
import multiprocessing
import os
import signal
import sys

import pytest
import torch

from ding_common import PeerError, parallel
from ding_grpo.engine.launched import LaunchedServer, arguments
from ding_grpo.engine.options import Launch
from ding_grpo.extras.ahead import AheadProcess
from ding_grpo.model import CausalLM
from tests.cases import long
from tests.processes import ROOT
from tests.runs import each_update, evaluations, metrics, state, train
from tests.shipped import small

pytestmark = pytest.mark.usefixtures('own_folder')
LAUNCHED = os.path.join(ROOT, 'tests/engine/launched')


def with_engine(**engine):
    configs = small('think_answer_grpo')
    configs[0].policy.collect.engine = dict(type='vllm', folder=os.getcwd(), patience=60.0, **engine)
    return configs


@pytest.fixture
def policy_server(serve, own_folder):
    torch.manual_seed(5)
    config = dict(small('think_answer_grpo')[0].policy.model.config, vocab_size=32)
    return serve(CausalLM(config=config))


def test_run_learns_from_its_rows(policy_server, monkeypatch, capsys):
    versions = []
    each_update(monkeypatch, before=lambda *_: versions.append(policy_server.version))
    train(with_engine(url=policy_server.url), updates=3)
    assert len(set(versions)) == 3  # each update samples from the weights of the one before
    for found in metrics():
        assert found['sampler_gap_max'] < 1e-4 and found['seconds_weights'] > 0
    assert [e['train_iter'] for e in evaluations()] == [0, 3]
    assert 'engine: it has the weights' in capsys.readouterr().out
    assert not glob.glob('ding_grpo_*')


def test_run_ends_when_weights_no_longer_arrive(policy_server, monkeypatch):

    def break_it(number, *_):
        policy_server.faults.keeps_weights = number >= 1

    each_update(monkeypatch, after=break_it)
    with pytest.raises(PeerError) as error:
        train(with_engine(url=policy_server.url), updates=6, learning_rate=0.01)
    assert 'in update 2' in error.value.message and 'old values of all of them' in error.value.message


def test_run_ends_when_one_batch_was_of_old_weights(policy_server, monkeypatch):

    def arrive(arrives):
        return lambda number, *_: setattr(policy_server.faults, 'keeps_weights', number == 1 and not arrives)

    each_update(monkeypatch, before=arrive(True), after=arrive(False))
    with pytest.raises(PeerError, match='in update 2,.*those of this batch were others'):
        train(with_engine(url=policy_server.url), updates=6, learning_rate=0.01)


@pytest.mark.parametrize('most', [1, 2])
def test_rows_are_sampled_ahead_by_weights_that_are_not_older_than_allowed(policy_server, monkeypatch, most):
    take, taken = AheadProcess.take, multiprocessing.Event()
    monkeypatch.setattr(AheadProcess, 'take', lambda process: (take(process), taken.set()))
    each_update(monkeypatch, before=lambda *_: taken.wait(60))  # a process that is slow to begin takes newer weights
    configs = with_engine(url=policy_server.url)
    configs[0].policy.collect.max_staleness = most
    configs[0].policy.eval.evaluator.eval_freq = 2  # the servers get other weights in between
    train(configs, updates=6, learning_rate=0.01)
    ages = [m['staleness_max'] for m in metrics()]
    assert ages[0] == 0 and ages[1] == 1 and max(ages) <= most
    assert [e['train_iter'] for e in evaluations()] == [0, 2, 4, 6]
    assert not glob.glob('ding_grpo_*')


def test_resumed_run_has_the_rows_that_were_sampled_ahead_and_goes_on_after_them(policy_server):

    def go_on(updates, **learn):
        configs = with_engine(url=policy_server.url)
        configs[0].policy.collect.max_staleness = 2
        configs[0].policy.collect.problem_order = 'pools'  # which the process that samples ahead counts for itself
        train(configs, updates=updates, learning_rate=0.01, **learn)

    go_on(3)
    kept = [found['train_iter'] for found in state(3)['run']['collector'].get('ahead', [])]
    assert kept in ([], [3], [3, 4])  # those that had come
    go_on(7, resume_training=True)
    learned = metrics()
    assert [m['train_iter'] for m in learned] == list(range(7))
    assert all(0 <= m['staleness_max'] <= 2 for m in learned)
    assert (learned[3]['staleness_max'] > 0) == bool(kept)
    assert state(7)['run']['collector']['collect_iter'] == 6


@pytest.mark.parametrize('most, in_flight', [(1, False), (2, False), (2, True)])
def test_run_that_samples_ahead_ends_when_weights_no_longer_arrive(policy_server, monkeypatch, most, in_flight):
    policy_server.faults.seconds = lambda body: 0.3 if in_flight else 0.0

    def break_it(number, *_):
        policy_server.faults.keeps_weights = number >= 2

    each_update(monkeypatch, after=break_it)
    configs = with_engine(url=policy_server.url)
    configs[0].policy.collect.update(max_staleness=most, in_flight=in_flight)
    with pytest.raises(PeerError, match='in update [3-6],.*old values of all of them'):
        train(configs, updates=8, learning_rate=0.001)


def launched(**env):
    paths = dict(PYTHONPATH=LAUNCHED, ROOT=ROOT, OMP_NUM_THREADS='1')
    return dict(python=sys.executable, env={**paths, **env})


@pytest.mark.parametrize('most', [0, long(1)])
def test_server_that_the_run_starts_is_started_again_and_ends_with_it(monkeypatch, capfd, most):
    killed = []

    def kill(number, policy, data):
        if number == 0:
            process = policy.actor.sampler.pool.process
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)

    each_update(monkeypatch, before=kill)
    configs = with_engine(launch=launched())
    configs[0].policy.collect.max_staleness = most
    policy = train(configs, updates=2)
    assert 'engine: the server has ended, and is started again' in capfd.readouterr().out
    assert len(metrics()) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(killed[0], 0)
    assert policy.actor.sampler.pool.process is None
    assert os.path.exists('run/engine.log')


@pytest.mark.skipif(not hasattr(os, 'waitid'), reason='needs waitid')
def test_server_that_ends_while_it_is_asked_about_stays_no_zombie(monkeypatch):
    server = LaunchedServer(Launch(**launched()), arguments('model', 1, 8, 'float32', 1, 'cpu'), 'log', '.')
    has_ended = parallel.has_ended

    def ends_now(pid):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not asked for its status
        return has_ended(pid)

    monkeypatch.setattr(parallel, 'has_ended', ends_now)
    pid = server.pid
    assert not server.runs
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_server_that_does_not_start_is_told_with_its_last_lines():
    with pytest.raises(PeerError, match='(?s)has ended; the end of run/engine.log.*the model is not one'):
        train(with_engine(launch=dict(launched(), args=['--refuses'])), updates=1)
