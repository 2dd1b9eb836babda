"""
The task of a data file. One line of GSM8K's train.jsonl, and a right completion for ``answer_in='####'`` and
``check='number'``:

    {"question": "Natalia sold clips to 48 of her friends ...", "answer": "... she sold 48+24 = 72 clips.\n#### 72"}
    48 / 2 = 24 in May, 48 + 24 = 72.\n#### 72
"""
import threading
import warnings
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import click

from ding_common import ConfigError, Rule, parallel
from dizoo_llm.base import TASK_REGISTRY, Parts, Problem
from dizoo_llm.base.awaited import await_all
from dizoo_llm.base.problem import as_text, is_prompt, messages_of
from dizoo_llm.base.task import Task, as_list, check_choice, check_values, wrong_number
from dizoo_llm.rewards import CHECKS, EXTRACTORS, WRITTEN
from dizoo_llm.rewards.functions import Reward, entries_of, make_rewards
from dizoo_llm.rewards.parameters import ROW, Keys, add_keys

from .columns import Columns, is_text, value_of
from .facts import digest
from .listed import ListTask
from .packed import Packed
from .python_file import is_python, read_python
from .rows import read_rows, shown, stamp

RIGHT = 'right'  # the part of ``check``
MOST_READ = 32  # data files of a process that are kept, each as it was read and as it was divided


class _Read(NamedTuple):
    """What a process has read: problems for training, held-out ones, and the columns of their rows."""
    items: Sequence[Problem]
    held_out: Optional[Sequence[Problem]]
    keys: Keys


_READ: Dict[Tuple, _Read] = {}
_READING = threading.Lock()


