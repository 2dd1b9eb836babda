"""
Problems that reasoning-gym (https://github.com/open-thought/reasoning-gym, an extra of this package) makes and scores.
One of its generator ``spell_backward``, and a right completion:

    prompt:     Spell this word backward (example: sun -> nus): fairly
    completion: ylriaf
"""
import copy
import inspect
import json
import os
import random
import re
from functools import cached_property, lru_cache
from typing import Any, Dict, List, Optional, Set, Tuple

from dizoo_llm.rewards import EXTRACTORS, WRITTEN
from ding_common import ConfigError, Rule, nearest

from .base import TASK_REGISTRY, Problem, Task

_HELD_OUT: Dict[str, Tuple[List[Problem], int]] = {}  # by config: the problems, and how many items they took

_EVALUATES = re.compile(r'\b(eval|exec|parse_expr|sympify)\(')
# Generators that make a list of all their items at once; what is behind it begins anew.
_LISTED = {'acre', 'gsm_symbolic', 'list_functions', 'word_ladder'}
_LISTED_SIZE = 50_000
# Generators that iterate over sets: another process, another problem.
_BY_HASH = {'isomorphic_strings', 'knight_swap', 'polynomial_multiplication', 'ransom_note'}
_JUNK = ('nan', 'nan+nanj', 'inf', '?', 'x y')  # the answer to no problem


@lru_cache(maxsize=64)
def _dataset(name: str, seed: int, config: str) -> Any:
    """A generator, which may hold a long list of words: one in a process."""
    from reasoning_gym import create_dataset
    return create_dataset(name, seed=seed, size=_LISTED_SIZE if name in _LISTED else 2 ** 31 - 1, **json.loads(config))


@lru_cache(maxsize=64)
def _why_not(name: str, seed: int, config: str) -> Optional[str]:
    """
    Overview:
        What forbids a generator, if something does. A model's text is data and is never evaluated, junk must earn \
        nothing, and a problem must be the same in every process.
    """
    from reasoning_gym.factory import DATASETS
    if _EVALUATES.search(inspect.getsource(DATASETS[name][0].score_answer)):
        return 'its scorer evaluates answers as Python; what a model writes is never run here'
    if name in _BY_HASH and os.environ.get('PYTHONHASHSEED', 'random') == 'random':
        return 'its problems differ from process to process; set the environment variable PYTHONHASHSEED=0'
    dataset = _dataset(name, seed, config)
    for junk in _JUNK:
        earned = sum(_score(dataset, junk, dataset[i]) for i in range(5)) / 5
        if earned >= 0.5:
            return f'its scorer pays {earned:.2f} for {junk!r}, which answers nothing'
    return None


def _score(dataset: Any, given: str, entry: Dict[str, Any]) -> float:
    """The generator's score in [0, 1]. Many a scorer raises over a text that it cannot read: then it is wrong."""
    try:
        score = float(dataset.score_answer(given, entry))
    except Exception:
        return 0.0
    return min(max(score, 0.0), 1.0) if score == score else 0.0


def _check_choice(name: Optional[str], config: Optional[Dict], mixture: Optional[List[Dict]]) -> None:
    if (name is None) == (mixture is None):
        raise ConfigError(f'env.task.name = {name!r}, env.task.mixture = {mixture!r}: exactly one is needed.')
    if mixture is not None and config is not None:
        raise ConfigError(f'env.task.config = {config!r}: with a mixture each part has its own.')
    if mixture is not None and not (isinstance(mixture, list) and mixture and all(isinstance(p, dict)
                                                                                  for p in mixture)):
        raise ConfigError(f'env.task.mixture = {mixture!r}: must be a list of dicts with name, config and weight.')


