"""One run of an agent, which lives in the event loop of the endpoint and is driven from the process's main thread."""
import asyncio
import queue
import secrets
import time
from contextvars import ContextVar
from typing import Any, Awaitable, Callable, Coroutine, Dict, List, NamedTuple, Optional, Sequence, Set, Union

from ding_common import describe

from .body import Asked, Message, Refused

OVER = 'the episode of this row has ended'
GRACE = 5.0  # seconds for an agent to end after it was cancelled, and for the event loop to answer

_TASKS: ContextVar[Optional[Set[asyncio.Task]]] = ContextVar('tasks of an episode', default=None)


def task_of_episode(loop: asyncio.AbstractEventLoop, coroutine: Coroutine, **options: Any) -> asyncio.Task:
    """A task factory. An episode ends all tasks that its agent has begun."""
    task, own = asyncio.Task(coroutine, loop=loop, **options), _TASKS.get()
    if own is not None:
        own.add(task)
        task.add_done_callback(own.discard)
    return task


class Request(NamedTuple):
    """A request that waits for its answer."""
    asked: Asked
    future: asyncio.Future
    at: float  # when it came


class Returned(NamedTuple):
    """The end of a run: what the agent returned, or why it did not."""
    value: Any
    failed: Optional[str]
    at: float


class Episode:
    """Runs ``run(problem, client)``. Its requests come one by one, in the order in which they arrive. ``seconds``
    limits the time that the agent takes itself, without that of the model and of other rows."""

    def __init__(
            self,
            endpoint: Any,
            run: Callable[..., Awaitable],
            problem: Any,
            seconds: float,
            most: int,
            direct: bool = False
    ) -> None:
        """``endpoint``: the ``Endpoint``. ``most``: how many requests may wait at a time. ``direct``: whether the
        client is ``Direct``, in place of OpenAI's."""
        self._direct = direct
        self.key, self._endpoint, self._most = secrets.token_urlsafe(12), endpoint, most
        self._events: 'queue.SimpleQueue[Union[Request, Returned]]' = queue.SimpleQueue()
        self._left, self._seconds, self._since = seconds, seconds, time.monotonic()
        self._waiting: Set[asyncio.Future] = set()
        self._own: Set[asyncio.Task] = set()  # tasks that the agent has begun
        self._exit: Optional[BaseException] = None  # what one of them raised
        self.ended: Optional[Returned] = None
        self._over = False  # whether further requests are refused
        endpoint.open(self)
        self._task = asyncio.run_coroutine_threadsafe(self._run(run, problem), endpoint.loop)

    async def _run(self, run: Callable[..., Awaitable], problem: Any) -> None:
        value, failed, self._main = None, None, asyncio.current_task()
        _TASKS.set(self._own)
        try:
            value = await run(problem, Direct(self) if self._direct else self._endpoint.client(self.key))
        except asyncio.CancelledError:
            failed = 'the agent was cancelled'
        except BaseException as error:  # an agent may raise anything
            failed = f'the agent raised {describe(error)}'
        if self._exit is not None:
            failed = f'a task of the agent raised {describe(self._exit)}'
        for task in self._own:
            task.cancel()
        self._over = True
        self._endpoint.forget(self)
        self._events.put(Returned(value, failed, time.monotonic()))

    async def ask(self, asked: Asked) -> Dict[str, Any]:
        """The answer to a request, in the event loop."""
        if self._over:
            raise Refused(OVER, status=410)
        if len(self._waiting) >= self._most:
            raise Refused(f'{self._most} requests of this row wait already', status=429)
        future = self._endpoint.loop.create_future()
        self._waiting.add(future)
        self._events.put(Request(asked, future, time.monotonic()))
        try:
            return await future
        finally:
            self._waiting.discard(future)

    def next(self) -> Union[Request, Returned]:
        """The next request, or the end. An agent that takes too long is cancelled."""
        while True:
            event = self._wait()
            if isinstance(event, Request) and event.future.cancelled():  # the client has gone
                continue
            self._left -= max(event.at - self._since, 0.)
            self.ended = event if isinstance(event, Returned) else None
            return event

    def _wait(self) -> Union[Request, Returned]:
        try:
            return self._events.get(timeout=max(self._since + self._left - time.monotonic(), 0.001))
        except queue.Empty:
            self.cancel()
            why = f'the agent took more than env.task.seconds = {self._seconds:g}'
            if not self._endpoint.answers(GRACE):
                why = f'{why} and blocks the event loop, in which all agents run: it must await, and not wait'
            return Returned(None, why, time.monotonic())

    def answer(self, request: Request, body: Union[Dict[str, Any], Refused]) -> None:
        """Answer a request. From here on the agent's own time counts."""
        self._since = time.monotonic()

        def give() -> None:
            if request.future.done():
                return
            if isinstance(body, Refused):
                request.future.set_exception(body)
            else:
                request.future.set_result(body)

        self._endpoint.loop.call_soon_threadsafe(give)

    def cancel(self) -> None:
        """End the agent, if it still runs. Requests that come later are refused."""
        self._over = True
        self._task.cancel()
        self._endpoint.forget(self)

    def exits(self, error: BaseException) -> bool:
        """End the agent if a task that it has begun raised this, which would end its program."""
        if not any(task.done() and not task.cancelled() and task.exception() is error for task in self._own):
            return False
        self._exit, self._over = error, True
        self._main.cancel()
        return True

    def refuse_waiting(self) -> None:
        """Nobody answers these any more. Clients in threads and in other processes are not cancelled with the agent."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(Refused(OVER, status=410))


class Direct:
    """The client of a task that asks without HTTP and JSON."""

    def __init__(self, episode: Episode) -> None:
        self._episode, self._answered = episode, False

    async def chat(self, messages: List[Message], tools: Sequence[Dict[str, Any]] = ()) -> Optional[Message]:
        """The answer to messages, as a message. None if a limit leaves no room for it after an earlier answer."""
        try:
            asked = Asked.of(dict(messages=messages, tools=list(tools)), True, 1.0)
            body = await self._episode.ask(asked._replace(any_arguments=True))
        except Refused as error:
            if error.code is None or not self._answered:
                raise
            return None
        self._answered = True
        return body['choices'][0]['message']
