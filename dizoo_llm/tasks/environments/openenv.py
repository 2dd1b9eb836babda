"""
Environments behind a server of OpenEnv (https://github.com/meta-pytorch/OpenEnv). A dialogue with its echo environment,
whose reward is 0.1 for each character:

    user:       Echo environment ready!
    assistant:  hello               (reward 0.5)
    user:       hello
    assistant:  hello world         (reward 1.1)
"""
import asyncio
import json
import re
import urllib.request
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import lru_cache
from typing import Any, AsyncIterator, Callable, Coroutine, Dict, List, Optional, Tuple

from ding_common import MOST, ConfigError, Rule, describe, import_name
from dizoo_llm.base import TASK_REGISTRY
from dizoo_llm.base.task import check_values

from ..agent import AgentTask
from .dialogue import with_observation

INVALID = 'invalid'  # the reply to a turn that is not an action
CONNECTING, CLOSING = 10.0, 2.0  # seconds
OWN = ('done', 'reward', 'metadata')  # fields of every observation and action
FULL = 'code: CAPACITY_REACHED'
REJECTED = '(code: VALIDATION_ERROR)'  # at the end of a server's message about an action


@TASK_REGISTRY.register('openenv')
class OpenEnvTask(AgentTask):
    """
    Episodes of an OpenEnv server. Each row has a session of its own, which is kept for later rows: the server needs
    ``max_concurrent_envs`` of at least the number of rows. A turn that is not an action is answered with ``invalid``
    and steps nothing. Each turn has a reward: ``reward``, that of its step, and ``invalid``, 1 without a step, of
    weight 0.
    """

    direct = True

    def __init__(
            self,
            url: str,
            problems: Any = None,
            prompt: Any = '',
            action: Optional[str] = None,
            text: Optional[str] = None,
            reward: Optional[str] = None,
            games: int = 1000,
            eval_problems: Any = None,
            eval_size: int = 0,
            seed: int = 0,
            weights: Optional[Dict[str, float]] = None,
            return_part: Optional[str] = None,
            seconds: float = 60.0,
    ) -> None:
        """
        Arguments:
            - url (:obj:`str`): Of the server, ``'http://127.0.0.1:8000'``.
            - problems (:obj:`Any`): Data as the task ``agent`` reads them. The columns of a row are the arguments of \
                ``reset``, without ``prompt``. None: ``games`` rows, each with a ``seed``.
            - prompt (:obj:`Any`): Text or messages before the first observation, for rows without a column ``prompt``.
            - action (:obj:`Optional[str]`): ``'module:function'`` from the text of a turn to an action, a dict, or \
                None if it is invalid. None: the text is the only field that the server's actions require.
            - text (:obj:`Optional[str]`): ``'module:function'`` from an observation, a dict, to text. None: its only \
                field of text, or all fields as JSON.
            - reward (:obj:`Optional[str]`): ``'module:function'`` from the rewards of the steps and the last state \
                of the server, a dict, to a number or a dict of the parts of ``weights``. None: each turn has that of \
                its step.
            - eval_problems (:obj:`Any`): The same as ``problems``, for evaluation; None holds out ``eval_size``.
            - eval_size (:obj:`int`): Maximum number of evaluation problems; 0 uses all, or the training problems.
            - seconds (:obj:`float`): Time that the server may take in an episode.
        """
        address = Rule('an address, http://... or https://...', re.compile('https?://').match)
        check_values(url=(url, address), games=(games, Rule.integer(1, MOST)))
        given = dict(action=action, text=text, reward=reward)
        functions = {key: import_name(name, f'env.task.{key}') for key, name in given.items() if name is not None}
        self._action: Callable = functions['action'] if 'action' in functions else _action_of_text(url)
        self._text: Callable = functions.get('text', text_of)
        self._reward: Optional[Callable] = functions.get('reward')
        self._prompt, self._sessions = prompt, Sessions(_client(), url, seconds)
        if reward is None:
            weights = {**dict(reward=1.0, invalid=0.0), **({} if weights is None else weights)}
        rows = [dict(seed=i) for i in range(games)] if problems is None else problems
        super().__init__(self._run, rows, eval_problems, eval_size, seed, weights, return_part, seconds)

    async def _run(self, row: Dict[str, Any], client: Any) -> Any:
        """An episode. A limit that leaves no room for another turn ends it."""
        columns = {key: value for key, value in row.items() if key != 'prompt'}
        async with self._sessions.one(columns) as (session, result):
            messages = with_observation(row.get('prompt', self._prompt), self._told(result.observation))
            rewards: List[Optional[float]] = []  # of turns, None for one without a step
            while not result.done:
                answer = await client.chat(messages)
                if answer is None:
                    break
                taken = await self._step(session, answer['content'] or '')
                result = taken or result
                rewards.append(None if taken is None else float(taken.reward or 0.))
                told = INVALID if taken is None else self._told(result.observation)
                messages = [*messages, answer, dict(role='user', content=told)]
            if self._reward is None:
                return [dict(reward=reward or 0., invalid=float(reward is None)) for reward in rewards]
            return self._reward([each for each in rewards if each is not None], await session.state())

    async def _step(self, session: Any, text: str) -> Any:
        """What the server answers to a turn without its thoughts; None if the turn is not an action."""
        action = self._action(text.rpartition('</think>')[2].strip())
        try:
            return None if action is None else await session.step(action)
        except RuntimeError as error:
            if not str(error).endswith(REJECTED):
                raise
            return None

    def _told(self, observation: Dict[str, Any]) -> str:
        text = self._text(observation)
        if not isinstance(text, str):
            raise TypeError(f'env.task.text returned {text!r:.200} for {observation!r:.200}, must return text')
        return text


