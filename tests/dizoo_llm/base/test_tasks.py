import copy
import pickle
import re

import pytest
import torch

from ding_common import ConfigError, TaskError
from dizoo_llm.tasks import TASK_REGISTRY, Problem, Reply, Task, ThinkAnswerTask, create_task


@pytest.mark.unittest
class TestThinkAnswer:

    def test_prompts_are_the_notebooks(self):
        from dizoo_llm.text.tokenizer import build_word_tokenizer
        task = ThinkAnswerTask()
        tokenizer = build_word_tokenizer(task.words)
        questions = {
            3: [1, 5, 8, 3, 4, 18, 10, 12, 20, 11],
            7: [6, 9, 13, 7, 4, 21, 10, 15, 4, 23],
            12: [3, 5, 14, 6, 10, 20, 4, 9, 10, 15],
            4: [6, 19, 17, 5, 16, 21, 10, 20, 13, 19]
        }
        found = {int(task.problem(i).answer): tokenizer.encode(task.problem(i).prompt) for i in range(len(task))}
        assert found == {a: [25, 2, 3, 4, 26, 27, 7, 28] + q + [25] for a, q in questions.items()}

    def test_worked_example_in_the_prompt_earns_nothing(self):
        # The tutorial notebook scores prompt and completion together. The example answers 7, so there the second
        # problem is solved by whatever the policy writes.
        task = ThinkAnswerTask()
        problem = task.problem(1)
        assert problem.answer == '7' and '<answer> 7 </answer>' in problem.prompt
        assert task.checked_score(problem, '1 2 3') == dict(answer=0, format=0, solved=0)
        assert task.checked_score(problem, '1 </think> <answer> 7 </answer>') == dict(answer=1, format=1, solved=1)


class ScriptedTask(Task):
    weights = dict(a=1.0, b=0.5)

    def __init__(self, answer):
        self.answer = answer

    def __len__(self):
        return 1

    def problem(self, index):
        return Problem('what is it?')

    def score(self, problem, completion):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.unittest
class TestCheckedScore:

    def test_good_scores_come_as_floats_in_the_order_of_the_weights(self):
        parts = ScriptedTask(dict(b=True, a=2)).checked_score(Problem('p'), 'c')
        assert list(parts.items()) == [('a', 2.0), ('b', 1.0)]

    def test_a_part_that_does_not_apply(self):
        assert ScriptedTask(dict(a=None, b=1)).checked_score(Problem('p'), 'c') == dict(a=None, b=1.0)

    @pytest.mark.parametrize(
        'answer, message', [
            (dict(a=1), 'must score exactly'),
            (dict(a=1, b=1, c=1), 'must score exactly'),
            (1.0, 'must score exactly'),
            ([1, 2], 'must score exactly'),
            (dict(a=float('nan'), b=0), 'a = nan'),
            (dict(a=0, b=float('inf')), 'b = inf'),
            (dict(a='1', b=0), 'finite'),
            (dict(a=torch.ones(2), b=0), 'a = tensor'),
            (SystemExit(3), r'SystemExit: 3'),
            (ZeroDivisionError('oh'), r'ZeroDivisionError: oh \(test_tasks.py:\d+\)'),
        ]
    )
    def test_bad_scores_name_the_problem(self, answer, message):
        with pytest.raises(TaskError, match=message) as caught:
            ScriptedTask(answer).checked_score(Problem('what is it?'), 'my completion')
        assert 'what is it?' in caught.value.message and 'my completion' in caught.value.message


class BatchTask(ScriptedTask):
    """Scored only in batches: ``answer`` is the list of entries, or what is raised or returned in its place."""
    score = Task.score

    def score_batch(self, problems, completions):
        self.asked = problems, completions
        return ScriptedTask.score(self, problems, completions)


