"""Sampling by servers of vLLM, which get the new weights after each update."""
import fcntl
import multiprocessing
import os
import shutil
import tempfile
import time
import uuid
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

import click
from torch import Tensor

from ding_common import ConfigError, PeerError
from ding_grpo.act.sampler import RowRequest, Sampler
from ding_grpo.model import CausalLM
from ding_grpo.rollout import EarlyStop, Rollout, Sampling

from .answers import NOTHING, Answer, cut, rollout_of
from .launched import MODEL, LaunchedServer, arguments, free_port
from .options import KEY, EngineOptions, check_sampling, chosen_server
from .proof import Bounds, check_tokenizer, prove
from .server import Row, Server, Unavailable
from .transfer import Adapters, Transfer, WholeModel

THREADS = 512  # requests at a time
LONGEST_WAIT = 30.0  # seconds between two attempts
ATTEMPTS = 6  # of a request that fails in a server which runs
NEVER = -100.0  # bias of a logit whose token must not be sampled; its probability is then 0 in float32


class VllmSampler(Sampler):
    """
    Asks servers for the rows of a collect, one request for each row, with a seed that depends on (seed, collect, group,
    row). A row that a server did not answer is asked for again, and is then the same row. A fork of the process may
    sample too, from the same servers: while one of the two samples, the other waits, and gives them its weights then.
    """

    def __init__(self, cfg: Dict, model: CausalLM) -> None:
        """``cfg`` is the section ``policy``."""
        check_sampling(cfg)
        self.transfer: Transfer = Adapters(model) if model.has_adapters else WholeModel(model)
        self.options = EngineOptions.of(cfg.collect.engine)
        self.model = model
        self.bounds: Optional[Bounds] = None  # of the gap to the learner's log-probabilities, when it has begun
        self.log_folder: Optional[str] = None  # of the log of a server that it starts; None: that of the weights
        self._seconds = multiprocessing.RawValue('d')  # shared with a fork
        self.servers: List[Server] = []
        self.process: Optional[LaunchedServer] = None  # if the run has started one
        self._folder: Optional[str] = None  # of the run; weights are in one below it
        self._begin()

    def _begin(self) -> None:
        """What is this process's own: what its weights are called, and where they are."""
        self._pid, self._sent = os.getpid(), 0
        self._run = uuid.uuid4().hex[:8]  # versions of other runs differ

    @property
    def exact(self) -> bool:
        return self.bounds is not None and self.bounds.exact

    def bind(self, spec: NamedTuple, sampling: Sampling) -> None:
        self.spec, self.sampling = spec, sampling

    @property
    def seconds_sending(self) -> float:
        """Of the last weights, by this process or a fork."""
        return self._seconds.value

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Context in which no other process uses the servers."""
        with open(os.path.join(self._folder, 'turn'), 'w') as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            yield

    def load(self, weights: Dict[str, Tensor], version: int) -> None:
        """``weights`` are those of the model that it was made with."""
        if self.bounds is None:
            self._open()
            with self.turn():
                self.bounds = prove(self)  # the servers have the true weights then
            return
        if self._pid != os.getpid():
            self._begin()
            self.servers = [Server(server.url, MODEL, self.options.seconds) for server in self.servers]
        with self.turn():
            self.send()

    def send(self) -> None:
        """Give the servers the weights that the model has now."""
        start = time.perf_counter()
        self._sent += 1
        try:
            os.makedirs(self._weights_folder, exist_ok=True)
            self.transfer.write(self._weights_folder, self._version)
        except OSError as error:
            raise PeerError(
                f'{KEY}.folder = {self.options.folder!r}: weights cannot be written there ({error.strerror or error}).'
            ) from error
        for server in self.servers:
            self._bring_up(server, Unavailable('it has old weights'))
        self._seconds.value = time.perf_counter() - start

    def sample(self, request: RowRequest) -> Rollout:
        if request.forced:
            raise ConfigError(f'{KEY}: forces no tokens, as in a replay with --force. Set it to None.')
        if self.bounds is None or self._pid != os.getpid():  # it was closed, or forked
            self.load({}, 0)
        with self.turn():
            for server in self.servers:
                self._bring_up(server, Unavailable('it has ended, or has weights of another process'))
            return self._sample(request)

    def _sample(self, request: RowRequest) -> Rollout:
        greedy, spec, most = request.uniform is None, self.spec, self.spec.max_new_tokens
        limits = [most] * len(request.prompts) if request.limit is None else request.limit.clamp(max=most).tolist()
        params = self.params(greedy)
        rows = []
        for i, (prompt, limit) in enumerate(zip(request.prompts, limits)):
            seed = {} if greedy else dict(seed=int(request.uniform[i, 0] * 2 ** 53))
            own = dict(params, max_tokens=limit, stop_token_ids=list(spec.eos_token_ids), **seed)
            rows.append(self.row(prompt.tolist(), own))
        keys = [request.row_keys.get(i, (0, i)) for i in request.env_ids]
        answers = self.ask(rows, chosen_server(len(self.servers), keys), request.early_stop)
        if spec.ends is not None:
            answers = [cut(answer, spec.ends) for answer in answers]
        return rollout_of(answers, 0 if greedy else self.sampling.top_k or 0, greedy)

    def params(self, greedy: bool = False) -> Dict[str, Any]:
        """vLLM's ``SamplingParams`` for all rows."""
        vocabulary = range(self.spec.vocab_size, self.model.vocab_size)  # tokens that no text has, of many models
        bias = dict(logit_bias={str(i): NEVER for i in vocabulary}) if vocabulary else {}
        common = dict(n=1, ignore_eos=True, detokenize=False, logprobs=0, **bias)
        if greedy:
            return dict(common, temperature=0.0)
        s = self.sampling
        limits = dict(top_k=s.top_k, top_p=s.top_p, min_p=s.min_p)
        return dict(
            common,
            temperature=s.temperature,
            **{name: x
               for name, x in limits.items() if x is not None},
            **({} if s.top_k is None else dict(logprobs=min(s.top_k, self.spec.vocab_size)))
        )

    def row(self, prompt: List[int], params: Dict[str, Any]) -> Row:
        return Row(uuid.uuid4().hex, prompt, params, self._version)

    def ask(self, rows: Sequence[Row], servers: Sequence[int], early_stop: Optional[EarlyStop] = None) -> List[Answer]:
        """The answers to requests, each to one of the servers. Requests without an answer are sent again. Rows that
        ``early_stop`` ends have the tokens that they had then, or none."""
        found: Dict[int, Answer] = {}
        stopped: Set[int] = set()
        last, attempts = time.monotonic(), 0  # of the last answer, and attempts since then
        with ThreadPoolExecutor(min(len(rows), THREADS), thread_name_prefix='engine') as pool:
            try:
                while len(found) < len(rows):
                    missing = [i for i in range(len(rows)) if i not in found]
                    asked = {pool.submit(self.servers[servers[i]].ask, rows[i]): i for i in missing}
                    lost: Dict[int, Unavailable] = {}
                    for future in as_completed(asked):
                        i = asked[future]
                        try:
                            found[i] = future.result()
                            last, attempts = time.monotonic(), 0
                        except (Unavailable, CancelledError) as error:
                            if i not in stopped:
                                lost[servers[i]] = error
                            else:
                                found[i] = getattr(error, 'partial', NOTHING)
                        if early_stop is not None and i in found and i not in stopped:
                            now = early_stop.after_row([i for i in found if i not in stopped])
                            stopped.update(now)
                            for other in [other for other, line in asked.items() if line in now and other.cancel()]:
                                now.remove(asked[other])  # it has not begun
                            self._abort([rows[line] for line in now])
                    if lost:
                        self._recover(lost, last, attempts, len(rows) - len(found))
                        attempts += 1
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._abort(rows)
                raise
        return [found[i] for i in range(len(rows))]

    def _abort(self, rows: Sequence[Row]) -> None:
        for server in self.servers if rows else ():
            server.abort([row.name for row in rows])

    def close(self) -> None:
        for server in self.servers:
            server.close()
        if self.process is not None:
            self.process.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.servers, self.process, self._folder, self.bounds = [], None, None, None

    @property
    def _version(self) -> str:
        return f'{self._run}.{self._sent}'

    @property
    def _weights_folder(self) -> str:
        return os.path.join(self._folder, self._run)

    def _recover(self, lost: Dict[int, Unavailable], last: float, attempts: int, missing: int) -> None:
        """Wait for servers that have lost requests."""
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
        for number, why in lost.items():
            self._bring_up(self.servers[number], why)

    def _bring_up(self, server: Server, why: Unavailable) -> None:
        """Wait until a server answers and has the weights of now."""
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
                if server.version != self._version:
                    self.transfer.give(server, self._weights_folder, self._version)
                return
            except Unavailable as error:
                if time.monotonic() - start > self.options.patience:
                    if process is not None:
                        process.check()
                    raise PeerError(f'{KEY}: {server.url} does not take the weights: {error}') from error
                why = error
                time.sleep(1.0)

    def _open(self) -> None:
        """Connect to the servers, or start one."""
        options, longest = self.options, self.spec.max_prompt_length + self.spec.max_tokens
        try:
            self._folder = tempfile.mkdtemp(prefix='ding_grpo_', dir=options.folder)
        except OSError as error:
            raise ConfigError(f'{KEY}.folder = {options.folder!r}: {error.strerror}.') from error
        urls = options.url
        if options.launch is not None:
            model, port = os.path.join(self._folder, 'model'), free_port()
            self.transfer.save_base(model)
            given = self.transfer.arguments() + arguments(
                model, port, longest,
                str(self.model.lm.dtype).removeprefix('torch.'), self.sampling.top_k or 0, self.model.device.type
            )
            log = os.path.join(self.log_folder or self._folder, 'engine.log')
            click.echo(f'engine: vLLM begins, which takes a minute or more; its output is in {log}')
            self.process = LaunchedServer(options.launch, given, log, self._folder)
            urls = (f'http://127.0.0.1:{port}', )
        self.servers = [Server(url, MODEL, options.seconds) for url in urls]
        for server in self.servers:
            server.wait(options.patience, self.process and self.process.check or (lambda: None))
            check_tokenizer(server, self.spec)
