"""A server of vLLM, asked over HTTP: token ids go in, token ids and log-probabilities come out."""
import logging
import math
import time
import uuid
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import httpx
from torch import Tensor

from ding_common import ConfigError, PeerError
from ding_common.retry_after import retry_after

from .answers import NOTHING, Answer
from .options import KEY

CONNECT = 5.0  # seconds
IDLE = 2.0  # seconds until a connection is given up, before the server does so
TRANSIENT = (408, 429, 500, 502, 503, 504)
OWN_PREFIX = 'generate-tokens-'  # of names of requests in vLLM, which answers without it, and ends nothing without it
LOWEST = -9000.0  # nats; vLLM sends -9999 in place of NaN and -Inf


class Unavailable(Exception):
    """A server did not answer a request, and may answer it later."""

    def __init__(self, message: str, wait: float = 0.0, failed: bool = False, partial: Answer = NOTHING) -> None:
        """``wait``: seconds that the server asks for; ``failed``: whether it has run, and failed; ``partial``: what
        it had sampled of a row that it was asked to end."""
        super().__init__(message)
        self.wait, self.failed, self.partial = wait, failed, partial


class Row(NamedTuple):
    """What a server is asked for: a row, or the rest of one."""
    name: str  # of the request
    prompt: List[int]
    params: Dict[str, Any]  # of vLLM's ``SamplingParams``
    version: str  # of the weights that it must be sampled with
    # (T, ) random numbers in [0, 1), of which that of the next token is the seed; None: ``params`` has it
    uniform: Optional[Tensor] = None

    def after(self, known: Answer, version: str, most: Optional[int] = None) -> 'Row':
        """The request for the rest of the row, or for at most so many tokens of it, with other weights."""
        n = len(known.ids)
        rest = self.params['max_tokens'] - n
        params = dict(self.params, max_tokens=rest if most is None else min(rest, most))
        if self.uniform is not None:
            params['seed'] = int(self.uniform[n] * 2 ** 53)
        return self._replace(name=uuid.uuid4().hex, prompt=self.prompt + known.ids, params=params, version=version)


