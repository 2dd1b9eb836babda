"""The policy as a model of OpenAI's interface, on 127.0.0.1, for the agents of this process."""
import asyncio
import concurrent.futures
import json
import logging
import os
import sys
import threading
from functools import cached_property
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from ding_common import ConfigError, describe

from .body import NEUTRAL, READ, Asked, Refused, chunks
from .episode import GRACE, OVER, Episode, task_of_episode
from .threads import Threads

try:
    import openai
    from aiohttp import web
except ImportError as error:
    raise ConfigError(
        f"env.task: {error}. Its type needs the extra 'agents'. Install it by pip install '.[agents]'."
    ) from error

# The package whose client openai's is: httpx, or its successor.
HTTPX = sys.modules[openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition('.')[0]]
QUIET = ('httpx', 'httpx2', 'openai', 'aiohttp.access')  # a line for each request
PLAIN = {*READ, *NEUTRAL} - {'prompt', 'echo', 'best_of', 'suffix'}  # keys of a chat's request
MOST_BYTES = 64 * 2 ** 20  # of a request


class Endpoint:
    """An HTTP server, and the event loop in which it and the agents run, in a thread of its own. All environments of a
    process share one; the last that closes ends it."""
    _shared: Optional['Endpoint'] = None
    _lock = threading.Lock()

    @classmethod
    def acquire(cls, temperature: float) -> 'Endpoint':
        """That of this process, which is not the one from which it was forked."""
        with cls._lock:
            found = cls._shared
            if found is None or found._pid != os.getpid() or found.dead:
                cls._shared = found = cls()
            found._users += 1
            found.temperature = temperature
            return found

    def release(self) -> None:
        with Endpoint._lock:
            self._users -= 1
            if self._users > 0 or self._pid != os.getpid():
                return
            if Endpoint._shared is self:
                Endpoint._shared = None
        if not self.dead:
            asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(3 * GRACE)
            self._over = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(GRACE)
            self.loop.close()

    def __init__(self) -> None:
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._pid, self._users, self.dead, self.temperature = os.getpid(), 0, False, 1.0
        self._over = False  # whether the loop may stop
        self._episodes: Dict[str, Episode] = {}
        self._idle: Dict[Any, str] = {}  # connections without a request, and the row that each has served last
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(task_of_episode)
        self._threads = Threads()
        self.loop.set_default_executor(self._threads)
        self._thread = threading.Thread(target=self._serve, name='agents', daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(), self.loop).result(6 * GRACE)

    def _serve(self) -> None:
        """Run the event loop, also after ``SystemExit`` in a task or a callback of an agent, with which it stops."""
        while not self._over:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                if not any([episode.exits(error) for episode in list(self._episodes.values())]):
                    logging.warning(f'a callback of an agent raised {describe(error)}: no row is dropped')

    async def _begin(self) -> None:
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post('/row/{key}/v1/chat/completions', self._post)
        app.router.add_post('/row/{key}/v1/completions', self._post)
        app.router.add_get('/row/{key}/v1/models', self._get)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, '127.0.0.1', 0)
        await site.start()
        self.address = 'http://127.0.0.1:%d' % site._server.sockets[0].getsockname()[1]
        self._client = _Client(
            base_url=self.address,
            api_key='none',
            timeout=None,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(transport=_Here(self))
        )

    async def _end(self) -> None:
        own = asyncio.current_task()
        agents = [task for task in asyncio.all_tasks() if task is not own]
        await self._runner.cleanup()
        await self._client.close()
        for task in agents:
            task.cancel()
        left = (await asyncio.wait(agents, timeout=GRACE))[1] if agents else ()
        if left:
            logging.warning(f'{len(left)} agent(s) go on after they were cancelled: they catch asyncio.CancelledError.')
        threads = await self._threads.left(GRACE)
        if threads:
            logging.warning(f'{threads} thread(s) of agents go on after the end: what they call does not return.')

    def client(self, key: str) -> 'openai.AsyncOpenAI':
        """A client of one row, which needs no socket. Others find the same at its ``base_url``."""
        client = self._client.with_options(base_url=f'{self.address}/row/{key}/v1')
        client.endpoint = self
        return client

    def open(self, episode: Episode) -> None:
        self._episodes[episode.key] = episode

    def forget(self, episode: Episode) -> None:
        """Refuse all requests of an episode, which has ended, and close its connections."""
        self._episodes.pop(episode.key, None)
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._disconnect, episode)

    def _disconnect(self, episode: Episode) -> None:
        episode.refuse_waiting()
        # A client that its agent has not closed keeps its connections for an hour.
        for connection in [each for each, key in self._idle.items() if key == episode.key]:
            del self._idle[connection]
            connection.force_close()

    def answers(self, seconds: float) -> bool:
        """Whether the event loop runs. If not, a coroutine occupies it and cannot be stopped."""
        if not self.dead:
            try:
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(seconds)
            except concurrent.futures.TimeoutError:
                self.dead = True
        return not self.dead

    async def _post(self, request: 'web.Request') -> 'web.StreamResponse':
        self._idle.pop(request.protocol, None)
        status, body = await self.respond(request.path, await request.read())
        streams = isinstance(body, list)
        return self._kept(request, await _stream(request, body) if streams else web.json_response(body, status=status))

    async def _get(self, request: 'web.Request') -> 'web.Response':
        models = [dict(id='policy', object='model', created=0, owned_by='')]
        return self._kept(request, web.json_response(dict(object='list', data=models)))

    def _kept(self, request: 'web.Request', response: 'web.StreamResponse') -> 'web.StreamResponse':
        """An answer after which its connection stays open as long as the episode."""
        key = request.match_info['key']
        if key in self._episodes:
            self._idle[request.protocol] = key
        else:
            response.force_close()
        return response

    async def respond(self, path: str, content: bytes) -> Tuple[int, Union[Dict, List[Dict]]]:
        """Status and body of the answer to a request, or the chunks of a stream."""
        try:
            _, _, key, _, *kind = path.split('/')
            if key not in self._episodes:
                raise Refused(OVER, status=410)
            asked = Asked.of(_read(content), kind[0] == 'chat', self.temperature)
            body = await self._episodes[key].ask(asked)
        except Refused as error:
            return error.status, error.body()
        return 200, chunks(body) if asked.streams else body


