"""
Any environment of gymnasium as a game in text. A dialogue of FrozenLake that earns the full reward, three squares from
the goal:

    prompt:  lake row2 column1
    turn 0:  right <eos>   reply:  row2 column2
    turn 1:  jump <eos>    reply:  invalid
    turn 2:  down <eos>    reply:  row3 column2
    turn 3:  right <eos>   reply:  row3 column3 (the episode ends)

A face turns observations into text, and text into actions. Save as ``module.py``, and set ``face='module:Lake'``:

    class Lake:
        words = ['lake', 'left', 'down', 'right', 'up', *map(str, range(16))]  # for a tokenizer made of these words

        def prompt(self, obs):  # the first observation
            return f'lake {obs}'

        def text(self, obs):
            return str(obs)

        def action(self, text):  # None: invalid
            return dict(left=0, down=1, right=2, up=3).get(text.strip())
"""
import inspect
from typing import Any, Dict, Hashable, List, Optional, Tuple

import gymnasium
import numpy as np
from gymnasium import spaces

from ding_common import MOST, ConfigError, Rule, config_errors, describe, import_name, nearest
from dizoo_llm.base import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Turn
from dizoo_llm.base.task import DividedTask, check_values

from .faces import FACES

INVALID = 'invalid'  # the reply to a turn that is not an action


@TASK_REGISTRY.register('gym_text')
class GymTextTask(DividedTask, MultiTurnTask):
    """
    Game i starts with ``reset(seed=i)``; what is drawn later depends on the seed of the group. A turn that is not an
    action is answered with ``invalid`` and steps nothing. A turn that a limit cut is an action if its face reads one in
    it, so faces should compare whole words. Reward parts: ``reward``, that of the environment, and ``invalid``, which
    has the weight 0: set ``env.reward_weights=dict(invalid=-0.1)`` to punish such turns. The state for
    ``advantage='anchor'`` is a discrete observation; others have none.
    """

    weights = dict(reward=1.0, invalid=0.0)
    return_part = 'reward'

    def __init__(
            self,
            id: str,
            face: Optional[str] = None,
            env_kwargs: Dict[str, Any] = {},
            games: int = 1000,
            eval_size: int = 0,
            distinct: bool = False,
    ) -> None:
        """
        Arguments:
            - id (:obj:`str`): Of the environment. ``env.task.import_names`` names modules that register it.
            - face (:obj:`Optional[str]`): ``'module:Class'``, see the module's docstring. A constructor with an \
                argument gets the environment. A face without ``words`` and ``chars`` needs ``env.tokenizer``. None: \
                the shipped face of FrozenLake, Taxi or Blackjack.
            - env_kwargs (:obj:`Dict[str, Any]`): Arguments of the environment. FrozenLake starts on any square \
                marked S: ``dict(desc=['SSSS', 'SHSH', 'SSSH', 'HSSG'])`` starts on any safe one.
            - eval_size (:obj:`int`): Number of further games, for evaluation. 0 evaluates on the training games.
            - distinct (:obj:`bool`): Whether to drop games whose prompt an earlier game has. Use it when few \
                prompts are possible and nothing else is random. There are then fewer than ``games``.
        """
        check_values(games=(games, Rule.integer(1, MOST)), eval_size=(eval_size, Rule.integer(0, MOST)))
        self._pool = _Pool.of(id, env_kwargs)
        self._face = self._create_face(id, face)
        words = getattr(self._face, 'words', None)
        self.words = None if words is None else [*dict.fromkeys([*words, INVALID])]
        chars = getattr(self._face, 'chars', None)
        self.chars = None if chars is None else ''.join(dict.fromkeys(chars + INVALID))
        seeds: List[int] = list(range(games + eval_size))
        if distinct:
            seeds = self._pool.once((face, games, eval_size), lambda: self._with_different_prompts(seeds))
            if len(seeds) <= eval_size:
                raise ConfigError(
                    f'env.task.eval_size = {eval_size}: only {len(seeds)} of {games + eval_size} games have different '
                    'prompts, so none is left for training. Lower it, or raise env.task.games.'
                )
        self._items, self._held_out = seeds[:len(seeds) - eval_size], seeds[len(seeds) - eval_size:] or None

    def problem(self, index: int) -> Problem:
        seed = self._items[index]
        return Problem(self._prompt(seed), metadata=dict(seed=seed))

    def begin(self, problem: Problem, seed: int) -> '_Game':
        game = _Game(self._pool)
        game.reset(problem.metadata['seed'])
        # Rows of a group draw the same numbers. The start is the problem's; what follows differs from visit to visit.
        game.env.unwrapped.np_random = np.random.default_rng(seed)
        return game

    def respond(self, problem: Problem, state: '_Game', turn: Turn) -> Reply:
        action = self._face.action(turn.text)
        if action is None:
            return Reply(INVALID, dict(reward=0.0, invalid=1.0), anchor=state.anchor)
        reward, done = state.step(action)
        return Reply(self._face.text(state.obs), dict(reward=reward, invalid=0.0), done, state.anchor)

    def _prompt(self, seed: int) -> str:
        game = _Game(self._pool)
        game.reset(seed)
        return self._face.prompt(game.obs)

    def _with_different_prompts(self, seeds: List[int]) -> List[int]:
        found: Dict[str, int] = {}
        for seed in seeds:
            found.setdefault(self._prompt(seed), seed)
        return list(found.values())

    def _create_face(self, id: str, name: Optional[str]) -> Any:
        where = f'env.task.face = {name!r}'
        kind = str(id).rpartition('/')[2].rpartition('-v')[0]
        if name is None and kind not in FACES:
            raise ConfigError(f"{where}: {id} has no shipped face, set 'module:Class'; {nearest(kind, FACES)}")
        found = FACES[kind] if name is None else import_name(name, 'env.task.face')
        with config_errors(f'{where}: cannot be created', '.'):
            face = found(_Game(self._pool).env) if inspect.signature(found).parameters else found()
        for method in ('prompt', 'text', 'action'):
            if not callable(getattr(face, method, None)):
                raise ConfigError(f'{where}: must be a class with the methods prompt, text and action; no {method}.')
        return face


