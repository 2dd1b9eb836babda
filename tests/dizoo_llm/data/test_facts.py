"""No shipped task trains what it holds out in another form: a + b = c is b + a = c, c - a = b and c - b = a."""
import re

import pytest

from dizoo_llm.data.facts import as_written
from dizoo_llm.tasks import Problem, create_task
from tests.dizoo_llm.helper import file_task, python_task, sides, write


def numbers(problem):
    return [int(n) for n in re.findall(r'\d+', problem.messages[-1]['content'])]


def sum_or_difference(problem):
    """Terms and result with signs, whose sum is 0; all signs may be exchanged."""
    expression = re.search(r'\d[\d\s+-]*', problem.messages[-1]['content'])[0].replace(' ', '')
    terms = [int(term) for term in re.findall(r'[+-]?\d+', expression)]
    terms.append(-sum(terms))
    return min(tuple(sorted(terms)), tuple(sorted(-term for term in terms)))


def factors(problem):
    return tuple(sorted(numbers(problem)))


def sorted_words(problem):
    """In ascending or in descending order."""
    return tuple(sorted(problem.answer.split(', ')))


def word(problem):
    return min(problem.answer, problem.answer[::-1]).lower()


def gym(name, **config):
    return dict(type='reasoning_gym', name=name, config=config, eval_size=60, size=1500)


TASKS = dict(
    arithmetic=(dict(type='arithmetic', high=12, eval_size=40, train_high=15), sum_or_difference),
    arithmetic_products=(dict(type='arithmetic', operations='*', high=12, eval_size=40), factors),
    chain_sum=(gym('chain_sum', min_terms=2, max_terms=3, min_digits=1, max_digits=2), sum_or_difference),
    word_sorting=(gym('word_sorting', min_words=2, max_words=2, min_word_length=3, max_word_length=3), sorted_words),
    gym_products=(gym('products', min_digits=1, max_digits=2), factors),
    gcd=(gym('gcd', max_value=30), factors),
    lcm=(gym('lcm', max_value=30), factors),
    spell_backward=(gym('spell_backward', min_word_len=3, max_word_len=4), word),
)


@pytest.mark.parametrize('name', TASKS)
def test_no_form_of_a_held_out_fact_is_trained(name):
    written, fact = TASKS[name]
    if written['type'] == 'reasoning_gym':
        pytest.importorskip('reasoning_gym')
    trained, held_out = sides(create_task(written), fact)
    assert not set(held_out) & set(trained)
    assert len(held_out) == written.get('eval_size', 200) and len(trained) > 20


def test_no_form_of_a_worked_example_is_held_out():
    task = create_task(dict(type='arithmetic', high=9, eval_size=40, examples=12))
    prompt = task.problem(0).prompt
    shown = {sum_or_difference(Problem(prompt[i:i + 1])) for i in range(0, 24, 2)}
    assert not shown & set(sides(task, sum_or_difference)[1])


@pytest.mark.parametrize(
    'one, other, same', [
        ('What is 3 + 5?', 'what is  3+5', True),
        ('What is 3 + 5?', 'What is 3 - 5?', False),
        ('Pay 3.5', 'Pay 35', False),
        ('...', '???', False),
        ('', ' ', True),
    ]
)
def test_as_written(one, other, same):
    assert (as_written(Problem(one, '1')) == as_written(Problem(other, '2'))) == same


ROWS = [dict(question=f'What is {a} + {b}?', answer=str(a + b), sum=a + b) for a in range(9) for b in range(9)]
PYTHON = '''
def problems():
    return [dict(prompt=f"{a}+{b}", answer=str(a + b), fact=a + b) for a in range(9) for b in range(9)]
def score(problem, completion):
    return 0.0
'''


@pytest.mark.filterwarnings('ignore:env.task')
class TestFiles:

    def test_a_column_names_the_fact(self, tmp_path):
        for task in (file_task(tmp_path / 'a.jsonl', ROWS, fact='sum', eval_size=20), python_task(tmp_path, PYTHON,
                                                                                                  eval_size=20)):
            trained, held_out = sides(task, lambda problem: problem.answer)
            assert len(held_out) == 20 and not set(held_out) & set(trained) and len({*held_out, *trained}) == 17

    def test_near_duplicates(self, tmp_path):
        again = [dict(row, question=row['question'].upper().rstrip('?')) for row in ROWS]
        task = file_task(tmp_path / 'a.jsonl', ROWS + again, eval_size=20)
        trained, held_out = (set(map(tuple, side)) for side in sides(task, numbers))
        assert not held_out & trained and len(held_out | trained) == 81

    def test_a_file_for_evaluation(self, tmp_path):
        path, kept = tmp_path / 'a.jsonl', write(
            tmp_path / 'e.jsonl', [dict(question='what is 2+3', answer='5', sum=5)]
        )
        with pytest.warns(UserWarning, match='env.task.eval_path: 1 of 81 problems are not trained'):
            assert len(file_task(path, ROWS, eval_path=kept)) == 80
        assert len(file_task(path, ROWS, eval_path=kept, fact='sum')) == 81 - 6