class _Client(openai.AsyncOpenAI):
    """
    Answers plain requests without HTTP, and those of chats without openai's search for what is to be converted. Both
    take nearly all of the time of a request. Copies of it, streams, and requests with options of their own take the way
    through ``_Here``.
    """

    endpoint: Optional[Endpoint] = None

    @cached_property
    def chat(self) -> Any:
        chat = super().chat
        chat.completions = _ChatCompletions(self)
        return chat

    async def post(self, path: str, *, body: Any = None, options: Any = {}, **given: Any) -> Any:
        more = {*options, *given} - {'security', 'cast_to', 'stream', 'stream_cls'}
        if self.endpoint is None or more or given.get('stream'):
            return await super().post(path, body=body, options=options, **given)
        return await self.answer(path, json.dumps(body), given['cast_to'])

    async def answer(self, path: str, content: str, cast_to: Any) -> Any:
        url = f"{self.base_url.path.rstrip('/')}{path}"
        status, found = await self.endpoint.respond(url, content.encode())
        if status == 200:
            return cast_to.model_validate(found)
        response = HTTPX.Response(status, json=found, request=HTTPX.Request('POST', f'{self.endpoint.address}{url}'))
        raise self._make_status_error_from_response(response)


class _ChatCompletions(openai.resources.chat.AsyncCompletions):
    """``client.chat.completions``. What is JSON but for messages of earlier answers is sent as it is."""

    async def create(self, **given: Any) -> Any:
        if self._client.endpoint is not None and {'model', 'messages'} <= given.keys() <= PLAIN:
            try:
                content = json.dumps(given, default=_of_answer)
            except TypeError:  # something that openai converts or leaves out
                pass
            else:
                return await self._client.answer('/chat/completions', content, openai.types.chat.ChatCompletion)
        return await super().create(**given)


def _of_answer(value: Any) -> Any:
    """A message or a call of an answer as JSON has it."""
    if isinstance(value, openai.BaseModel):
        return value.model_dump(exclude_unset=True, mode='json')
    raise TypeError


class _Here(HTTPX.AsyncBaseTransport):
    """What a client sends, answered in its own event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def handle_async_request(self, request: Any) -> Any:
        status, body = await self._endpoint.respond(request.url.path, await request.aread())
        if not isinstance(body, list):
            return HTTPX.Response(status, json=body)
        kind = {'content-type': 'text/event-stream'}
        return HTTPX.Response(status, headers=kind, content=b''.join(_events(body)))


def _read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(f'the body is not JSON: {error}') from error


def _events(body: List[Dict]) -> Iterator[bytes]:
    """Server-sent events."""
    for chunk in [*map(json.dumps, body), '[DONE]']:
        yield f'data: {chunk}\n\n'.encode()


async def _stream(request: 'web.Request', body: List[Dict]) -> 'web.StreamResponse':
    response = web.StreamResponse(headers={'Content-Type': 'text/event-stream'})
    await response.prepare(request)
    for event in _events(body):
        await response.write(event)
    await response.write_eof()
    return response