def _check_values(size: int, eval_size: int, seed: int, template: str, answer_in: str) -> None:
    for key, value, rule in (('size', size, Rule.integer(1)), ('eval_size', eval_size, Rule.integer(1)),
                             ('seed', seed, Rule.integer(0))):
        if not rule.holds(value):
            raise ConfigError(f'env.task.{key} = {value!r}: must be {rule.allowed}.')
    if answer_in not in EXTRACTORS:
        raise ConfigError(f'env.task.answer_in = {answer_in!r}: {nearest(str(answer_in), EXTRACTORS)}')
    if '{question}' not in template:
        raise ConfigError(f'env.task.template = {template!r}: must hold {{question}}.')


def _generator(where: str, part: Dict, seed: int, right_by_score: bool) -> Any:
    """The generator of a part of a mixture."""
    import reasoning_gym
    if set(part) - {'name', 'config', 'weight'} or not part.get('weight', 1) > 0:
        raise ConfigError(f'{where} = {part!r}: must be a dict of name, config and a positive weight.')
    if part.get('name') not in reasoning_gym.factory.DATASETS:
        raise ConfigError(
            f"{where}.name = {part.get('name')!r}: "
            f"{nearest(str(part.get('name')), reasoning_gym.factory.DATASETS)}"
        )
    try:
        config = json.dumps(part.get('config') or {}, sort_keys=True)
        why_not = _why_not(part['name'], seed, config)
        dataset = _dataset(part['name'], seed, config)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f'{where}.config = {part.get("config")!r}: {error}') from error
    if why_not is not None:
        raise ConfigError(f"{where}.name = {part['name']!r}: {why_not}.")
    if dataset[0]['answer'] is None and not right_by_score:
        raise ConfigError(
            f"{where}.name = {part['name']!r}: its problems have no reference answer; set "
            'env.task.right_by_score = True.'
        )
    return dataset


