"""Two machines make the run of one process: network namespaces, with a name and a folder each and a cable between."""
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from tests.pipelines.test_processes import THINK, TOKENS, Run, write_config
from tests.processes import ROOT
from tests.runs import distance, metrics

SHARDED = dict(TOKENS, policy=dict(TOKENS['policy'], shard='machine'))


class Machine:
    """A namespace with the address 10.9.0.<number + 1>. Processes on it begin in its folder."""

    def __init__(self, number, folder):
        self.number, self.folder = number, folder
        self._holder = subprocess.Popen(['unshare', '--net', '--uts', 'sleep', 'infinity'], start_new_session=True)
        self.name = str(self._holder.pid)

    def inside(self, *command):
        return ['nsenter', '--target', self.name, '--net', '--uts', *command]

    def connect(self):
        for command in (
                f'hostname machine{self.number}',
                'ip link set lo up',
                f'ip addr add 10.9.0.{self.number + 1}/24 dev cable{self.number}',
                f'ip link set cable{self.number} up',
        ):
            subprocess.run(self.inside(*command.split()), check=True)

    def start(self, processes, options):
        """The command of docs/guides/scaling.md."""
        torchrun = f'-m torch.distributed.run --nnodes 2 --node-rank {self.number} --nproc_per_node {processes} ' \
            '--master-addr 10.9.0.1 --master-port 29500'
        command = self.inside(sys.executable, *torchrun.split(), '-m', 'ding_grpo', *options.split())
        env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=ROOT, GLOO_SOCKET_IFNAME=f'cable{self.number}')
        self._log = open(self.folder / f'torchrun{self.number}.txt', 'w+')
        self.torchrun = subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def end(self, seconds):
        code = self.torchrun.wait(seconds)
        self._log.seek(0)
        return code, self._log.read()

    def workers(self):
        found = subprocess.run(['pgrep', '-P', str(self.torchrun.pid)], capture_output=True, text=True).stdout
        return [int(pid) for pid in found.split()]

    def close(self):
        if hasattr(self, 'torchrun') and self.torchrun.poll() is None:
            for pid in self.workers():  # torchrun gives them sessions of their own
                os.kill(pid, signal.SIGKILL)
            self.torchrun.kill()
        self._holder.kill()


@pytest.fixture
def machines(tmp_path):
    """Two, with a folder each."""
    if shutil.which('ip') is None or subprocess.run(['unshare', '--net', '--uts', 'true']).returncode != 0:
        pytest.skip('network namespaces need root and the command ip')
    both = [Machine(number, tmp_path / f'machine{number}') for number in (0, 1)]
    try:
        time.sleep(0.5)  # until both have left the namespace of this process
        cable = 'ip link add cable0 netns {} type veth peer name cable1 netns {}'
        subprocess.run(cable.format(*(m.name for m in both)).split(), check=True)
        for machine in both:
            machine.connect()
        yield both
    finally:
        for machine in both:
            machine.close()


def start(machines, config, processes, updates):
    for machine in machines:
        machine.folder.mkdir(exist_ok=True)
        write_config(machine.folder, 'run', 'think_answer_grpo', config, 2)
        machine.start(processes, f'-m serial_onpolicy -c run_config.py -s 0 --train-iter {updates}')


@pytest.mark.algotest
class TestTwoMachines:

    @pytest.mark.parametrize('config, processes, common', [(TOKENS, 1, False), (SHARDED, 2, True)], ids=['', 'sharded'])
    def test_the_weights_of_one_process(self, machines, tmp_path, config, processes, common):
        if common:  # parts of a checkpoint are written by all machines
            machines[1].folder = machines[0].folder
        start(machines, config, processes, 10)
        one = Run(tmp_path, 'one', *THINK, 10, 1)
        for ended in (one.end(), *(machine.end(120) for machine in machines)):
            assert ended[0] == 0, ended[1]
        run = machines[0].folder / 'run'
        assert len(metrics(run)) == 10
        assert common or [p.name for p in (machines[1].folder / 'run').iterdir()] == ['log']  # the log of its process
        weights = [load_file(folder / 'model/last/model.safetensors') for folder in (run, one.folder)]
        assert distance(*weights) < 1e-6

    def test_one_that_dies_ends_the_other(self, machines):
        start(machines, TOKENS, 1, 10 ** 6)
        while len(metrics(machines[0].folder / 'run')) < 3:
            assert all(machine.torchrun.poll() is None for machine in machines), machines[0].end(1)
            time.sleep(0.2)
        machines[1].close()
        since = time.monotonic()
        code, out = machines[0].end(60)
        assert code != 0 and time.monotonic() - since < 30
        assert out.count('another process of this run has exited') == 1, out