class _Pool:
    """Idle environments of one kind, for all tasks of a process: a new one takes up to 100 ms (Taxi), a copy longer."""

    _ALL: Dict[str, '_Pool'] = {}

    def __init__(self, id: str, arguments: Dict[str, Any]) -> None:
        self._id, self._arguments = id, dict(arguments)
        self.idle: List[gymnasium.Env] = []
        self._found: Dict[Hashable, Any] = {}

    @classmethod
    def of(cls, id: str, arguments: Dict[str, Any]) -> '_Pool':
        """The pool of such environments, of which one has been created."""
        pool = cls._ALL.setdefault(repr((id, arguments)), cls(id, arguments))
        try:
            _Game(pool)
        except Exception as error:  # an environment may raise anything for its arguments
            told = f', env.task.env_kwargs = {dict(arguments)!r}' if arguments else ''
            raise ConfigError(f'env.task.id = {id!r}{told}: gymnasium cannot create it ({describe(error)})') from error
        return pool

    def take(self) -> gymnasium.Env:
        try:
            return self.idle.pop()  # not "if": DI-engine resets environments in threads
        except IndexError:
            return gymnasium.make(self._id, disable_env_checker=True, **self._arguments)

    def once(self, key: Hashable, find: Any) -> Any:
        """What ``find`` returned at the first call with this key."""
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]


class _Game:
    """An episode: an environment of the pool, which gets it back afterwards, and the last observation."""

    env: Optional[gymnasium.Env] = None

    def __init__(self, pool: _Pool) -> None:
        self._pool, self.env, self.obs = pool, pool.take(), None

    def __deepcopy__(self, memo: Dict) -> '_Game':
        return self  # ``begin`` makes one for each episode

    def __del__(self) -> None:
        if self.env is not None:
            self._pool.idle.append(self.env)

    def reset(self, seed: int) -> None:
        env, self.env = self.env, None  # the pool does not get back an environment that raises
        self.obs, _ = env.reset(seed=seed)
        self.env = env

    def step(self, action: Any) -> Tuple[float, bool]:
        """Reward, and whether the episode ends."""
        env, self.env = self.env, None
        self.obs, reward, terminated, truncated, _ = env.step(action)
        self.env = env
        return float(reward), bool(terminated or truncated)

    @property
    def anchor(self) -> Optional[Hashable]:
        return _discrete(self.env.observation_space, self.obs)


def _discrete(space: spaces.Space, obs: Any) -> Optional[Hashable]:
    """A discrete observation as plain data; None for any other."""
    if isinstance(space, spaces.Discrete):
        return int(obs)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(np.ravel(obs).tolist())
    if isinstance(space, spaces.Text):
        return obs
    if isinstance(space, spaces.Tuple):
        parts = tuple(map(_discrete, space.spaces, obs))
        return None if None in parts else parts
    return None
