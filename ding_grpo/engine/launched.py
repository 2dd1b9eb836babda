"""A server of vLLM that a run starts, and ends."""
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import List

from ding_common import ConfigError, PeerError, parallel

from .options import KEY, Launch

MODEL = 'policy'  # the name under which it serves
WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'worker')
SET_DEATH_SIGNAL = 1
# On a CPU, vLLM 0.32 ends when a request with a seed is read in chunks, and shares prompts by blocks of 32 tokens.
ON_CPU = ('--no-enable-chunked-prefill', '--block-size', '32', '--enforce-eager')
GRACE = 20.0  # seconds to end
LAST = 12  # lines of its log in a message


def arguments(folder: str, port: int, longest: int, dtype: str, top: int, device: str) -> List[str]:
    """Of vLLM's server, for a model in a folder whose rows have at most ``longest`` tokens."""
    given = dict(
        model=folder,
        served_model_name=MODEL,
        host='127.0.0.1',
        port=port,
        dtype=dtype,
        max_model_len=longest,
        max_logprobs=max(top, 1),
        logprobs_mode='processed_logprobs',
        generation_config='vllm',
        worker_extension_cls='ding_grpo_weights.Worker',
        weight_transfer_config='{"backend": "file"}',
    )
    named = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*named, '--skip-tokenizer-init', '--enable-scale-out', *(ON_CPU if device == 'cpu' else ())]


class LaunchedServer:
    """The process of a server. A fork of the process that has started it may start it again."""

    def __init__(self, launch: Launch, given: List[str], log: str, folder: str) -> None:
        """``given``: arguments before those of the config; ``log``: file of its output; ``folder``: of its number."""
        self._launch, self._given, self._log = launch, given, log
        self._number = os.path.join(folder, 'pid')
        self.start()

    def start(self) -> None:
        command = [self._launch.python, '-m', 'vllm.entrypoints.openai.api_server', *self._given, *self._launch.args]
        paths = [WORKER, self._launch.env.get('PYTHONPATH')]
        env = {
            **{name: value
               for name, value in os.environ.items() if not name.startswith('PYTHON')},
            'VLLM_CPU_KVCACHE_SPACE': '1',  # GiB
            **self._launch.env,
            'VLLM_SERVER_DEV_MODE': '1',  # without it weights cannot be replaced, and without the next adapters
            'VLLM_ALLOW_RUNTIME_LORA_UPDATING': '1',
            'PYTHONPATH': os.pathsep.join(filter(None, paths)),
        }
        libc = ctypes.CDLL(None) if sys.platform == 'linux' else None
        parent = os.getpid()

        def end_with_parent() -> None:
            if libc is not None:
                libc.prctl(SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
                if os.getppid() != parent:  # it has ended in between
                    os._exit(1)

        try:
            with open(self._log, 'ab') as log:
                self._process = subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=end_with_parent
                )
        except OSError as error:
            raise ConfigError(f'{KEY}.launch.python = {self._launch.python!r}: cannot be started ({error}).') from error
        with open(self._number, 'w', encoding='utf-8') as f:
            f.write(str(self._process.pid))

    def check(self) -> None:
        """Raise ``PeerError`` with the end of its log if it has ended."""
        if not self.runs:
            with open(self._log, encoding='utf-8', errors='replace') as f:
                last = ''.join(f.readlines()[-LAST:]).rstrip()
            raise PeerError(f'the engine has ended; the end of {self._log}:\n{last}')

    @property
    def pid(self) -> int:
        with open(self._number, encoding='utf-8') as f:
            return int(f.read())

    @property
    def runs(self) -> bool:
        ended = parallel.has_ended(self.pid)
        self._process.poll()  # after the look, so that one that has ended stays no zombie; a fork cannot do this
        return not ended

    def close(self) -> None:
        """End it, with the processes that it has started."""
        for sent in (signal.SIGTERM, signal.SIGKILL):  # the second ends what the first has left behind
            try:
                os.killpg(self.pid, sent)
            except ProcessLookupError:
                self._process.poll()
                return
            start = time.monotonic()
            while self.runs and time.monotonic() - start < GRACE:
                time.sleep(0.05)