@TASK_REGISTRY.register('reasoning_gym')
class ReasoningGymTask(Task):
    """
    Overview:
        One generator of reasoning-gym or a weighted mixture. Item n is a pure function of the seed and n. The first \
        ``eval_size`` different texts are held out; training takes the items behind them, and none whose text is among \
        those held out, however small the generator's stock. (Seeds alone would not do: item n of seed s is item n - 1 \
        of seed s + 1, and small generators repeat themselves.) Generators whose scorers evaluate answers as Python, \
        or pay for junk, are refused.

        Parts: ``score``, the generator's own, which may give partial credit; ``right``, 1 if the answer is the \
        reference to the letter. The generators' scores cannot tell: some pay 0.99999 for an answer with junk behind \
        it.
    """

    weights = dict(score=1.0, right=0.0)
    return_part = 'right'
    chars = ''.join(map(chr, range(32, 127))) + '\n'

    def __init__(
            self,
            name: Optional[str] = None,
            config: Optional[Dict] = None,
            mixture: Optional[List[Dict]] = None,
            size: int = 100_000,
            eval_size: int = 500,
            seed: int = 0,
            template: str = '{question}\n',
            answer_in: str = 'whole',
            right_by_score: bool = False,
            weights: Optional[Dict[str, float]] = None,
    ) -> None:
        """
        Overview:
            Make the generators.
        Arguments:
            - name (:obj:`Optional[str]`): A generator.
            - config (:obj:`Optional[Dict]`): Its own arguments, such as ``min_word_len``.
            - mixture (:obj:`Optional[List[Dict]]`): In place of these several, each a dict of ``name``, ``config`` \
                and ``weight`` (1 if left out): how often it is drawn.
            - size (:obj:`int`): Problems for training.
            - eval_size (:obj:`int`): Problems for evaluation.
            - seed (:obj:`int`): Of all items.
            - template (:obj:`str`): What the policy is asked; ``{question}`` is replaced.
            - answer_in (:obj:`str`): Where in a completion the answer stands: 'whole', 'answer_tag', 'boxed', '####'.
            - right_by_score (:obj:`bool`): Whether ``right`` is a score of exactly 1, for generators whose problems \
                have several right answers.
            - weights (:obj:`Optional[Dict[str, float]]`): Of ``score`` and ``right`` in the reward; None: 1 and 0.
        Raises:
            - ConfigError: If an argument cannot be used.
        """
        try:
            import reasoning_gym  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "env.task.type = 'reasoning_gym': needs the extra: pip install 'ding-grpo[reasoning-gym]'"
            ) from error
        _check_choice(name, config, mixture)
        _check_values(size, eval_size, seed, template, answer_in)
        if weights is not None:
            if set(weights) != set(self.weights) or not all(map(Rule.number().holds, weights.values())):
                raise ConfigError(
                    f"env.task.weights = {dict(weights)!r}: must be numbers for {', '.join(self.weights)}."
                )
            self.weights = dict(weights)
        self._parts = [dict(name=name, config=config)] if mixture is None else [dict(part) for part in mixture]
        self._datasets = [
            _generator('env.task' if mixture is None else f'env.task.mixture[{number}]', part, seed, right_by_score)
            for number, part in enumerate(self._parts)
        ]
        self._size, self._eval_size, self._seed = size, eval_size, seed
        self._template, self._extract, self._right_by_score = template, EXTRACTORS[answer_in], right_by_score
        self._written = WRITTEN[answer_in]
        self._key = json.dumps([self._parts, seed, template, eval_size], sort_keys=True)
        self._evaluating = False

    def __len__(self) -> int:
        return self._eval_size if self._evaluating else self._size

    def problem(self, index: int) -> Problem:
        held_out = self._held_out
        if self._evaluating:
            return held_out[index]
        for tried in range(1000):  # another one of the endless row where a text is held out
            problem = self._item(self._first + index + tried * self._size)
            if problem.text not in self._held_out_texts:
                return problem
        raise ConfigError(
            f'env.task.eval_size = {self._eval_size}: a thousand problems in a row are among those held out; the '
            'generator has too few, lower it.'
        )

    def score(self, problem: Problem, completion: str) -> Dict[str, Optional[float]]:
        given = self._extract(completion)
        if given is None:
            return dict(score=0.0, right=0.0)
        dataset = self._datasets[problem.metadata['part']]
        score = _score(dataset, given, problem.metadata['entry'])
        right = score == 1 if self._right_by_score else given == problem.answer.strip()
        return dict(score=score, right=float(right))

    def demonstration(self, problem: Problem) -> str:
        return self._written.format(problem.answer)

    def evaluation(self) -> Task:
        self._held_out  # shared by both
        other = copy.copy(self)
        other._evaluating = True
        return other

    def _item(self, number: int) -> Problem:
        weights = [part.get('weight', 1) for part in self._parts]
        part = random.Random(f'{self._seed} {number}').choices(range(len(weights)), weights)[0]
        dataset = self._datasets[part]
        entry: Dict[str, Any] = dataset[number % len(dataset)]
        prompt = self._template.replace('{question}', entry['question'])
        metadata = dict(kind=self._parts[part]['name'], part=part, entry=entry)
        return Problem(prompt, '' if entry['answer'] is None else str(entry['answer']), metadata)

    @cached_property
    def _held_out(self) -> List[Problem]:
        """The first different texts of the row; made once in a process, however many environments ask."""
        if self._key in _HELD_OUT:
            problems, self._first = _HELD_OUT[self._key]
            return problems
        found: Dict[str, Problem] = {}
        self._first = 0
        while len(found) < self._eval_size:
            if self._first >= 100 * (self._eval_size + 10):
                raise ConfigError(
                    f'env.task.eval_size = {self._eval_size}: the first {self._first} problems have only {len(found)} '
                    'different texts; lower it.'
                )
            problem = self._item(self._first)
            found.setdefault(problem.text, problem)
            self._first += 1
        _HELD_OUT[self._key] = (list(found.values()), self._first)
        return _HELD_OUT[self._key][0]

    @cached_property
    def _held_out_texts(self) -> Set[str]:
        return {problem.text for problem in self._held_out}