class Sessions:
    """Connections to a server, each with an environment of its own. They are closed with the loop of the agents."""

    def __init__(self, kind: Callable, url: str, seconds: float) -> None:
        self._make = lambda: kind(base_url=url, message_timeout_s=seconds)
        self._idle: List[Tuple[Any, asyncio.Task]] = []

    @asynccontextmanager
    async def one(self, columns: Dict[str, Any]) -> AsyncIterator[Tuple[Any, Any]]:
        """A session and what its ``reset`` returned. One whose row fails or is cancelled is closed."""
        client, held, result = await self._begun(columns)
        try:
            yield client, result
        except BaseException:
            await _closed(held)
            raise
        self._idle.append((client, held))

    async def _begun(self, columns: Dict[str, Any]) -> Tuple[Any, asyncio.Task, Any]:
        """A session with the result of its ``reset``. One that was lost while no row had it is replaced."""
        from websockets.exceptions import ConnectionClosed
        while True:
            kept = self._kept()
            client, held = kept or await self._connected()
            try:
                return client, held, await client.reset(**columns)
            except BaseException as error:
                await _closed(held)
                lost = isinstance(error, ConnectionClosed)
                if kept is None and (lost or FULL in str(error)):
                    told = 'the server has no room for a session: it needs max_concurrent_envs of at least the rows'
                    raise ConnectionError(told) from error
                if kept is None or not lost:
                    raise

    def _kept(self) -> Optional[Tuple[Any, asyncio.Task]]:
        while self._idle:
            client, held = self._idle.pop()
            if held.get_loop() is asyncio.get_running_loop():
                return client, held
        return None

    async def _connected(self) -> Tuple[Any, asyncio.Task]:
        client = self._make()
        await _apart(client.connect())
        return client, _apart(_hold(client))


def _apart(coroutine: Coroutine) -> asyncio.Task:
    """A task that goes on after the episode that begins it, with all that it begins."""
    return Context().run(asyncio.get_running_loop().create_task, coroutine)


async def _closed(held: asyncio.Task) -> None:
    held.cancel()
    await asyncio.wait({held})


async def _hold(client: Any) -> None:
    """Keep a session until the task is cancelled, as by the end of the loop."""
    try:
        await asyncio.Event().wait()
    finally:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(client.close(), CLOSING)


def text_of(observation: Dict[str, Any]) -> str:
    """The only text in an observation, or all its fields as JSON."""
    fields = {key: value for key, value in observation.items() if key not in OWN}
    texts = [value for value in fields.values() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else json.dumps(fields)


def _action_of_text(url: str) -> Callable[[str], Dict[str, Any]]:
    """Actions whose only required field is text, by the schema of the server."""
    schema = _schema(url)
    required = schema.get('required', [])
    if len(required) != 1 or schema['properties'][required[0]].get('type') != 'string':
        fields = {key: value.get('type') for key, value in schema.get('properties', {}).items() if key not in OWN}
        raise ConfigError(
            f"env.task.action = None: an action of {url} has the fields {fields}, and requires {required}: it is not "
            "one text. Set 'module:function', from the text of a turn to a dict of these fields."
        )
    return lambda text: {required[0]: text}


@lru_cache(maxsize=8)
def _schema(url: str) -> Dict[str, Any]:
    """The schema of a server's actions."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/schema", timeout=CONNECTING) as response:
            return json.load(response)['action']
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'env.task.url = {url!r}: the schema of its actions cannot be read ({describe(error)}). Start the server, '
            'or set env.task.action.'
        ) from error


def _client() -> Callable:
    try:
        from openenv.core.generic_client import GenericEnvClient
    except ImportError as error:
        raise ConfigError(f"env.task.type = 'openenv': {error}. Install it by pip install '.[openenv]'.") from error
    return GenericEnvClient
