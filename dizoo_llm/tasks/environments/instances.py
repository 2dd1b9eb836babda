"""Instances of an environment, each in a thread of its own, so that one that hangs holds up no other row."""
import asyncio
import inspect
import queue
import threading
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from ding_common import is_async

NOT_TOOLS = ('reset', 'get_reward')
Outcome = Tuple[Any, Optional[BaseException]]  # of a call: its value, or what it raised


class Instance:
    """
    An instance and its thread, in which it is made and all its methods run that are not coroutines: it may hold what
    belongs to one thread, such as a connection to SQLite. The thread ends when nobody holds the instance any more.
    """
    environment: Any

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._calls: 'queue.SimpleQueue' = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._calls, ), name='environment', daemon=True).start()
        weakref.finalize(self, self._calls.put, None)

    async def value(self, function: Callable, /, **arguments: Any) -> Any:
        """What a function returns. Raises what it raises."""
        value, error = await self.call(function, **arguments)
        if error is not None:
            raise error
        return value

    async def call(self, function: Callable, /, **arguments: Any) -> Outcome:
        """Call a function in the thread, or await a coroutine function here."""
        if is_async(function):
            try:
                return await function(**arguments), None
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # a user's method may raise anything, and SystemExit would end the loop
                return None, error
        future = self.loop.create_future()
        self._calls.put((function, arguments, future))
        return await future


def tools_of(environment: Any) -> Dict[str, Callable]:
    """The functions that a model may call: public methods that the class defines or inherits."""
    members = inspect.getmembers(type(environment), inspect.isfunction)
    names = [name for name, _ in members if not name.startswith('_') and name not in NOT_TOOLS]
    return {method.__name__: method for method in (getattr(environment, name) for name in names)}


def _work(calls: 'queue.SimpleQueue') -> None:
    for function, arguments, future in iter(calls.get, None):
        try:
            outcome: Outcome = (function(**arguments), None)
        except BaseException as error:  # a user's method may raise anything
            outcome = None, error
        try:
            future.get_loop().call_soon_threadsafe(_give, future, outcome)
        except RuntimeError:  # the loop has been closed: the run has ended, and nobody waits
            return


def _give(future: asyncio.Future, outcome: Outcome) -> None:
    if not future.done():  # the row has been cancelled
        future.set_result(outcome)


class Pool:
    """
    Idle instances by the name of their environment, which are made once and reset for each row, as TRL does. One whose
    row did not end well is not used again.
    """

    def __init__(self, factories: Dict[Optional[str], Callable[[], Any]]) -> None:
        self._factories = factories
        self._idle: Dict[Optional[str], List[Instance]] = {name: [] for name in factories}

    async def take(self, name: Optional[str]) -> Instance:
        idle, loop = self._idle[name], asyncio.get_running_loop()
        while idle:
            found = idle.pop()
            if found.loop is loop:  # and not that of the process from which this one was forked
                return found
        made = Instance()
        made.environment = await made.value(self._factories[name])
        return made

    def give(self, name: Optional[str], instance: Instance) -> None:
        self._idle[name].append(instance)
