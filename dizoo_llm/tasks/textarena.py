"""
Any game of one player of textarena. A dialogue of ``GuessTheNumber-v0`` that earns the full reward:

    prompt:  You are Player 0. You are playing Guess The Number. You have to guess the number between 1 and 20 ...
    turn 0:  [10]   reply:  The target number is higher.
    turn 1:  [15]   reply:  (the episode ends)

docs/results/textarena.md lists the games and what each of them did.
"""
import contextlib
import copy
import io
import random
import re
import threading
from typing import Any, Dict, Iterator, NamedTuple, Tuple

from ding_common import MOST, ConfigError, Rule, config_errors, describe, nearest
from dizoo_llm.base import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Turn
from dizoo_llm.base.task import DividedTask, check_values

_GLOBAL = threading.Lock()  # held while a game uses Python's global random numbers; DI-engine resets in threads
INVALID = 'garbage'  # no game takes it for a move
TRIED = 10  # invalid moves at most, before a run


@TASK_REGISTRY.register('textarena')
class TextArenaTask(DividedTask, MultiTurnTask):
    """
    Game i starts with ``reset(seed=i)``; what is drawn later depends on the seed of the group. Text that contains no
    bracket is put into brackets, as textarena does. Reward parts: ``reward``, that of the game at its end, and
    ``invalid``, the number of invalid moves, which has the weight 0. textarena ends a game at the second one in a row.
    A game that ``env.max_turns`` cuts has earned nothing.
    """

    weights = dict(reward=1.0, invalid=0.0)
    return_part = 'reward'
    seconds = 5.0

    def __init__(self, id: str, env_kwargs: Dict[str, Any] = {}, games: int = 100, eval_size: int = 0) -> None:
        """
        Arguments:
            - id (:obj:`str`): Of the game, such as 'GuessTheNumber-v0'.
            - env_kwargs (:obj:`Dict[str, Any]`): Arguments of the game, such as ``dict(max_number=7)``.
            - eval_size (:obj:`int`): Number of further games, for evaluation. 0 evaluates on the training games.
        """
        check_values(games=(games, Rule.integer(1, MOST)), eval_size=(eval_size, Rule.integer(0, MOST)))
        self._id, self._arguments = id, dict(env_kwargs)
        self._starts: Dict[int, _Start] = {}
        self._check()
        self._items, self._held_out = range(games), range(games, games + eval_size) or None

    def problem(self, index: int) -> Problem:
        seed = self._items[index]
        return Problem(self._start(seed).prompt, metadata=dict(seed=seed))

    def begin(self, problem: Problem, seed: int) -> '_Game':
        return _Game(copy.deepcopy(self._start(problem.metadata['seed']).env), seed)

    def respond(self, problem: Problem, state: '_Game', turn: Turn) -> Reply:
        text, invalid, done = state.step(turn.text)
        reward = float(state.reward) if done else 0.0
        return Reply(text, dict(reward=reward, invalid=float(invalid)), done)

    def _start(self, seed: int) -> '_Start':
        if seed not in self._starts:
            import textarena
            with _own_numbers(random.Random(seed)), contextlib.redirect_stdout(io.StringIO()):
                env = textarena.make(self._id, **self._arguments)
                env.reset(num_players=1, seed=seed)
            self._starts[seed] = _Start(env, _told(env))
        return self._starts[seed]

    def _check(self) -> None:
        """Play a game of invalid moves, so that a game that does not work is refused before the run."""
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # of nltk, about a download
                import textarena
        except ImportError as error:
            raise ConfigError(
                "env.task.type = 'textarena': needs the extra: pip install '.[textarena]' in the clone"
            ) from error
        games = [name for name in textarena.envs.registration.ENV_REGISTRY if not name.endswith(('-raw', '-train'))]
        if self._id not in games:
            raise ConfigError(
                f'env.task.id = {self._id!r}: textarena has no such game; {nearest(str(self._id), games)}'
            )
        told = f', env.task.env_kwargs = {self._arguments!r}' if self._arguments else ''
        where = f'env.task.id = {self._id!r}{told}'
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                env = self._start(0).env
        except Exception as error:  # a game may raise anything, for example where it needs a download
            missing = re.search(r"nltk\.download\('(\w+)'\)", str(error))
            told = f'it needs a download: python -m nltk.downloader {missing[1]}' if missing else describe(error)
            raise ConfigError(f'{where}: textarena cannot create the game ({told}).') from error
        if not isinstance(env.state, textarena.SinglePlayerState):
            raise ConfigError(f'{where}: is a game of several players, must be one of a single player.')
        game, done = _Game(copy.deepcopy(env), 0), False
        with config_errors(f'{where}: the game does not work', '.'):
            for _ in range(TRIED):
                done = done or game.step(INVALID)[-1]
            if done:
                float(game.reward)


class _Start(NamedTuple):
    """A game after its reset, which is copied for each episode, and what it tells the player."""
    env: Any
    prompt: str


class _Game:
    """An episode: a game, and the random numbers that it draws instead of Python's global ones."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env, self._numbers = env, random.Random(seed)

    def __deepcopy__(self, memo: Dict) -> '_Game':
        return self  # ``begin`` makes one for each episode

    def step(self, action: str) -> Tuple[str, bool, bool]:
        """Text of the reply, whether the move was invalid, and whether the game has ended."""
        state = self._env.state
        before = state.error_count
        with _own_numbers(self._numbers):
            done, _ = self._env.step(action)
        invalid = state.error_count > before or state.game_info[0]['invalid_move']
        return _told(self._env), bool(invalid), bool(done)

    @property
    def reward(self) -> Any:
        return self._env.state.rewards[0]


@contextlib.contextmanager
def _own_numbers(numbers: random.Random) -> Iterator[None]:
    """Let ``numbers`` take the place of Python's global random numbers, from which games draw."""
    with _GLOBAL:
        outer = random.getstate()
        random.setstate(numbers.getstate())
        try:
            yield
        finally:
            numbers.setstate(random.getstate())
            random.setstate(outer)


def _told(env: Any) -> str:
    """What the game has told since the last call, without the player's own turns."""
    from textarena import ObservationType
    messages = [m for m in env.state.get_current_player_observation() if m[2] is not ObservationType.PLAYER_ACTION]
    for _, text, _ in messages:
        if not isinstance(text, str):
            raise TypeError(f'it tells the player {text!r:.80}, must be text')
    return '\n'.join(text for _, text, _ in messages)
