import pytest

from ding_common import ConfigError
from dizoo_llm.tasks import create_task

SUMS = dict(type='arithmetic', operations='+-', low=1, high=9, examples=2, eval_size=20)


def last(problem):
    return problem.prompt[-1]['content']


@pytest.mark.unittest
class TestArithmetic:

    def test_a_problem(self):
        task = create_task(SUMS)
        for i in range(len(task)):
            problem = task.problem(i)
            assert [m['role'] for m in problem.prompt] == ['user', 'assistant'] * 2 + ['user']
            a, operation, b = last(problem).removeprefix('What is ').removesuffix('?').split()
            assert problem.answer == str(int(a) + int(b) if operation == '+' else int(a) - int(b))

    def test_examples_evaluation_and_training_have_no_problem_twice(self):
        task = create_task(SUMS)
        held_out = task.evaluation()
        shown = [m['content'] for m in task.problem(0).prompt[:-1:2]]
        texts = shown + [last(t.problem(i)) for t in (task, held_out) for i in range(len(t))]
        assert len(held_out) == 20 and len(texts) == len(set(texts)) < 2 * 9 * 9
        assert held_out.problem(0).prompt[:-1] == task.problem(5).prompt[:-1]
        assert task.problem(0) == create_task(SUMS).problem(0) != create_task(dict(SUMS, seed=1)).problem(0)

    def test_training_numbers_may_be_larger(self):
        small, large = create_task(SUMS), create_task(dict(SUMS, train_high=12))
        assert [small.problem(i) for i in range(len(small))] == [large.problem(i) for i in range(len(small))]
        held_out = [task.evaluation() for task in (small, large)]
        assert [held_out[0].problem(i) for i in range(20)] == [held_out[1].problem(i) for i in range(20)]
        assert 0 < len(large) - len(small) < 2 * (12 ** 2 - 9 ** 2)  # without the differences of held-out sums
        more = [last(large.problem(i)).removesuffix('?').split()[2::2] for i in range(len(small), len(large))]
        assert all(max(map(int, numbers)) in (10, 11, 12) for numbers in more)

    def test_score(self):
        task = create_task(SUMS)
        problem = task.problem(0)._replace(answer='-7')
        told = {'-7': 1, ' -7\n': 1, '7': 0, '-7.': 0, '-70': 0, '': 0, 'The answer is -7': 0}
        assert {text: task.checked_score(problem, text)['right'] for text in told} == told

    def test_near_misses(self):
        task = create_task(dict(SUMS, near=0.5))
        problem = task.problem(0)._replace(answer='-7')
        told = {'-7': 1, '-6': 1 / 2, '-9': 1 / 3, '7': 1 / 15, '-7.': 0, 'about -7': 0, '': 0, '9' * 5000: 0, '٧': 0}
        parts = {text: task.checked_score(problem, text) for text in told}
        assert {text: found['near'] for text, found in parts.items()} == told
        assert parts['-6']['right'] == 0 and task.weights == task.evaluation().weights == dict(right=1.0, near=0.5)
        assert 'near' not in create_task(SUMS).score(problem, '-6')

    def test_results_that_are_not_negative(self):
        task = create_task(dict(SUMS, negative=False, examples=4))
        held_out = task.evaluation()
        problems = [t.problem(i) for t in (task, held_out) for i in range(len(t))]
        answers = [p.answer for p in problems] + [m['content'] for m in problems[0].prompt[1::2]]
        assert len(answers) <= 9 * 9 + 9 * 10 // 2 and min(map(int, answers)) == 0

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(negative=1.5), 'negative = 1.5: must be True or False'),
            (dict(near=-1), 'near = -1: must be a number in'),
            (dict(train_high=8), 'train_high = 8: must be an integer of at least 9'),
            (dict(train_high=1000), 'train_high = 1000 with env.task.low = 1: must .* at most 1,000,000 problems'),
            (dict(operations='/'), r"operations = '/': must be some of '\+-\*'"),
            (dict(examples=-1), 'examples = -1: must be an integer of at least 0'),
            (dict(eval_size=200), 'none is left for training'),
            (dict(high=0), 'high = 0 with env.task.low = 1: must be at least as large'),
            (dict(high=9999), 'at most 1,000,000 problems'),
        ],
        ids=str
    )
    def test_arguments(self, changes, message):
        with pytest.raises(ConfigError, match=message):
            create_task(dict(SUMS, **changes))
