"""Whole runs with an engine: with a server of somebody, and with one that the run starts, which is killed."""
import glob
import os
import signal
import sys

import pytest
import torch

from ding_common import PeerError
from ding_grpo.model import CausalLM
from tests.processes import ROOT
from tests.runs import each_update, evaluations, metrics, train
from tests.shipped import small

pytestmark = pytest.mark.unittest
LAUNCHED = os.path.join(ROOT, 'tests/engine/launched')


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def with_engine(**engine):
    configs = small('think_answer_grpo')
    configs[0].policy.collect.engine = dict(type='vllm', folder=os.getcwd(), patience=60.0, **engine)
    return configs


def server_of(serve):
    torch.manual_seed(5)
    config = dict(small('think_answer_grpo')[0].policy.model.config, vocab_size=32)
    return serve(CausalLM(config=config))


def test_run_learns_from_its_rows(serve, monkeypatch, capsys):
    server = server_of(serve)
    versions = []
    each_update(monkeypatch, before=lambda *_: versions.append(server.version))
    train(with_engine(url=server.url), updates=3)
    assert len(set(versions)) == 3  # each update samples from the weights of the one before
    for found in metrics():
        assert found['sampler_gap_max'] < 1e-4 and found['seconds_weights'] > 0
    assert [e['train_iter'] for e in evaluations()] == [0, 3]
    assert 'engine: it has the weights' in capsys.readouterr().out
    assert not glob.glob('ding_grpo_*')


def test_run_ends_when_weights_no_longer_arrive(serve, monkeypatch):
    server = server_of(serve)

    def break_it(number, *_):
        server.faults.keeps_weights = number >= 1

    each_update(monkeypatch, after=break_it)
    with pytest.raises(PeerError) as error:
        train(with_engine(url=server.url), updates=6, learning_rate=0.01)
    assert 'in update 2' in error.value.message and 'old values of all of them' in error.value.message


def test_run_ends_when_one_batch_was_of_old_weights(serve, monkeypatch):
    server = server_of(serve)

    def arrive(arrives):
        return lambda number, *_: setattr(server.faults, 'keeps_weights', number == 1 and not arrives)

    each_update(monkeypatch, before=arrive(True), after=arrive(False))
    with pytest.raises(PeerError, match='in update 2,.*those of this batch were others'):
        train(with_engine(url=server.url), updates=6, learning_rate=0.01)


def launched(**env):
    paths = dict(PYTHONPATH=LAUNCHED, ROOT=ROOT, OMP_NUM_THREADS='1')
    return dict(python=sys.executable, env={**paths, **env})


def test_server_that_the_run_starts_is_started_again_and_ends_with_it(monkeypatch, capfd):
    killed = []

    def kill(number, policy, data):
        if number == 0:
            process = policy.actor.sampler.process
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)

    each_update(monkeypatch, before=kill)
    policy = train(with_engine(launch=launched()), updates=2)
    assert 'engine: the server has ended, and is started again' in capfd.readouterr().out
    assert len(metrics()) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(killed[0], 0)
    assert policy.actor.sampler.process is None
    assert os.path.exists('run/engine.log')


def test_server_that_does_not_start_is_told_with_its_last_lines():
    with pytest.raises(PeerError, match='(?s)exit code 1; the end of run/engine.log.*the model is not one'):
        train(with_engine(launch=dict(launched(), args=['--refuses'])), updates=1)