class Server:

    def __init__(self, url: str, model: str, seconds: float) -> None:
        """``model``: the name under which it serves; ``seconds``: for one answer."""
        self.url, self._base, self._model = url, model, model
        logging.getLogger('httpx').setLevel(logging.WARNING)  # else a line for each row
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE)
        timeout = httpx.Timeout(seconds, connect=CONNECT)
        # proxies of the environment are for other machines
        self._client = httpx.Client(base_url=url, timeout=timeout, limits=limits, trust_env=False)
        self._connected = False  # whether its weights can be replaced

    def close(self) -> None:
        self._client.close()

    def ask(self, row: Row) -> Answer:
        """Sample a row. Raises ``Unavailable``, or ``PeerError`` if the answer is not one to the request."""
        body = dict(request_id=row.name, model=self._model, token_ids=row.prompt, sampling_params=row.params)
        answer = self._post('/inference/v1/generate', body)
        try:
            choice, = answer['choices']
            reason, found = choice['finish_reason'], _answer(choice)
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f'{self.url} answers in another form than vLLM 0.32: {error!r} in {answer!r:.200}')
        if reason not in ('stop', 'length', 'abort'):
            raise Unavailable(f'the request has ended with {reason!r}')
        versions = set(found.versions)
        if found.ids and versions != {row.version}:
            raise Unavailable(f'the row is of weights {sorted(versions)}, not {row.version}')
        ids, least = found.ids, reason != 'abort'
        if not least <= len(ids) == len(found.logp) <= row.params['max_tokens'] or min(ids, default=0) < 0:
            raise PeerError(
                f'{self.url} has answered {len(ids)} tokens with {len(found.logp)} log-probabilities, where at most '
                f"{row.params['max_tokens']} were asked for"
            )
        if reason == 'abort':
            raise Unavailable('the request was ended', partial=found)
        return found

    def abort(self, names: Sequence[str]) -> None:
        """End requests that still run, after an error, which what fails here must not replace."""
        try:
            self._post('/inference/v1/abort_requests', dict(request_ids=[f'{OWN_PREFIX}{name}' for name in names]))
        except (ConfigError, Unavailable) as error:
            logging.warning(f'{self.url} does not end the requests that still run: {error}')

    def load(self, path: str, version: str) -> None:
        """Take the weights of a file, under a name, and forget what was read with others."""
        if not self._connected:
            self._post('/init_weight_transfer_engine', dict(init_info={}))
            self._connected = True
        self._post('/pause', mode='wait')  # vLLM 0.32 ends if an update begins while requests run
        try:
            self._post('/start_weight_update')
            self._post('/update_weights', dict(update_info=dict(path=path)))
            self._post('/finish_weight_update', dict(weight_version=version))
            self._post('/reset_prefix_cache')
        finally:
            self._post('/resume')

    def load_adapter(self, folder: str, version: str) -> None:
        """Take adapters, under the name of their version, and drop others."""
        known = [entry['id'] for entry in self._get('/v1/models')['data']]
        if version not in known:
            self._post('/v1/load_lora_adapter', dict(lora_name=version, lora_path=folder))
        for name in known:
            if name not in (self._base, version):
                self._post('/v1/unload_lora_adapter', dict(lora_name=name))
        self._post('/update_weight_version', dict(new_version=version))
        self._model = version

    @property
    def version(self) -> str:
        """Of the weights that it has."""
        return str(self._get('/weight_info').get('weight_version'))

    @property
    def computes_in(self) -> str:
        """The type of its model."""
        return self._post('/collective_rpc', dict(method='ding_grpo'))['results'][0]['dtype']

    def tokens_of(self, text: str) -> Optional[List[int]]:
        """How its tokenizer encodes a text; None without one."""
        try:
            found = self._post('/tokenize', dict(model=self._base, prompt=text, add_special_tokens=False))
        except (ConfigError, Unavailable):  # started with --skip-tokenizer-init
            return None
        return found.get('tokens')

    def wait(self, patience: float, ended: Any = lambda: None) -> None:
        """Wait until it answers. ``ended``: called now and then; raises if it cannot answer any more."""
        start = time.monotonic()
        while True:
            ended()
            try:
                self._get('/health', timeout=CONNECT)
                return
            except Unavailable as error:
                if time.monotonic() - start > patience:
                    raise PeerError(f'{self.url} does not answer for {patience:g} s, {KEY}.patience: {error}')
            self._connected = False  # it may be another process when it answers again
            time.sleep(min(1.0, patience / 10))

    def _get(self, path: str, **kwargs: Any) -> Dict[str, Any]:
        return self._json(path, lambda: self._client.get(path, **kwargs))

    def _post(self, path: str, body: Optional[Dict] = None, **params: Any) -> Dict[str, Any]:
        return self._json(path, lambda: self._client.post(path, json=body or {}, params=params))

    def _json(self, path: str, send: Any) -> Dict[str, Any]:
        try:
            response = send()
        except httpx.TransportError as error:
            raise Unavailable(f'{type(error).__name__}: {error}') from error
        if response.status_code in TRANSIENT:
            asked_for = retry_after(response.headers) or 0.0
            raise Unavailable(f'{path}: {_said(response)}', asked_for, response.status_code == 500)
        if response.status_code == 404:
            raise ConfigError(
                f'{KEY}: {self.url}{path}: not found. Start the server as docs/guides/vllm.md says: with '
                '--enable-scale-out, --worker-extension-cls and VLLM_SERVER_DEV_MODE=1.'
            )
        if response.status_code >= 400:
            raise ConfigError(f'{KEY}: {self.url}{path} refuses: {_said(response)}')
        if 'json' not in response.headers.get('Content-Type', ''):
            return {}
        try:
            return response.json()
        except ValueError as error:
            raise Unavailable(f'{path}: the answer is not JSON: {response.text!r:.200}') from error


def _answer(choice: Dict[str, Any]) -> Answer:
    """A row in the form of a server."""
    ids, content = choice['token_ids'] or [], choice['logprobs']['content']
    logp = [float(token['logprob']) for token in content]
    top = [[entry['token_id'] for entry in token['top_logprobs'] if entry['logprob'] > LOWEST] for token in content]
    versions = [span['version'] for span in choice['weight_versions'] for _ in range(span['start'], span['end'])]
    return Answer(ids, [p if p > LOWEST else math.nan for p in logp], top, versions)


def _said(response: httpx.Response) -> str:
    return f"{response.status_code} {' '.join(response.text.split()):.300}"
