"""Two processes that share a run, started as torchrun would start them."""
import os
import socket
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
MEET = '''
import torch
from ding_common import parallel
parallel.start(False)
try:
'''


def meet(tmp_path, code):
    """Two processes that run it, each in a folder of its own, without torchrun: their exit codes and outputs."""
    path = tmp_path / 'code.py'
    path.write_text(
        MEET + ''.join(f'    {line}\n' for line in code.strip().splitlines()) + 'finally:\n    parallel.end()'
    )
    return two_processes(tmp_path, [sys.executable, str(path)])


def two_processes(tmp_path, command):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in '01':
        (tmp_path / rank).mkdir(exist_ok=True)
        env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=ROOT, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE='2')
        env.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=port)
        processes.append(
            subprocess.Popen(
                command, cwd=tmp_path / rank, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
    try:
        outs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, out) for process, out in zip(processes, outs)]
