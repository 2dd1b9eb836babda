import copy
import pickle
import re

import pytest
import torch

from ding_common import ConfigError, TaskError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import TASK_REGISTRY, Problem, Reply, Task, ThinkAnswerTask, create_task
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.dizoo_llm.helper import PROBLEMS, Prompts, problems, python_task

LINE = r' \(test_tasks.py:\d+\)'


class TestThinkAnswer:

    def test_prompts_are_the_notebooks(self):
        task, tokenizer = ThinkAnswerTask(), build_word_tokenizer(ThinkAnswerTask.words)
        questions = {
            3: [1, 5, 8, 3, 4, 18, 10, 12, 20, 11],
            7: [6, 9, 13, 7, 4, 21, 10, 15, 4, 23],
            12: [3, 5, 14, 6, 10, 20, 4, 9, 10, 15],
            4: [6, 19, 17, 5, 16, 21, 10, 20, 13, 19]
        }
        found = {int(problem.answer): tokenizer.encode(problem.prompt) for problem in problems(task)}
        assert found == {a: [25, 2, 3, 4, 26, 27, 7, 28] + q + [25] for a, q in questions.items()}

    def test_worked_example_in_the_prompt_earns_nothing(self):
        # The tutorial notebook scores prompt and completion together. The example answers 7, so there the second
        # problem is solved by whatever the policy writes.
        task = ThinkAnswerTask()
        problem = task.problem(1)
        assert problem.answer == '7' and '<answer> 7 </answer>' in problem.prompt
        assert task.checked_score(problem, '1 2 3') == dict(answer=0, format=0, solved=0)
        assert task.checked_score(problem, '1 </think> <answer> 7 </answer>') == dict(answer=1, format=1, solved=1)


class Alone(Prompts):
    """Its scorer returns an answer, or raises it."""
    weights = dict(a=1.0, b=0.5)

    def __init__(self, answer=None):
        super().__init__('one', 'two', 'three', scorer=self.give)
        self.answer = answer

    def give(self, *asked):
        self.asked = asked
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Batch(Alone):
    score = Task.score

    def score_batch(self, problems, completions):
        return self.give(problems, completions)


GOOD = dict(a=1, b=1)


def in_batch(answer):
    """For each of three completions the parts, or the message of the error."""
    task = Batch(answer)
    scores = task.checked_scores(problems(task), ['x', 'y', 'z'])
    return [s.message if isinstance(s, TaskError) else s for s in scores]


class TestCheckedScores:

    def test_good_scores_come_as_floats_in_the_order_of_the_weights(self):
        scores = [Alone(dict(b=True, a=2)).checked_score(Problem('p'), 'c'), *in_batch([dict(b=1, a=2)] * 3)]
        assert [list(score.items()) for score in scores] == [[('a', 2.0), ('b', 1.0)]] * 4
        assert all(type(part) is float for score in scores for part in score.values())
        assert Alone(dict(a=None, b=1)).checked_score(Problem('p'), 'c') == dict(a=None, b=1.0)

    @pytest.mark.parametrize(
        'answer, message', [
            (dict(a=1), 'must score exactly'),
            (dict(a=1, b=1, c=1), 'must score exactly'),
            (1.0, 'must score exactly'),
            (dict(a=float('nan'), b=0), 'a = nan'),
            (dict(a=0, b=float('inf')), 'b = inf'),
            (dict(a='1', b=0), 'finite'),
            (dict(a=torch.ones(2), b=0), 'a = tensor'),
            (SystemExit(3), r'SystemExit: 3'),
            (ZeroDivisionError('oh'), 'ZeroDivisionError: oh'),
        ]
    )
    def test_bad_scores_name_the_problem_and_fail_alone(self, answer, message):
        with pytest.raises(TaskError, match=message) as alone:
            Alone(answer).checked_score(Problem('two'), 'y')
        assert "problem: 'two'; completion: 'y'" in alone.value.message
        first, second, third = in_batch([GOOD, answer, dict(a=None, b=3)])
        assert first == GOOD and third == dict(a=None, b=3)
        lines = [re.search(LINE, message) is not None for message in (alone.value.message, second)]
        assert lines == [isinstance(answer, BaseException)] * 2  # one that was raised before keeps its line
        assert re.sub(LINE, '', second) == re.sub(LINE, '', alone.value.message).replace('Alone', 'Batch')

    @pytest.mark.parametrize(
        'answer, message', [
            (RuntimeError('no'), f'Batch.score_batch raised RuntimeError: no{LINE} for 3 completions'),
            (SystemExit(2), 'Batch.score_batch raised SystemExit: 2'),
            ([GOOD] * 4, 'score_batch returned 4 entries, must return a list of 3'),
            (GOOD, r"score_batch returned {'a': 1, 'b': 1}, must return a list of 3"),
            (torch.tensor(1.), 'score_batch returned 1.0, must return a list of 3'),
        ]
    )
    def test_a_call_that_fails_costs_every_row(self, answer, message):
        first, *others = in_batch(answer)
        assert others == [first] * 2 and re.search(message, first)

    def test_what_the_scorer_does_to_its_lists_stays_there(self):

        class Clearing(Batch):

            def score_batch(self, problems, completions):
                problems.clear(), completions.clear()
                return [GOOD, ValueError('no'), GOOD]

        assert "completion: 'y'" in Clearing().checked_scores(problems(Clearing()), ['x', 'y', 'z'])[1].message

    def test_alone_is_a_batch_of_one(self):
        task, problem = Batch([dict(a=1, b=2)]), Problem('one')
        assert task.score(problem, 'x') == task.checked_score(problem, 'x') == dict(a=1, b=2)
        assert task.asked == ([problem], ['x'])
        for answer, told in (([KeyError('oh')], "raised KeyError: 'oh'.*problem: 'one'; completion: 'x'"),
                             ([GOOD] * 2, 'score_batch returned 2 entries, must return a list of 1')):
            with pytest.raises(TaskError, match=told):
                Batch(answer).checked_score(problem, 'x')


