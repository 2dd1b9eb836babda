"""
Problems generated and scored by reasoning-gym (https://github.com/open-thought/reasoning-gym, an extra of this
package). A problem of its generator ``spell_backward``, and a right completion:

    prompt:     Spell this word backward (example: sun -> nus): fairly
    completion: ylriaf
"""
import copy
import inspect
import json
import os
import random
import re
import threading
from functools import cached_property, lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple, Union

from ding_common import ConfigError, Rule, nearest
from dizoo_llm.base import TASK_REGISTRY, Parts, Problem, Task
from dizoo_llm.base.problem import as_text
from dizoo_llm.base.task import check_choice, check_values
from dizoo_llm.data.facts import in_any_order
from dizoo_llm.rewards import EXTRACTORS, WRITTEN
from dizoo_llm.servers import MOST, Servers

MISSING = "env.task.type = 'reasoning_gym': needs the extra: pip install '.[reasoning-gym]' in the clone"
_HELD_OUT: Dict[str, '_HeldOut'] = {}  # by config
_GENERATING = threading.Lock()  # DI-engine resets in threads, and some generators, such as tsumego, change themselves

_EVALUATES = re.compile(r'\b(eval|exec|parse_expr|sympify)\(')
# Generators that create the list of all items at once; items beyond its end repeat from the start.
_LISTED = {'acre', 'gsm_symbolic', 'list_functions', 'word_ladder'}
_LISTED_SIZE = 50_000
# Generators that iterate over sets, so that their problems differ between processes.
_BY_HASH = {'isomorphic_strings', 'knight_swap', 'polynomial_multiplication', 'ransom_note'}
# Generators whose problems have the same answer in another order of their numbers, or are the inverse of another one.
_UNORDERED = {'basic_arithmetic', 'chain_sum', 'decimal_chain_sum', 'gcd', 'lcm', 'products', 'spell_backward'}
_JUNK = ('nan', 'nan+nanj', 'inf', '?', 'x y')  # answers that are wrong for every problem


@lru_cache(maxsize=64)
def _dataset(name: str, seed: int, config: str) -> Any:
    """A generator. It may contain a long list of words, so a process creates it once."""
    from reasoning_gym import create_dataset
    return create_dataset(name, seed=seed, size=_LISTED_SIZE if name in _LISTED else 2 ** 31 - 1, **json.loads(config))


@lru_cache(maxsize=64)
def _why_not(name: str, seed: int, config: str) -> Optional[str]:
    """
    Why a generator cannot be used, or None. A model's text is never executed, nonsense answers must not be rewarded,
    and a problem must be the same in every process.
    """
    from reasoning_gym.factory import DATASETS
    if _EVALUATES.search(inspect.getsource(DATASETS[name][0].score_answer)):
        return 'its scorer executes answers as Python; text written by a model is never executed here'
    if name in _BY_HASH and os.environ.get('PYTHONHASHSEED', 'random') == 'random':
        return 'its problems differ between processes; set the environment variable PYTHONHASHSEED=0'
    dataset = _dataset(name, seed, config)
    for junk in _JUNK:
        earned = sum(_score(dataset, junk, dataset[i]) for i in range(5)) / 5
        if earned >= 0.5:
            return f'its scorer gives {earned:.2f} for {junk!r}, which answers no problem'
    return None


def _score(dataset: Any, given: str, entry: Dict[str, Any]) -> float:
    """The generator's score; 0 if the scorer raises, as many do for text that they cannot parse."""
    try:
        return _in_range(float(dataset.score_answer(given, entry)))
    except Exception:
        return 0.0


def _in_range(score: float) -> float:
    return min(max(score, 0.0), 1.0) if score == score else 0.0


# As ``_score``, for what a model wrote: a coin_flip of '1e99999999' ends neither by itself nor by a signal.
SERVERS = Servers('reasoning-gym', 'gym', MISSING, MOST)


def _generators(name: Optional[str], config: Optional[Dict], mixture: Optional[List[Dict]]) -> List[Dict]:
    """The generators of a task: name, config and weight of each."""
    if (name is None) == (mixture is None):
        raise ConfigError(f'env.task.name = {name!r}, env.task.mixture = {mixture!r}: set exactly one of them.')
    if mixture is None:
        return [dict(name=name, config=config)]
    if config is not None:
        raise ConfigError(f'env.task.config = {config!r}: not allowed with a mixture; each part has its own config.')
    if not isinstance(mixture, list) or not mixture or not all(isinstance(part, dict) for part in mixture):
        raise ConfigError(f'env.task.mixture = {mixture!r}: must be a list of dicts with name, config and weight.')
    return [dict(part) for part in mixture]


