"""Sums and products, the calculator, and mixtures of tasks."""
import random
from collections import Counter

import pytest

from ding_common import ConfigError, TaskError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.envs.demonstrations import Demonstrations
from dizoo_llm.tasks import TASK_REGISTRY, ProductsTask, create_task
from dizoo_llm.tasks.calculator import calc
from dizoo_llm.tasks.products import NUMBERS
from tests.dizoo_llm.helper import PROBLEMS, problems, python_task, sides
from tests.shipped import load
from tests.tasks import Ask

BOTH = dict(type='arithmetic', operations='+-', low=1, high=9, examples=2, eval_size=20)
SUMS = dict(type='arithmetic', operations='+', high=9, eval_size=8)
PRODUCTS = dict(type='arithmetic', operations='*', high=9, eval_size=4)
SPELL = dict(type='reasoning_gym', name='spell_backward', eval_size=6, size=30, weights=dict(score=0.0, right=1.0))
CALL = '<tool_call>{"name":"calc","arguments":{"expression":"%s"}}</tool_call>'


def last(problem):
    return problem.prompt[-1]['content']


class TestArithmetic:

    def test_a_problem(self):
        for problem in problems(create_task(BOTH)):
            assert [m['role'] for m in problem.prompt] == ['user', 'assistant'] * 2 + ['user']
            a, operation, b = last(problem).removeprefix('What is ').removesuffix('?').split()
            assert problem.answer == str(int(a) + int(b) if operation == '+' else int(a) - int(b))

    def test_examples_evaluation_and_training_have_no_problem_twice(self):
        task = create_task(BOTH)
        trained, held_out = sides(task, last)
        texts = [m['content'] for m in task.problem(0).prompt[:-1:2]] + trained + held_out
        assert len(held_out) == 20 and len(texts) == len(set(texts)) < 2 * 9 * 9
        assert task.evaluation().problem(0).prompt[:-1] == task.problem(5).prompt[:-1]
        assert task.problem(0) == create_task(BOTH).problem(0) != create_task(dict(BOTH, seed=1)).problem(0)

    def test_training_numbers_may_be_larger(self):
        (small, held_out), (large, same) = (sides(create_task(cfg), tuple) for cfg in (BOTH, dict(BOTH, train_high=12)))
        assert large[:len(small)] == small and held_out == same
        more = [prompt[-1]['content'].removesuffix('?').split()[2::2] for prompt, *_ in large[len(small):]]
        assert 0 < len(more) < 2 * (12 ** 2 - 9 ** 2)  # without the differences of held-out sums
        assert all(max(map(int, numbers)) in (10, 11, 12) for numbers in more)

    def test_score(self):
        task = create_task(BOTH)
        problem = task.problem(0)._replace(answer='-7')
        told = {'-7': 1, ' -7\n': 1, '7': 0, '-7.': 0, '-70': 0, '': 0, 'The answer is -7': 0}
        assert {text: task.checked_score(problem, text)['right'] for text in told} == told
        assert 'near' not in task.score(problem, '-6')

    def test_near_misses(self):
        task = create_task(dict(BOTH, near=0.5))
        problem = task.problem(0)._replace(answer='-7')
        told = {'-7': 1, '-6': 1 / 2, '-9': 1 / 3, '7': 1 / 15, '-7.': 0, 'about -7': 0, '': 0, '9' * 5000: 0, '٧': 0}
        parts = {text: task.checked_score(problem, text) for text in told}
        assert {text: found['near'] for text, found in parts.items()} == told
        assert parts['-6']['right'] == 0 and task.weights == task.evaluation().weights == dict(right=1.0, near=0.5)

    def test_results_that_are_not_negative(self):
        task = create_task(dict(BOTH, negative=False, examples=4))
        trained, held_out = sides(task, lambda problem: problem.answer)
        answers = [*trained, *held_out, *(m['content'] for m in task.problem(0).prompt[1::2])]
        assert len(answers) <= 9 * 9 + 9 * 10 // 2 and min(map(int, answers)) == 0


class TestCalculator:

    @pytest.mark.parametrize(
        'expression, value', [
            ('12 * 34', '408'), ('2+3*4', '14'), ('(2+3)*-4', '-20'), ('7/2', '3.5'), ('6/3', '2'), ('.1+.2', '0.3'),
            ('1/3*3', '1'), ('1/3', '0.3333333333'), (' 5 ', '5'), ('1e3', '1000'), ('9' * 90 + '*1', '9' * 90)
        ]
    )
    def test_by_hand(self, expression, value):
        assert calc(expression) == value

    def test_integers_as_python_computes_them(self):
        random.seed(0)
        for _ in range(500):
            a, b, c = (random.randint(0, 99) for _ in range(3))
            text = f'{a} {random.choice("+-*")} ({b} {random.choice("+-*")} {c})'
            assert calc(text) == str(eval(text))

    @pytest.mark.parametrize(
        'expression', [
            '', '1 +', '2 ** 9 ** 9', '1 // 2', '__import__("os")', '"a" * 9', '1; 2', 'True', '1j', '[1]', 'x := 1',
            '1 < 2', '~1', '1e999', '1e308*1e308/3', '1/(1-1)', '(' * 150, '-' * 190 + 'x', '1+' * 100 + '1', '1\0', '٣'
        ]
    )
    def test_anything_else_is_an_error(self, expression):
        with pytest.raises(ValueError):
            calc(expression)