class TestCreateTask:

    def test_a_class_that_cannot_be_used(self):

        async def wait(self, *args):
            return 1.0

        cases = [(dict(__len__=lambda self: 0), 'no problem'), (dict(score=Task.score), 'Mine must define score or')]
        for part in (None, 'c'):
            told = rf'Mine.return_part = {part!r}: must be a part of the reward \(a, b\), because must_end'
            cases.append((dict(must_end=True, return_part=part), told))
        for name in ('problem', 'score_batch', 'demonstration'):
            cases.append((dict([(name, wait)]), f'^env.task: Mine.{name}: is defined by async def, and must be an'))
        for changes, told in cases:
            TASK_REGISTRY.register('unusable', type('Mine', (Alone, ), dict(changes, words=['one'])), True)
            with pytest.raises(ConfigError, match=told):
                create_task(dict(type='unusable'))
        kind = type('Unscored', (Alone, ), dict(score=Task.score, words=['one', 'two', 'three']))
        with pytest.raises(ConfigError, match='env.task: Unscored must define score or score_batch'):
            TokenEnv(kind())
        with pytest.raises(NotImplementedError, match='Unscored must define score or score_batch'):
            kind().score(Problem('p'), 'c')

    def test_a_class_replaces_itself_but_no_other(self):
        """A notebook's cell defines its class again each time."""

        def define(name):
            return type(name, (Alone, ), dict(__module__=__name__))

        for again in range(2):
            kind = define('Mine')
            assert TASK_REGISTRY.register('mine')(kind) is TASK_REGISTRY.get('mine') is kind
        TASK_REGISTRY.register('mine', kind)
        other = define('Other')
        for register in (TASK_REGISTRY.register('mine'), lambda kind: TASK_REGISTRY.register('mine', kind)):
            with pytest.raises(ConfigError, match=r"register\('mine'\): test_tasks.Mine has this name. Choose"):
                register(other)
        assert TASK_REGISTRY.get('mine') is kind
        TASK_REGISTRY.register('mine', other, force_overwrite=True)
        assert TASK_REGISTRY.register()(define('Unnamed')) is TASK_REGISTRY.get('Unnamed')
        assert TASK_REGISTRY.get('mine') is other


@pytest.mark.parametrize('made', ['np.array([nan, 0.25])', 'torch.tensor([nan, 0.25], requires_grad=True).bfloat16()'])
def test_a_scorer_of_batches_may_return_arrays_which_are_checked(tmp_path, made):
    scorer = f'import numpy as np, torch\nnan = np.nan\ndef score_batch(problems, completions):\n    return {made}\n'
    task = python_task(tmp_path, scorer + PROBLEMS)
    first, second = task.checked_scores(problems(task)[:2], ['x', 'y'])
    assert second == dict(score=0.25) and 'score = nan, must be a finite number' in first.message
    short, = set(task.checked_scores(problems(task)[:3], ['x', 'y', 'z']))
    assert 'raised ValueError: score returned 2 entries, must return a list of 3' in short.message


def test_problems_and_replies_have_a_dict_of_their_own():
    one, other = Problem('a'), Problem('a')
    one.metadata['kind'] = 'x'
    assert other.metadata == {} and Problem('b').metadata == {}
    Reply('a').parts['right'] = 1.0
    assert Reply('a').parts == {}
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one == Problem('a', '', dict(kind='x'))
    assert one._replace(answer='2') == Problem('a', '2', dict(kind='x')) and type(one._replace()) is Problem
    assert Problem('a', metadata=None).metadata is None  # a mistake is not covered up
