"""What a scorer pays: broken scorers are named, healthy ones are not."""
import random
import re
import time

import pytest

from dizoo_llm.preflight.reward import of_reward
from dizoo_llm.preflight.texts import FORMS, junk, right
from dizoo_llm.tasks import Problem, create_task
from tests.dizoo_llm.helper import Prompts

WORDS = ['first', 'second', 'third', 'fourth', 'fifth', 'sixth']


def examined(scorer, **attributes):
    task = Prompts(*WORDS, scorer=scorer, **attributes)
    return of_reward(task, task.weights)


def causes(scorer, **attributes):
    return [found['cause'] for found in examined(scorer, **attributes).findings]


def exact(problem, completion):
    return dict(right=float(completion.strip() == problem.answer))


def boxed(problem, completion):
    return dict(right=float(re.findall(r'boxed{(.*?)}', completion)[-1:] == [problem.answer]))


@pytest.mark.parametrize('scorer, form', [(exact, 'bare'), (boxed, 'boxed')])
def test_a_healthy_scorer_and_the_form_that_it_reads(scorer, form):
    found = examined(scorer)
    assert (found.findings, found.form, found.reward) == ([], form, 1.0)
    assert found.lines[0].startswith(f'right completions ({form}, for example ')
    assert '6 of 6 are paid more than a wrong answer' in found.lines[0]


BROKEN = {
    'no_success': lambda problem, completion: 0.0,
    'always_paid': lambda problem, completion: 1.0,
    'wrong_key': lambda problem, completion: completion == str((int(problem.answer) + 1) % 6),
    'junk_pays': lambda problem, completion: len(completion) > 20 or completion == problem.answer,
    'answers_rejected': lambda problem, completion: completion == problem.answer != '3',
    'not_deterministic': lambda problem, completion: (completion == problem.answer) * random.random(),
}


@pytest.mark.parametrize('cause', BROKEN)
def test_a_broken_scorer_is_named(cause):
    assert causes(lambda problem, completion: dict(right=float(BROKEN[cause](problem, completion)))) == [cause]


def test_a_list_of_answers_is_no_answer():
    found, = examined(lambda problem, completion: dict(right=float(problem.answer in completion))).findings
    assert found['kinds'] == ['list of answers'] and 'in 6 of 6 problems' in found['message']


def test_several_answers_in_the_form_of_one_are_no_answer():

    def among(problem, completion):
        return dict(right=float(problem.answer in re.findall(r'boxed{(.*?)}', completion)))

    found, = examined(among).findings
    assert found['kinds'] == ['list of right completions']


def test_wrong_answers_may_be_paid_less_than_nothing():
    found = examined(lambda problem, completion: dict(right=exact(problem, completion)['right'] - 1))
    assert (found.findings, found.form, found.reward) == ([], 'bare', 0.0)
    assert '6 of 6 are paid' in found.lines[0] and '  empty: -1' in found.lines


def test_one_answer_in_other_forms_is_no_other_answer():

    class Numbers(Prompts):

        def problem(self, index):
            return super().problem(index)._replace(answer=('1000', '1,000', '1000.0')[index % 3])

    def number(problem, completion):
        try:
            return dict(right=float(float(completion.replace(',', '')) == float(problem.answer.replace(',', ''))))
        except ValueError:
            return dict(right=0.0)

    task = Numbers(*WORDS, scorer=number)
    found = of_reward(task, task.weights)
    assert found.findings == [] and not any('another problem' in line for line in found.lines)


def test_data_whose_answers_repeat_in_order():
    """Each problem is examined with the answer of another, whatever the period of the data."""

    class Choices(Prompts):

        def problem(self, index):
            return super().problem(index)._replace(answer='ABCD'[index % 4])

    task = Choices(*map(str, range(800)), scorer=exact)
    found = of_reward(task, task.weights)
    assert found.findings == [] and '  answer of another problem: 0, 0 % of a right completion' in found.lines


