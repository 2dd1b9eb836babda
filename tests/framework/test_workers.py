import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from ding.framework.task import Role

from ding_grpo.framework import Workers, workers
from tests.processes import ROOT


class Network:
    """A task of several processes, whose other processes are those that the test speaks for."""
    role, is_active, node_id, finish = Role, True, 0, False

    def __init__(self, own):
        self.own, self.events, self.heard, self.router = own, [], {}, self

    def has_role(self, role):
        return role == self.own

    def on(self, event, function):
        self.heard[event] = function

    once = on

    def emit(self, event, *args, **kwargs):
        self.events.append((event, *args))

    def sign(self, node, role):
        self.heard[workers.ALIVE](node, role)

    def wait(self, function):
        for _ in range(500):
            if function():
                return
            time.sleep(0.02)
        raise AssertionError('waited for 10 seconds')


@pytest.fixture
def network(monkeypatch, request):
    network = Network(request.param)
    monkeypatch.setattr(workers, 'task', network)
    yield network
    network.is_active = False


class TestWorkers:

    @pytest.mark.parametrize('network', [Role.LEARNER], indirect=True)
    def test_a_learner_goes_on_until_the_last_collector_is_gone(self, network, capsys):
        alive, out = Workers(timeout=1.0), []

        def said(start):
            out.extend(capsys.readouterr().out.splitlines())
            return any(line.startswith(start) for line in out)

        alive(None)
        for node in (1, 2):
            network.sign(node, 'collector')
        network.wait(lambda: network.sign(2, 'collector') or said('collector 1 has'))
        alive(None)
        network.wait(lambda: said('collector 2 has'))
        with pytest.raises(RuntimeError, match='no collector is left: the last has given no sign of life for 1 s'):
            alive(None)
        assert ('context_exchanger_{}'.format(Role.COLLECTOR), dict(episodes=[])) in network.events
        assert (workers.ALIVE, 0, 'learner') in network.events
        assert [line for line in out if 'left: ' in line] == [
            f'collector {node} has given no sign of life for 1 s. Collectors that are left: {left}.'
            for node, left in ((1, 1), (2, 0))
        ]

    @pytest.mark.parametrize('network', [Role.COLLECTOR], indirect=True)
    def test_a_collector_waits_for_the_learner_and_ends_without_one(self, network, capsys):
        alive = Workers(timeout=1.0)
        network.wait(lambda: workers.ALIVE in network.heard)
        network.sign(1, 'evaluator')
        thread = threading.Thread(target=alive, args=(None, ), daemon=True)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        network.sign(0, 'learner')
        thread.join(5)  # it does not wait any more
        assert not thread.is_alive()
        network.wait(lambda: network.finish)
        assert 'learner 0 has given no sign of life for 1 s.\n' in capsys.readouterr().out


def ditask(name, *arguments):
    command = [
        os.path.join(os.path.dirname(sys.executable), 'ditask'), '--package', ROOT, '--main',
        'examples.middleware.main', '--protocol', 'tcp', '--address', '127.0.0.1', *arguments
    ]
    with open(name, 'w') as log:
        env = dict(os.environ, PYTHONPATH=ROOT, OMP_NUM_THREADS='1')
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)


@pytest.mark.algotest
def test_cartpole_is_learned_although_a_collector_is_killed(own_folder):
    """By a learner and an evaluator, and two collectors that were started by themselves."""

    def log():
        with open('learner', errors='replace') as f:
            return f.read()

    ports = [str(50600 + os.getpid() % 1000 * 4 + i) for i in range(4)]
    attach = ','.join(f'tcp://127.0.0.1:{port}' for port in ports[:2])
    started = [ditask('learner', '--parallel-workers', '2', '--topology', 'mesh', '--ports', ','.join(ports[:2]))]
    time.sleep(4)
    started += [
        ditask(f'collector{node}', '--node-ids', str(node), '--ports', ports[node], '--attach-to', attach)
        for node in (2, 3)
    ]
    try:
        deadline = time.monotonic() + 600
        while 'Train Iter(5)' not in log():
            assert time.monotonic() < deadline and started[0].poll() is None, log()[-3000:]
            time.sleep(0.5)
        os.killpg(started[1].pid, signal.SIGKILL)
        killed = time.monotonic()
        assert started[0].wait(timeout=600) == 0, log()[-3000:]
        took = time.monotonic() - killed
        assert started[2].wait(timeout=60) == 0
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    told = log()
    if took > 25:  # a fast machine learns it sooner than a dead collector is noticed
        assert 'collector 2 has given no sign of life for 20 s. Collectors that are left: 1.' in told
    assert max(map(int, re.findall(r'staleness_max (\d+)', told))) <= 1
    assert float(re.findall(r'Episode Return\(([0-9.]+)\)', told)[-1]) >= 475
