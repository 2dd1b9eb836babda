import pytest
import torch

from dizoo_llm.tasks import TASK_REGISTRY, Problem, Task, ThinkAnswerTask, create_task
from ding_common import ConfigError, TaskError


@pytest.mark.unittest
class TestThinkAnswer:

    def test_prompts_are_the_notebooks(self):
        from dizoo_llm.tokenizer import build_word_tokenizer
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