def test_junk_that_is_right_by_chance():
    """The prompt of one problem of six ends with its answer, or those of two."""
    assert causes(lambda problem, completion: dict(right=float(completion in (problem.answer, 'third')))) == []
    paid = ('third', 'fourth')
    found, = examined(lambda problem, completion: dict(right=float(completion in (problem.answer, *paid)))).findings
    assert found['kinds'] == ['prompt'] and 'in 2 of 6 problems' in found['message']


def test_a_scorer_that_fails():

    def on_right(problem, completion):
        if completion == '3':
            raise ValueError('no three')
        return exact(problem, completion)

    def on_junk(problem, completion):
        return dict(right=float(completion[0] == problem.answer))

    found, = examined(on_right).findings
    assert found['cause'] == 'not_scored' and 'ValueError: no three' in found['message']
    found, = examined(on_junk).findings
    assert found['cause'] == 'junk_not_scored' and found['kinds'] == ['empty'] and 'IndexError' in found['message']


@pytest.fixture
def soon_slow(monkeypatch):
    monkeypatch.setattr('dizoo_llm.preflight.reward.LONG_SECONDS', 0.05)


def test_a_machine_that_is_busy_once_makes_no_finding(soon_slow):
    stops, asked = iter([0.1]), []

    def stopped(problem, completion):
        asked.append(len(completion))
        time.sleep(next(stops, 0) if len(completion) >= 1000 else 0)
        return exact(problem, completion)

    assert examined(stopped).findings == [] and max(asked) >= 100_000


def test_a_scorer_that_needs_longer_for_longer_texts_and_keeps_scores(soon_slow):
    kept = {}

    def slow(problem, completion):
        if completion not in kept:
            time.sleep(1e-5 * len(completion) if len(completion) >= 1000 else 0)
            kept[completion] = len(completion)
        return exact(problem, completion)

    found, = examined(slow).findings
    assert found['cause'] == 'slow' and found['length'] == 10_000 and max(kept.values()) == 10_002


def test_parts_that_teach_nothing():

    def two(problem, completion):
        return dict(exact(problem, completion), form=1.0, shown=0.0, never=None)

    found = examined(two, weights=dict(right=1.0, form=0.5, never=0.5, shown=0.0)).findings
    assert [(each['cause'], each['part']) for each in found] == [('constant_part', 'form'), ('constant_part', 'never')]


def test_what_is_shown_of_each_kind_of_text():
    lines = examined(lambda problem, completion: dict(right=0.25 + 0.75 * exact(problem, completion)['right'])).lines
    assert '  right: 1, 100 % of a right completion' in lines and '  empty: 0.25, 25 % of a right completion' in lines


@pytest.mark.parametrize('reward, cause', [(1.0, ['always_paid']), (0.0, [])])
def test_problems_without_answers(reward, cause):
    """Only junk can be scored, for which nothing is the right reward."""

    class Unanswered(Prompts):

        def problem(self, index):
            return super().problem(index)._replace(answer='')

    task = Unanswered(*WORDS, scorer=lambda problem, completion: dict(right=reward))
    found = of_reward(task, task.weights)
    assert [each['cause'] for each in found.findings] == cause and found.form is None


def test_texts():
    task = create_task(dict(type='think_answer'))
    problem = task.problem(0)
    shown = right(task, problem)
    assert shown == dict(demonstration=task.demonstration(problem))
    texts = junk(problem, shown['demonstration'], [task.problem(1)], [task.demonstration(task.problem(1))])
    assert texts['answer of another problem'] == task.demonstration(task.problem(1))
    assert problem.answer not in texts['form without the answer'] and texts['prompt'] == problem.text
    bare = right(Prompts('a'), Problem('a', '7'))
    assert list(bare) == list(FORMS) and bare['boxed'] == '\\boxed{7}' and right(Prompts('a'), Problem('a', '')) == {}