@pytest.mark.unittest
class TestCheckedScores:
    PROBLEMS = [Problem('one'), Problem('two'), Problem('three')]
    TEXTS = ['x', 'y', 'z']

    def messages(self, answer):
        """For each of three completions the parts, or the message of the error."""
        scores = BatchTask(answer).checked_scores(self.PROBLEMS, self.TEXTS)
        return [s.message if isinstance(s, TaskError) else s for s in scores]

    def test_one_call_for_all_and_one_entry_each(self):
        task = BatchTask([dict(b=1, a=n) for n in range(3)])
        scores = task.checked_scores(self.PROBLEMS, self.TEXTS)
        assert [list(s.items()) for s in scores] == [[('a', float(n)), ('b', 1.0)] for n in range(3)]
        assert task.asked == (self.PROBLEMS, self.TEXTS)

    @pytest.mark.parametrize('entry', [KeyError('oh'), dict(a=1), dict(a=float('nan'), b=0), None, SystemExit(3)])
    def test_an_entry_fails_alone_and_with_the_message_of_a_single_score(self, entry):
        first, second, third = self.messages([dict(a=1, b=1), entry, dict(a=None, b=3)])
        assert first == dict(a=1, b=1) and third == dict(a=None, b=3)
        with pytest.raises(TaskError) as alone:
            ScriptedTask(entry).checked_score(self.PROBLEMS[1], 'y')
        without_line = re.sub(r' \(test_tasks.py:\d+\)', '', alone.value.message)
        assert second == without_line.replace('ScriptedTask', 'BatchTask')
        assert "problem: 'two'; completion: 'y'" in second

    def test_a_returned_exception_that_was_raised_before_keeps_its_line(self):
        try:
            1 / 0
        except ZeroDivisionError as error:
            caught = error
        assert re.search(r'division by zero \(test_tasks.py:\d+\)', self.messages([caught] * 3)[2])

    @pytest.mark.parametrize(
        'answer, message', [
            (
                RuntimeError('no'),
                r'BatchTask.score_batch raised RuntimeError: no \(test_tasks.py:\d+\) for 3 completions'
            ),
            (SystemExit(2), 'BatchTask.score_batch raised SystemExit: 2'),
            ([dict(a=1, b=1)] * 2, 'score_batch returned 2 entries, must return a list of 3'),
            ([dict(a=1, b=1)] * 4, 'score_batch returned 4 entries, must return a list of 3'),
            (None, 'score_batch returned None, must return a list of 3'),
            (dict(a=1, b=1), r"score_batch returned {'a': 1, 'b': 1}, must return a list of 3"),
            (torch.ones(2), 'must return a list of 3'),
            (torch.tensor(1.), 'score_batch returned 1.0, must return a list of 3'),
        ]
    )
    def test_a_call_that_fails_costs_every_row(self, answer, message):
        first, *others = self.messages(answer)
        assert others == [first] * 2 and re.search(message, first)

    def test_what_the_scorer_does_to_its_lists_stays_there(self):
        task = BatchTask(None)

        def score_batch(problems, completions):
            found = [dict(a=1, b=1), ValueError('no'), dict(a=0, b=0)]
            problems.clear(), completions.clear()
            return found

        task.score_batch = score_batch
        assert "completion: 'y'" in task.checked_scores(self.PROBLEMS, self.TEXTS)[1].message

    def test_without_score_batch_one_by_one(self):

        class Odd(ScriptedTask):

            def score(self, problem, completion):
                return dict(a=1, b=1 / (completion != 'y'))

        first, second, third = Odd(None).checked_scores(self.PROBLEMS, self.TEXTS)
        assert first == third == dict(a=1, b=1) and 'division by zero' in second.message

    def test_alone_is_a_batch_of_one(self):
        task = BatchTask([dict(a=1, b=2)])
        assert task.score(self.PROBLEMS[0], 'x') == task.checked_score(self.PROBLEMS[0], 'x') == dict(a=1, b=2)
        assert task.asked == (self.PROBLEMS[:1], ['x'])
        with pytest.raises(TaskError, match="raised KeyError: 'oh'.*problem: 'one'; completion: 'x'"):
            BatchTask([KeyError('oh')]).checked_score(self.PROBLEMS[0], 'x')
        with pytest.raises(TaskError, match='score_batch returned 2 entries, must return a list of 1'):
            BatchTask([dict(a=1, b=2)] * 2).checked_score(self.PROBLEMS[0], 'x')


@pytest.mark.unittest
class TestCreateTask:

    def test_by_name(self):
        assert isinstance(create_task(dict(type='think_answer')), ThinkAnswerTask)

    @pytest.mark.parametrize(
        'cfg, message', [
            (dict(type='think_anser'), "did you mean 'think_answer'"),
            (dict(), 'unknown task'),
            (dict(type='think_answer', size=3), 'size'),
        ]
    )
    def test_wrong_config(self, cfg, message):
        with pytest.raises(ConfigError, match=message):
            create_task(cfg)

    def test_task_without_problems(self):
        TASK_REGISTRY.register('empty', type('Empty', (ScriptedTask, ), dict(__len__=lambda self: 0)), True)
        with pytest.raises(ConfigError, match='no problem'):
            create_task(dict(type='empty', answer=1))

    def test_task_without_a_scorer(self):
        from dizoo_llm.envs import TokenEnv
        kind = type('Unscored', (ScriptedTask, ), dict(score=Task.score, words=['what', 'is', 'it?']))
        TASK_REGISTRY.register('unscored', kind, True)
        for create in (create_task, lambda cfg: TokenEnv(kind(cfg['answer']))):
            with pytest.raises(ConfigError, match='env.task: Unscored must define score or score_batch'):
                create(dict(type='unscored', answer=1))
        with pytest.raises(NotImplementedError, match='Unscored must define score or score_batch'):
            kind(1).score(Problem('p'), 'c')


def define(value, name='Mine'):
    """A class as a notebook's cell defines it, again each time."""

    class Mine(ScriptedTask):
        number = value

    Mine.__qualname__ = name
    return Mine


