"""The servers of a run, and the weights that they have."""
import contextlib
import fcntl
import glob
import hashlib
import multiprocessing
import os
import shutil
import time
import uuid
from typing import Callable, Dict, Iterator, List, Optional, Sequence, TextIO

import click
import torch
from ding.utils import find_free_port
from safetensors import SafetensorError
from torch import Tensor

from ding_common import ConfigError, PeerError, parallel

from .launched import MODEL, LaunchedServer
from .options import KEY, EngineOptions
from .server import Row, Server, Unavailable
from .transfer import WholeModel

LONGEST_WAIT = 30.0  # seconds between two attempts
ATTEMPTS = 6  # of a request that fails in a server which runs
NAME, OWNER = 'ding_grpo_', 'owner.'  # of folders, and of a file in each for each process
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


class ServerPool:
    """Several processes may use the servers: a fork of the one that opened them, and those of torchrun. A version of
    the weights is named by what they are. Processes that have the same weights ask at the same time. One that has
    others waits, and gives them to the servers."""

    def __init__(self, options: EngineOptions, transfer: WholeModel) -> None:
        self.options, self.transfer = options, transfer
        self.servers: List[Server] = []
        self.process: Optional[LaunchedServer] = None  # if the run has started one
        self.log_folder: Optional[str] = None  # of the log of a server that it starts; None: that of the weights
        self.version = ''  # of the weights that it asks for
        self.folder = os.path.join(options.folder, f'{NAME}{parallel.broadcast_object(uuid.uuid4().hex)}')
        self.seconds = multiprocessing.RawValue('d')  # of the last sending, by this process or a fork
        self._pid = os.getpid()
        self._lock: Optional[TextIO] = None  # in a turn
        self._owner: Optional[TextIO] = None  # locked while this process needs the folder

    def open(self, arguments: Callable[[str, int], List[str]]) -> None:
        """Connect to the servers, or start one, with ``arguments`` for the folder of its model and its port."""
        options = self.options
        try:
            os.mkdir(self.folder, 0o700)
        except FileExistsError:  # by another process of torchrun
            pass
        except OSError as error:
            raise ConfigError(f'{KEY}.folder = {options.folder!r}: {error.strerror}.') from error
        remove_abandoned(options.folder)
        name = uuid.uuid4().hex  # locked before it is seen
        self._owner = open(os.path.join(self.folder, name), 'w', encoding='utf-8')
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        os.rename(self._owner.name, os.path.join(self.folder, f'{OWNER}{name}'))
        urls = options.url
        if options.launch is not None:
            model, port = os.path.join(self.folder, 'model'), find_free_port('')
            with self._writing():
                self.transfer.save_base(model)
            log = os.path.join(self.log_folder or self.folder, 'engine.log')
            click.echo(f'engine: vLLM begins, which takes a minute or more; its output is in {log}')
            self.process = LaunchedServer(options.launch, arguments(model, port), log, self.folder)
            urls = (f'http://127.0.0.1:{port}', )
        self._connect(urls)
        for server in self.servers:
            server.wait(options.patience, self.process and self.process.check or (lambda: None))

    def _connect(self, urls: Sequence[str]) -> None:
        self._pid = os.getpid()
        self.servers = [Server(url, MODEL, self.options.seconds) for url in urls]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Context in which no other process uses the servers, until ``share``."""
        if self._pid != os.getpid():  # connections of before a fork are the other's
            self._connect([server.url for server in self.servers])
        with open(os.path.join(self.folder, 'turn'), 'w', encoding='utf-8') as self._lock:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            yield

    def share(self) -> None:
        """Let processes with the same weights ask, too, until the turn ends."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def send(self) -> None:
        """Give the servers the weights that the model has now."""
        start = time.perf_counter()
        self.version = fingerprint(self.transfer.weights())
        self.bring_up()
        self.seconds.value = time.perf_counter() - start

    def renew(self) -> None:
        """As ``send``, in a turn that is shared."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.send()
        self.share()

    def bring_up(self) -> None:
        """Wait until all servers answer, and have the weights."""
        for server in self.servers:
            self._bring_up(server, Unavailable('it has ended, or has other weights'))

    def abort(self, rows: Sequence[Row]) -> None:
        """End requests that still run."""
        for server in self.servers if rows else ():
            server.abort([row.name for row in rows])

    def close(self) -> None:
        for server in self.servers:
            server.close()
        if self.process is not None:
            self.process.close()
        if parallel.rank() == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.servers, self.process = [], None
        if self._owner is not None:
            self._owner.close()

    def recover(self, lost: Dict[int, Unavailable], last: float, attempts: int, missing: int) -> None:
        """Wait for servers that have lost requests, by the last error of each: ``missing`` of them, after so many
        attempts since the last answer, which came at the time ``last``."""
        error = list(lost.values())[0]
        seconds, fails = time.monotonic() - last, error.failed and attempts + 1 >= ATTEMPTS
        if fails or (seconds > self.options.patience and attempts > 0):
            raise PeerError(
                f'{KEY}: {missing} rows have no answer after {attempts + 1} attempts in {seconds:.0f} s (patience = '
                f'{self.options.patience:g}); the last error: {error}'
            )
        click.echo(f'engine: {missing} rows are asked for again ({error})')
        asked_for = max(e.wait for e in lost.values())
        time.sleep(min(max(asked_for, 0.0 if attempts == 0 else 0.5 * 2 ** attempts), LONGEST_WAIT))
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for number, why in lost.items():
            self._bring_up(self.servers[number], why)
        self.share()

    def _bring_up(self, server: Server, why: Unavailable) -> None:
        start, process = time.monotonic(), self.process

        def ended() -> None:
            if process is not None and not process.runs:
                raise Unavailable('the server has ended')

        while True:
            if process is not None and not process.runs:
                click.echo(f'engine: the server has ended, and is started again ({why})')
                process.start()
            try:
                server.wait(self.options.patience, ended)
                if server.version != self.version:
                    with self._writing():
                        path = self.transfer.write(self.folder, self.version)
                    self.transfer.give(server, path, self.version)
                return
            except Unavailable as error:
                if time.monotonic() - start > self.options.patience:
                    if process is not None:
                        process.check()
                    raise PeerError(f'{KEY}: {server.url} does not take the weights: {error}') from error
                why = error
                time.sleep(1.0)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Context in which weights are written."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise PeerError(
                f'{KEY}.folder = {self.options.folder!r}: weights cannot be written there '
                f"({getattr(error, 'strerror', None) or error}). Name a folder with more room."
            ) from error


def remove_abandoned(folder: str) -> None:
    """Remove folders of runs that were killed: they have owners, none of which has its lock any more."""
    for path in glob.glob(os.path.join(glob.escape(folder), f'{NAME}*')):
        owners = glob.glob(os.path.join(glob.escape(path), f'{OWNER}*'))
        if owners and not any(map(_is_locked, owners)):
            shutil.rmtree(path, ignore_errors=True)


def _is_locked(path: str) -> bool:
    try:
        with open(path, encoding='utf-8') as f:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True


@torch.no_grad()
def fingerprint(weights: Dict[str, Tensor]) -> str:
    """A number of weights, the same in each process that has them: of the sums of their bits, as integers."""
    sums = [w.contiguous().view(INTEGERS[w.element_size()]).sum(dtype=torch.int64) for w in weights.values()]
    return hashlib.blake2b(torch.stack(sums).cpu().numpy().tobytes(), digest_size=8).hexdigest()