def _generator(where: str, part: Dict, seed: int, right_by_score: bool) -> Tuple[Any, Tuple[str, int, str]]:
    """The generator of a part of a mixture, and the arguments of ``_dataset`` that make it."""
    from reasoning_gym.factory import DATASETS
    name, weight = part.get('name'), part.get('weight', 1)
    if set(part) - {'name', 'config', 'weight'} or not Rule.number(0, open_low=True).holds(weight):
        raise ConfigError(f'{where} = {part!r}: must be a dict of name, config and a positive weight.')
    if name not in DATASETS:
        raise ConfigError(f'{where}.name = {name!r}: {nearest(str(name), DATASETS)}')
    try:
        arguments = name, seed, json.dumps(part.get('config') or {}, sort_keys=True)
        why_not, dataset = _why_not(*arguments), _dataset(*arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f'{where}.config = {part.get("config")!r}: {error}') from error
    if why_not is None and dataset[0]['answer'] is None and not right_by_score:
        why_not = 'its problems have no reference answer; set env.task.right_by_score = True'
    if why_not is not None:
        raise ConfigError(f'{where}.name = {name!r}: {why_not}.')
    return dataset, arguments


@TASK_REGISTRY.register('reasoning_gym')
class ReasoningGymTask(Task):
    """
    One generator of reasoning-gym, or a weighted mixture of several. Item n is a pure function of the seed and n. The
    first ``eval_size`` different texts are held out. Training uses the items after them without those that have a
    held-out text or another form of one (sums in another order, words spelled backward). Different seeds would not
    separate the two: item n of seed s is item n - 1 of the next seed, and small generators repeat themselves.

    Reward parts: ``score`` is the generator's own score, which may give partial credit. ``right`` is 1 if the answer
    equals the reference exactly. The scores cannot replace it: some give 0.99999 for an answer followed by nonsense.
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
            examples: int = 0,
    ) -> None:
        """
        Arguments:
            - config (:obj:`Optional[Dict]`): Arguments of the generator, such as ``min_word_len``.
            - mixture (:obj:`Optional[List[Dict]]`): Several generators instead of ``name`` and ``config``. Each is a \
                dict of ``name``, ``config`` and ``weight``, its relative frequency (default 1).
            - answer_in (:obj:`str`): How to extract a completion's answer: 'whole', 'answer_tag', 'boxed', '####'.
            - right_by_score (:obj:`bool`): Whether ``right`` is 1 for a score of exactly 1. Use it for generators \
                whose problems have several right answers.
            - weights (:obj:`Optional[Dict[str, float]]`): Weights of ``score`` and ``right`` in the reward; None is \
                1 and 0.
            - examples (:obj:`int`): Number of worked examples of the same generator that each prompt shows as earlier \
                messages of the chat. They occur neither in training nor in evaluation.
        """
        try:
            import reasoning_gym  # noqa: F401
        except ImportError as error:
            raise ConfigError(MISSING) from error
        self._parts = _generators(name, config, mixture)
        count, number = Rule.integer(1), Rule.integer(0)
        check_values(size=(size, count), eval_size=(eval_size, count), seed=(seed, number), examples=(examples, number))
        check_choice('answer_in', answer_in, EXTRACTORS)
        if '{question}' not in template:
            raise ConfigError(f'env.task.template = {template!r}: must contain {{question}}.')
        self.weights = dict(self.weights if weights is None else weights)
        if set(self.weights) != {'score', 'right'} or not all(map(Rule.number().holds, self.weights.values())):
            raise ConfigError(f'env.task.weights = {self.weights!r}: must be numbers for score, right.')
        where = 'env.task' if mixture is None else 'env.task.mixture[{}]'
        found = [_generator(where.format(i), part, seed, right_by_score) for i, part in enumerate(self._parts)]
        self._datasets, self._generators = zip(*found)
        self._size, self._eval_size, self._seed = size, eval_size, seed
        self._template, self._extract, self._right_by_score = template, EXTRACTORS[answer_in], right_by_score
        self._written = WRITTEN[answer_in]
        if examples > 0 and any(dataset[0]['answer'] is None for dataset in self._datasets):
            raise ConfigError(
                f'env.task.examples = {examples}: problems of a generator without reference answers cannot be shown '
                'with an answer. Set it to 0.'
            )
        self._examples = examples
        self._key = json.dumps([self._parts, seed, template, eval_size, examples], sort_keys=True)
        self._evaluating = False

    def __len__(self) -> int:
        return self._eval_size if self._evaluating else self._size

    def problem(self, index: int) -> Problem:
        held_out = self._held_out
        if self._evaluating:
            return self._with_examples(held_out.problems[index])
        for tried in range(1000):  # skip held-out texts: the sequence of items is endless
            problem = self._item(held_out.first + index + tried * self._size)
            if self._fact(problem) not in held_out.facts:
                return self._with_examples(problem)
        raise ConfigError(
            f'env.task.eval_size = {self._eval_size}: 1000 problems in a row are held out; the generator has too few. '
            'Lower it.'
        )

    def score_batch(self, problems: List[Problem], completions: List[str]) -> List[Union[Parts, Exception]]:
        given = list(map(self._extract, completions))
        asked = [(text, problem.metadata) for text, problem in zip(given, problems) if text is not None]
        questions = [('score', *self._generators[of['part']], text, of['entry']) for text, of in asked]
        found = iter(SERVERS.ask(questions, [text for text, _ in asked]))
        return [
            dict(score=0.0, right=0.0) if text is None else self._parts_of(next(found), text, problem.answer)
            for text, problem in zip(given, problems)
        ]

    def _parts_of(self, score: Union[float, Exception], given: str, answer: str) -> Union[Parts, Exception]:
        if isinstance(score, Exception):
            return score
        score = _in_range(score)
        right = score == 1 if self._right_by_score else given == answer.strip()
        return dict(score=score, right=float(right))

    def demonstration(self, problem: Problem) -> str:
        return self._written.format(problem.answer)

    def evaluation(self) -> Task:
        self._held_out  # compute it before the copy, which then shares it
        other = copy.copy(self)
        other._evaluating = True
        return other

    def _item(self, number: int) -> Problem:
        weights = [part.get('weight', 1) for part in self._parts]
        part = random.Random(f'{self._seed} {number}').choices(range(len(weights)), weights)[0]
        dataset = self._datasets[part]
        with _GENERATING:
            entry: Dict[str, Any] = dataset[number % len(dataset)]
        prompt = self._template.replace('{question}', entry['question'])
        metadata = dict(kind=self._parts[part]['name'], part=part, entry=entry)
        return Problem(prompt, '' if entry['answer'] is None else as_text(entry['answer']), metadata)

    def _with_examples(self, problem: Problem) -> Problem:
        messages: List[Dict[str, str]] = []
        for example in self._held_out.examples[problem.metadata['part']]:
            messages += [*example.messages, dict(role='assistant', content=self.demonstration(example))]
        return problem.after(messages)

    def _fact(self, problem: Problem) -> Union[str, bytes]:
        """What all forms of a problem have in common."""
        kind = problem.metadata['kind']
        if kind == 'word_sorting':  # in ascending or descending order
            return in_any_order(Problem('', problem.answer))
        return in_any_order(problem) if kind in _UNORDERED else problem.text

    @cached_property
    def _held_out(self) -> '_HeldOut':
        """Computed once in a process for all environments."""
        if self._key not in _HELD_OUT:
            problems: List[Problem] = []
            examples: List[List[Problem]] = [[] for _ in self._parts]
            facts: Set[Union[str, bytes]] = set()
            first, most = 0, 100 * (self._eval_size + self._examples * len(self._parts) + 10)
            while len(problems) < self._eval_size or any(len(shown) < self._examples for shown in examples):
                if first >= most:
                    found = ', '.join(str(len(shown)) for shown in examples)
                    raise ConfigError(
                        f'env.task.eval_size = {self._eval_size}, env.task.examples = {self._examples}: the first '
                        f'{first} problems have only {len(problems)} for evaluation and {found} for examples that are '
                        'no other form of one another. Lower one of them.'
                    )
                problem = self._item(first)
                first += 1
                shown = examples[problem.metadata['part']]
                chosen = shown if len(shown) < self._examples else problems
                if self._fact(problem) not in facts and (chosen is shown or len(problems) < self._eval_size):
                    chosen.append(problem)
                    facts.add(self._fact(problem))
            _HELD_OUT[self._key] = _HeldOut(problems, examples, facts, first)
        return _HELD_OUT[self._key]


class _HeldOut(NamedTuple):
    """The first items with different facts, for evaluation, and the worked examples of each generator."""
    problems: List[Problem]
    examples: List[List[Problem]]
    facts: Set[Union[str, bytes]]
    first: int