@pytest.mark.unittest
class TestRegistry:

    def test_a_cell_that_runs_again_replaces_its_class(self):
        for value in (1, 2):
            assert TASK_REGISTRY.register('mine')(define(value)).number == value
        assert TASK_REGISTRY.get('mine').number == 2
        TASK_REGISTRY.register('mine', define(3))
        assert TASK_REGISTRY.get('mine').number == 3

    def test_another_class_of_the_same_name_is_refused_in_one_line(self):
        TASK_REGISTRY.register('taken', define(1))
        for register in (TASK_REGISTRY.register('taken'), lambda kind: TASK_REGISTRY.register('taken', kind)):
            with pytest.raises(ConfigError, match=r"register\('taken'\): test_tasks.Mine has this name. Choose"):
                register(define(2, 'Other'))
        assert TASK_REGISTRY.get('taken').number == 1
        TASK_REGISTRY.register('taken', define(2, 'Other'), force_overwrite=True)
        assert TASK_REGISTRY.get('taken').number == 2

    def test_the_name_of_the_class_is_the_default(self):
        kind = define(1, 'Unnamed')
        kind.__name__ = 'Unnamed'
        TASK_REGISTRY.register()(kind)
        assert TASK_REGISTRY.get('Unnamed') is kind


SCORERS = dict(
    numpy='import numpy as np\ndef score_batch(problems, completions):\n    return np.array([{}, 0.25], np.float32)',
    torch='import torch\ndef score_batch(problems, completions):\n'
    '    return torch.tensor([{}, 0.25], dtype=torch.bfloat16, requires_grad=True)',
)
PROBLEMS = "\ndef problems():\n    return [dict(prompt='a', answer='b')]\n"


@pytest.mark.unittest
class TestScorers:

    @pytest.mark.parametrize('kind', SCORERS)
    def test_of_batches_may_return_arrays(self, tmp_path, kind):
        (tmp_path / 'a.py').write_text(SCORERS[kind].format('0.5') + PROBLEMS)
        task = create_task(dict(type='python', file=str(tmp_path / 'a.py')))
        problem = task.problem(0)
        assert task.checked_scores([problem] * 2, ['x', 'y']) == [dict(score=0.5), dict(score=0.25)]
        short, = set(task.checked_scores([problem] * 3, ['x', 'y', 'z']))
        assert short.message == 'PythonTask.score_batch returned 2 entries, must return a list of 3'

    @pytest.mark.parametrize('value, told', [('1e39', '1e+39|inf'), ('float("nan")', 'nan')])
    @pytest.mark.parametrize('kind', SCORERS)
    def test_numbers_of_arrays_are_checked(self, tmp_path, kind, value, told):
        (tmp_path / 'a.py').write_text(SCORERS[kind].format(value) + PROBLEMS)
        task = create_task(dict(type='python', file=str(tmp_path / 'a.py')))
        bad, good = task.checked_scores([task.problem(0)] * 2, ['x', 'y'])
        assert re.search(f'scored score = ({told}), must be a finite', bad.message) and good == dict(score=0.25)

    @pytest.mark.parametrize(
        'content', [
            'async def score(problem, completion):\n    return 1.0' + PROBLEMS,
            'async def score_batch(problems, completions):\n    return [1.0]' + PROBLEMS,
            'class Scorer:\n    async def __call__(self, problem, completion):\n        return 1.0\nscore = Scorer()' +
            PROBLEMS,
            'def score(problem, completion):\n    return 1.0\nasync' + PROBLEMS.replace('\n', ' ', 1),
        ]
    )
    def test_of_a_file_that_nothing_awaits(self, tmp_path, content):
        (tmp_path / 'a.py').write_text(content)
        with pytest.raises(ConfigError,
                           match=r"a.py': (score|score_batch|problems): is defined by async def, and must"):
            create_task(dict(type='python', file=str(tmp_path / 'a.py')))

    @pytest.mark.parametrize('name', ['problem', 'score', 'score_batch', 'demonstration'])
    def test_of_a_class_that_nothing_awaits(self, name):

        async def wait(self, *args):
            return 1.0

        kind = type('Waiting', (ScriptedTask, ), {name: wait, '__init__': lambda self: None})
        TASK_REGISTRY.register('waiting', kind, force_overwrite=True)
        with pytest.raises(ConfigError, match=f'^env.task: Waiting.{name}: is defined by async def, and must be an'):
            create_task(dict(type='waiting'))

    def test_of_a_file_whose_parts_have_no_names(self, tmp_path):
        score = 'def score(problem, completion):\n    return 1.0'
        (tmp_path / 'a.py').write_text(f'weights = {{1: 1.0}}\n{score}{PROBLEMS}')
        with pytest.raises(ConfigError, match='must be a dict of names and numbers'):
            create_task(dict(type='python', file=str(tmp_path / 'a.py')))


@pytest.mark.unittest
def test_problems_and_replies_have_a_dict_of_their_own():
    one, other = Problem('a'), Problem('a')
    one.metadata['kind'] = 'x'
    assert other.metadata == {} and Problem('b').metadata == {}
    Reply('a').parts['right'] = 1.0
    assert Reply('a').parts == {}
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one == Problem('a', '', dict(kind='x'))
    assert one._replace(answer='2') == Problem('a', '2', dict(kind='x')) and type(one._replace()) is Problem
    assert Problem('a', metadata=None).metadata is None  # a mistake is not covered up
