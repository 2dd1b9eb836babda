from collections import Counter

import pytest

from ding_common import ConfigError, TaskError
from dizoo_llm.tasks import TASK_REGISTRY, ArithmeticTask, create_task
from tests.tasks import Ask

SUMS = dict(type='arithmetic', operations='+', high=9, eval_size=8)
PRODUCTS = dict(type='arithmetic', operations='*', high=9, eval_size=4)
SPELL = dict(type='reasoning_gym', name='spell_backward', eval_size=6, size=30, weights=dict(score=0.0, right=1.0))


def mixture(*parts):
    return create_task(dict(type='mixture', parts=list(parts)))


def kinds(task):
    return [task.problem(i).metadata['part'] for i in range(len(task))]


@pytest.mark.unittest
class TestMixture:

    def test_all_problems_in_proportion_to_the_weights(self):
        task = mixture(dict(SUMS, weight=3), dict(PRODUCTS, weight=1))
        count = Counter(kinds(task))
        sums, products = (len(create_task(part)) for part in (SUMS, PRODUCTS))
        assert count[1] == products and count[0] == 3 * count[1]
        texts = {task.problem(i).prompt[-1]['content'] for i in range(len(task))}
        assert len(texts) == sums + products
        for begin in range(0, len(task) - 8, 8):  # spread evenly
            assert Counter(kinds(task)[begin:begin + 8])[0] in (5, 6, 7)

    def test_evaluation_is_all_held_out_problems_once(self):
        task = mixture(dict(SUMS, weight=3), PRODUCTS).evaluation()
        assert Counter(kinds(task)) == {0: 8, 1: 4}
        assert len({task.problem(i).prompt[-1]['content'] for i in range(len(task))}) == 12

    def test_scores_are_those_of_the_problems_task(self):
        pytest.importorskip('reasoning_gym')
        task = mixture(SUMS, SPELL)
        assert task.weights == dict(right=1.0, score=0.0)
        for i in range(6):
            problem = task.problem(i)
            score = task.checked_score(problem, problem.answer)
            assert score['right'] == 1 and task.demonstration(problem) == problem.answer
            assert score['score'] == (None if problem.metadata['part'] == 0 else 1)
        assert {task.problem(i).metadata['kind'] for i in range(6)} == {'ArithmeticTask', 'spell_backward'}

    def test_a_mixture_of_mixtures(self):
        task = mixture(dict(type='mixture', parts=[SUMS, PRODUCTS]), dict(SUMS, seed=1))
        for i in range(0, len(task), 7):
            problem = task.problem(i)
            assert task.checked_score(problem, problem.answer) == dict(right=1) != task.checked_score(problem, 'x')

    def test_a_scorer_that_breaks_its_promise_is_told_of(self, monkeypatch):
        task = mixture(SUMS, PRODUCTS)
        monkeypatch.setattr(ArithmeticTask, 'score', lambda self, problem, completion: dict(rihgt=1.0))
        with pytest.raises(TaskError, match="ArithmeticTask scored {'rihgt': 1.0}, must score exactly"):
            task.checked_score(task.problem(0), '1')

    @pytest.mark.parametrize(
        'parts, message', [
            ([], r'env.task.parts = \[\]'),
            ([dict(SUMS, weight=0)], r'parts\[0\].weight = 0: must be'),
            ([SUMS, dict(SUMS, high='x')], r'env.task.parts\[1\].high'),
            ([SUMS, dict(type='think_answer')], "'solved'; they must be equal"),
            ([SUMS, dict(PRODUCTS, weight=1e-9)], 'an epoch over all problems would have'),
            ([SUMS, dict(SPELL, weights=dict(score=0.0, right=2.0))], "weights 1 and 2"),
        ],
        ids=str
    )
    def test_arguments(self, parts, message):
        pytest.importorskip('reasoning_gym')
        with pytest.raises(ConfigError, match=message):
            mixture(*parts)

    def test_it_offers_the_tools_of_its_parts(self):

        class Offering(Ask):

            def __init__(self, name: str):
                super().__init__('a')
                self.tools = [dict(type='function', function=dict(name=name))]

        TASK_REGISTRY.register('offering', Offering, force_overwrite=True)
        one, other = dict(type='offering', name='a'), dict(type='offering', name='b')
        assert mixture(one, one).tools == Offering('a').tools
        with pytest.raises(ConfigError, match='Offering has tools = .*they must be equal'):
            mixture(one, other)