class TestProducts:

    def test_every_product_once(self):
        sides_ = sides(ProductsTask(eval_size=100), lambda problem: problem.prompt)
        trained, kept = map(set, sides_)
        assert list(map(len, sides_)) == [len(trained), 100] and not trained & kept
        exchanged = {'*'.join(reversed(prompt[:-1].split('*'))) + '=' for prompt in kept}
        assert trained == {f'{a}*{b}=' for a in NUMBERS for b in NUMBERS} - kept - exchanged

    def test_the_number_and_nothing_else(self):
        task = ProductsTask()
        problem = next(problem for problem in problems(task) if problem.prompt == '34*56=')
        told = {'1904': 1, '': 0, '1904 ': 0, '01904': 0, '190': 0, '34*56': 0}
        assert {text: task.checked_score(problem, text)['right'] for text in told} == told

    def test_every_second_demonstration_is_right(self):
        main = load('calculator_grpo')[0]
        task = dict(main.env.task, demonstration='dizoo_llm.tasks.products:half_right')
        env = TokenEnv(task, max_turns=2, max_new_tokens=76, max_reply_tokens=64)
        examples, rewards = Demonstrations(env), []
        for index in range(200):
            row, reward = examples.played(index)
            problem, text = env.task.problem(index), env.tokenizer.decode([i for i in row['labels'] if i >= 0])
            if index % 2 == 0:
                assert text == f'{CALL % problem.prompt[:-1]}<eos>{problem.answer}<eos>' and reward == 1
            else:
                assert text[:-len('<eos>')].isdigit() and len(text) == 4 + len('<eos>')
            rewards.append(reward)
        assert rewards[::2] == [1] * 100 and sum(rewards[1::2]) <= 2


def mixture(*parts):
    return create_task(dict(type='mixture', parts=list(parts)))


class TestMixture:

    def test_all_problems_in_proportion_to_the_weights_and_all_held_out_ones_once(self):
        task = mixture(dict(SUMS, weight=3), dict(PRODUCTS, weight=1))
        kinds, held_out = sides(task, lambda problem: problem.metadata['part'])
        texts, asked = map(set, sides(task, lambda problem: problem.prompt[-1]['content']))
        sums, products = (len(create_task(part)) for part in (SUMS, PRODUCTS))
        assert kinds.count(1) == products and kinds.count(0) == 3 * products and len(texts) == sums + products
        for begin in range(0, len(task) - 8, 8):  # spread evenly
            assert kinds[begin:begin + 8].count(0) in (5, 6, 7)
        assert Counter(held_out) == {0: 8, 1: 4} and len(asked) == 12

    def test_scores_are_those_of_the_problems_task(self):
        pytest.importorskip('reasoning_gym')
        task = mixture(SUMS, SPELL)
        assert task.weights == dict(right=1.0, score=0.0)
        for problem in problems(task)[:6]:
            score = task.checked_score(problem, problem.answer)
            assert score['right'] == 1 and task.demonstration(problem) == problem.answer
            assert score['score'] == (None if problem.metadata['part'] == 0 else 1)
        assert {problem.metadata['kind'] for problem in problems(task)[:6]} == {'ArithmeticTask', 'spell_backward'}

    def test_a_mixture_of_mixtures(self):
        task = mixture(dict(type='mixture', parts=[SUMS, PRODUCTS]), dict(SUMS, seed=1))
        for problem in problems(task)[::7]:
            assert task.checked_score(problem, problem.answer) == dict(right=1) != task.checked_score(problem, 'x')

    def test_a_scorer_that_breaks_its_promise_is_told_of(self, tmp_path):
        scorer = 'weights = dict(right=1.0)\ndef score(problem, completion):\n    return dict(rihgt=1.0)\n'
        python_task(tmp_path, PROBLEMS + scorer)
        task = mixture(*[dict(type='file', path=str(tmp_path / 't.py'))] * 2)
        with pytest.raises(TaskError, match="FileTask scored {'rihgt': 1.0}, must score exactly"):
            task.checked_score(task.problem(0), '1')

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