@TASK_REGISTRY.register('file')
class FileTask(ListTask):
    """
    Problems from data with a column of prompts, and mostly one of answers, or from a Python file, which may score them
    too. Reward part: ``right``, or those of the functions in ``reward``. A process reads its data once for all
    environments, until they change, and forked processes share its memory.
    """

    scores_batches = limits_each = demonstrates = False  # until its rewards are known

    def __init__(
            self,
            path: Any,
            eval_path: Any = None,
            eval_size: int = 0,
            seed: int = 0,
            prompt: Optional[str] = None,
            answer: Optional[str] = None,
            kind: Optional[str] = None,
            fact: Optional[str] = None,
            template: str = '{prompt}',
            reference_in: str = 'whole',
            answer_in: str = 'whole',
            check: str = 'exact',
            check_rows: Optional[int] = 100,
            reward: Any = None,
            seconds: Optional[float] = 60.0,
            concurrency: int = Task.concurrency,
            retries: int = Task.retries,
    ) -> None:
        """
        Arguments:
            - path (:obj:`Any`): ``.jsonl``, ``.json`` (a list), ``.csv`` or ``.parquet`` (extra ``parquet``); a list \
                of such files, or a pattern, ``data/*.jsonl``; a list of dicts; with the extra ``datasets`` a \
                ``Dataset``, a folder of ``save_to_disk``, or a data set of the hub, ``'openai/gsm8k:main[train]'``. \
                Or a Python file, see ``dizoo_llm/data/python_file.py``.
            - eval_path (:obj:`Any`): As ``path``, of evaluation problems; None holds out ``eval_size`` of ``path``.
            - eval_size (:obj:`int`): Maximum number of evaluation problems. 0 uses all of ``eval_path``; if that is \
                None, evaluation uses the training problems.
            - prompt (:obj:`Optional[str]`): Column of the prompts, text or lists of chat messages; a path for nested \
                columns, such as ``reward_model.ground_truth``. None: the first of ``USUAL`` that the data have.
            - answer (:obj:`Optional[str]`): Column of the reference answers, in the same way. A row without one whose \
                messages end with a turn of the assistant has this turn as its answer.
            - kind (:obj:`Optional[str]`): Column by which evaluation groups its results.
            - fact (:obj:`Optional[str]`): Column that names what a row is a form of. Training has no row with the \
                fact of a held-out one. None: the prompt, without regard to case, punctuation and white space.
            - template (:obj:`str`): Text of the prompt, ``{prompt}`` is replaced. Not applied to chat messages.
            - reference_in (:obj:`str`): How to extract the reference answer, one of ``EXTRACTORS``; '####' for GSM8K.
            - answer_in (:obj:`str`): How to extract a completion's answer, 'whole', 'answer_tag', 'boxed' or '####'.
            - check (:obj:`str`): 'exact', 'number', or 'math_verify' (extra ``math``).
            - check_rows (:obj:`Optional[int]`): Number of reference answers of a file, spread over it, that \
                'math_verify' evaluates when it is read. None: all. The other checks always read all.
            - reward (:obj:`Any`): What scores completions, in place of ``check``: a function, its name \
                (``'rewards.py:correct'``, ``'module:function'``), 'exact', 'number', 'math_verify' or 'tags'; a list \
                of these; or a dict of them by the names of their parts. Their form, this project's, TRL's or verl's, \
                follows from their parameters (``dizoo_llm/rewards/functions.py``).
            - seconds (:obj:`Optional[float]`): Time limit of a score, ten times as long for a batch. None for none. \
                Of a function that is ``async`` it limits each attempt.
            - concurrency (:obj:`int`): How many coroutines of ``async`` functions run at once.
            - retries (:obj:`int`): How often they are tried again after an error that may pass, see \
                ``dizoo_llm/base/awaited.py``.
        """
        check_choice('answer_in', answer_in, EXTRACTORS)
        check_choice('reference_in', reference_in, EXTRACTORS)
        check_choice('check', check, CHECKS)
        if '{prompt}' not in template:
            raise ConfigError(f'env.task.template = {template!r}: must contain {{prompt}}.')
        check_values(
            check_rows=(check_rows, Rule.integer(1).or_none()),
            seconds=(seconds, Rule.number(0, open_low=True).or_none()),
            concurrency=(concurrency, Rule.integer(1)),
            retries=(retries, Rule.integer(0)),
        )
        own = read_python(path, reward is None) if is_python(path) else None
        self._of_file = own is not None and reward is None  # whether a Python file scores its own problems
        where = 'env.task.reward'
        if self._of_file:
            reward, where = own.score, f'env.task.path = {path!r}'
        given = check if reward is None else reward
        entries = [entry for _, entry in entries_of(given)]
        checks = [entry for entry in entries if isinstance(entry, str) and entry in CHECKS]
        if len(checks) > 1:
            raise ConfigError(f"env.task.reward = {given!r}: must have at most one of {', '.join(map(repr, CHECKS))}.")
        self._check, self._feedback = checks[0] if checks else None, None
        self.seconds, self.concurrency, self.retries = seconds, concurrency, retries
        self._extract, self._written = EXTRACTORS[answer_in], WRITTEN[answer_in]
        self._shown, self._reference_in = reference_in == answer_in, reference_in
        self._columns = dict(prompt=prompt, answer=answer, kind=kind, fact=fact)
        self._template, self._keeps_rows = template, reward is not None
        self._check_rows = check_rows if self._check == 'math_verify' else None
        found = self._of_process(path, eval_path, eval_size, seed)
        self._items, self._held_out = found.items, found.held_out
        self._set_rewards(given, found.keys, where)
        if own:
            self.weights, self.return_part = own.weights or self.weights, own.return_part
            self.words, self.chars, self._feedback = own.words, own.chars, own.feedback
        if checks and len(entries) > 1:
            self.return_part = self._rewards[entries.index(self._check)].name

    def _set_rewards(self, given: Any, keys: Keys, where: str) -> None:
        slow = self._check == 'math_verify'  # an answer may take seconds, during which others are scored
        known = {name: Reward(RIGHT, slow, self._right if slow else self._right_of) for name in CHECKS}
        self._rewards = make_rewards(given, keys, where, known)
        self.weights = {reward.name: 1.0 for reward in self._rewards}
        self.scores_batches = any(reward.in_batches or reward.awaits for reward in self._rewards)
        self.limits_each = any(reward.awaits or reward.limits_each for reward in self._rewards)
        self.demonstrates = self._check is not None  # another scorer may not accept the bare answer

    def feedback(self, problem: Problem, completion: str) -> Optional[str]:
        return None if self._feedback is None else self._feedback(problem.metadata[ROW], completion)

    def _of_process(self, path: Any, eval_path: Any, eval_size: int, seed: int) -> _Read:
        """The problems, read if no other environment of this process has read them."""
        options = (self._columns, self._template, self._reference_in, self._check, self._check_rows, self._keeps_rows)
        key = (type(self), repr(options), stamp(path), stamp(eval_path))

        def read() -> _Read:
            keys: Keys = {}
            held_out = None if eval_path is None else self._read('eval_path', eval_path, {})
            return _Read(self._read('path', path, keys), held_out, keys)

        def divided() -> _Read:
            whole = _once(key, read)
            super(FileTask, self).__init__(whole.items, whole.held_out, eval_size, seed)
            return _Read(self._items, self._held_out, whole.keys)

        with _READING:
            return _once((*key, eval_size, seed), divided)

    def _read(self, key: str, source: Any, keys: Keys) -> Sequence[Problem]:
        """The problems of the data that the config key ``key`` names, and the columns of their rows."""
        where, columns = f'env.task.{key} = {shown(source)}', None
        of_python = is_python(source)
        problems, places, answered = [] if of_python else Packed(), [], 0  # rows of Python may be any object
        first: Dict[bytes, int] = {}  # text -> index of the first row with it
        repeated: List[Tuple[int, int]] = []  # rows with the text of an earlier one and another answer, and that one
        for place, own in read_rows(key, source):
            if columns is None:
                needed = ['prompt', 'answer'] if self._check else ['prompt']
                columns = Columns(where, own, self._columns, needed, ('answer', 'kind', 'fact') if of_python else ())
            row = columns.answered(place, own)
            answered += row is not own
            problem = self._problem(f'{where}: {place}', place, row, columns)
            before = first.setdefault(digest(problem.text.split()), len(problems))
            if before < len(problems) and problem.answer != problems[before].answer:
                repeated.append((len(problems), before))
            add_keys(keys, len(problems), row)
            problems.append(problem)
            places.append(place)
        if self._check is not None:
            self._check_references(where, problems, places, repeated)
        if answered > 0:
            warnings.warn(
                f"{where}: {answered} row(s) have no {columns.names['answer']!r} (env.task.answer); "
                "the assistant's turn at the end of their messages is their reference answer, and not read."
            )
        return problems

    def _check_references(
            self, where: str, problems: Sequence[Problem], places: List[str], repeated: List[Tuple[int, int]]
    ) -> None:
        """Require that the check accepts the reference answers, and warn of rows that contradict earlier ones."""
        number = len(problems) if self._check_rows is None else min(self._check_rows, len(problems))
        for i in [n * len(problems) // number for n in range(number)]:
            reference = problems[i].answer
            if not self._equal(f'{where}: {places[i]}', reference, reference):
                raise ConfigError(
                    f'{where}: {places[i]}: env.task.check = {self._check!r} rejects the reference answer '
                    f'{reference!r:.200}; env.task.reference_in = {self._reference_in!r} extracts it from the column.'
                )
        if number < len(problems) and parallel.rank() == 0:
            click.echo(
                f'{where}: env.task.check = {self._check!r} was tried on {number} of {len(problems):,} reference '
                'answers. Set env.task.check_rows=None to try all of them.'
            )
        contradicting = []
        every = 1 if self._check_rows is None else max(1, -(-len(repeated) // self._check_rows))
        compared = repeated[::every]
        for i, before in compared:
            one, other = problems[i].answer, problems[before].answer
            if not self._equal(f'{where}: {places[i]}', one, other):
                contradicting.append(f'{places[i]} after {places[before]}: {one!r:.80}, not {other!r:.80}')
        if contradicting:  # adds noise to the reward; common in large collections
            warnings.warn(
                f'{where}: {len(contradicting)} row(s) repeat a question with a different answer'
                f"{'' if len(compared) == len(repeated) else f' (of {len(compared)} that were compared)'}, for example "
                f'{contradicting[0]}.'
            )

    def _problem(self, where: str, place: str, row: Dict[str, Any], columns: Columns) -> Problem:
        columns.check(place, row)
        found = {name: column and value_of(row, column) for name, column in columns.names.items()}
        prompt, answer = found['prompt'], found['answer']
        written = as_text(answer) if answer is not None and is_text(answer) else None
        reference = None if written is None else EXTRACTORS[self._reference_in](written)
        if reference is None and self._check is not None:
            raise ConfigError(
                f'{where}: env.task.reference_in = {self._reference_in!r} finds no answer in {answer!r:.200}.'
            )
        text = prompt if isinstance(prompt, list) else self._template.replace('{prompt}', as_text(prompt))
        if not is_prompt(text) or not is_text(Problem(text).text):
            raise ConfigError(f'{where}: {text!r:.80} is neither text nor {messages_of(text)}.')
        given = dict(solution=written, kind=found['kind'], fact=found['fact'])
        metadata = {name: as_text(x) for name, x in given.items() if x is not None}
        return Problem(text, reference or '', {**metadata, ROW: row} if self._keeps_rows else metadata)

    def _equal(self, where: str, answer: str, reference: str) -> bool:
        try:
            score, = CHECKS[self._check]([(answer, reference)])
        except ImportError as error:
            raise ConfigError(str(error)) from error
        except RuntimeError as error:  # no server can be started
            score = error
        if isinstance(score, Exception):
            raise ConfigError(
                f'{where}: env.task.check = {self._check!r} cannot read the reference answer {reference!r:.200} '
                f'({score}).'
            ) from score
        return bool(score)

    def _right(self, problems: List[Problem], completions: List[str]) -> List[Union[float, Exception]]:
        given = list(map(self._extract, completions))
        pairs = [('' if text is None else text, problem.answer) for text, problem in zip(given, problems)]
        return [0.0 if text is None else score for text, score in zip(given, CHECKS[self._check](pairs))]

    def _right_of(self, problem: Problem, completion: str) -> Union[float, Exception]:
        return self._right([problem], [completion])[0]

    def score_batch(self, problems: List[Problem], completions: List[str]) -> List[Union[Parts, Exception]]:
        found = {reward.name: [] for reward in self._rewards}
        waiting = [reward for reward in self._rewards if reward.awaits]
        calls = [partial(reward.score, *row) for reward in waiting for row in zip(problems, completions)]
        scores = iter(await_all(calls, self.limits) if calls else ())
        for reward in self._rewards:
            if reward.awaits:
                found[reward.name] = list(islice(scores, len(problems)))
                continue
            with nullcontext() if reward.limits_each else self.batch_limit():
                found[reward.name] = _scores(reward, problems, completions)
        rows = [dict(zip(found, values)) for values in zip(*found.values())]
        if self._of_file:  # its scorer may return several parts
            rows = [next((x for x in row.values() if isinstance(x, dict)), row) for row in rows]
        return [next((x for x in row.values() if isinstance(x, BaseException)), row) for row in rows]

    def demonstration(self, problem: Problem) -> str:
        if self._check is None:
            return problem.answer
        return problem.metadata['solution'] if self._shown else self._written.format(problem.answer)


def _once(key: Tuple, make: Callable[[], _Read]) -> _Read:
    """What this process has under a key, else what ``make`` returns."""
    if key not in _READ:
        found = make()
        if len(_READ) >= MOST_READ:
            _READ.pop(next(iter(_READ)))
        _READ[key] = found
    return _READ[key]


def _scores(reward: Reward, problems: List[Problem], completions: List[str]) -> List[Any]:
    """A number, None or an exception for each completion."""
    if reward.in_batches:
        scores = as_list(reward.score(problems, completions))
        wrong = wrong_number(scores, len(completions))
        if wrong is not None:
            raise ValueError(f'{reward.name} {wrong}')
        return list(scores)
    scores = []
    for problem, completion in zip(problems, completions):
        try:
            scores.append(reward.score(problem, completion))
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            scores.append(error)
    return scores
