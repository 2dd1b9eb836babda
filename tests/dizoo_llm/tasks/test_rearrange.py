"""Letters that are rearranged in steps: problems, scores, what is said of a completion, and the demonstrations."""
import pytest

from ding_common import ConfigError
from dizoo_llm.base import Problem
from dizoo_llm.tasks import create_task
from dizoo_llm.tasks.rearrange.steps import written
from tests.dizoo_llm.helper import problems, sides

BY_HAND = Problem('', 'c d b a', dict(letters=['b', 'd', 'a', 'c'], chain=('reverse', 'swap', 'rotate')))
RIGHT = '1 c a d b 2 a c d b 3 c d b a'


def test_a_problem():
    task = create_task(dict(type='rearrange', steps=3, eval_size=2))
    assert written(**BY_HAND.metadata) == task.demonstration(BY_HAND) == RIGHT
    for problem in problems(task):
        letters, chain = problem.metadata['letters'], problem.metadata['chain']
        steps = ' '.join(f'{i} {name}' for i, name in enumerate(chain, 1))
        assert problem.prompt == f"{' '.join(letters)} : {steps} >" and len(set(letters)) == 4
        completion = task.demonstration(problem)
        assert completion.endswith(f' 3 {problem.answer}') and set(completion.split()) < set(task.words)
        assert task.score(problem, completion) == dict(right=1.0)
    assert task.problem(5) == create_task(dict(type='rearrange', steps=3, eval_size=2)).problem(5)
    assert task.problem(5) != create_task(dict(type='rearrange', steps=3, eval_size=2, seed=1)).problem(5)


def test_no_chain_is_both_trained_and_held_out():
    task = create_task(dict(type='rearrange', steps=4, eval_size=20))
    trained, held_out = sides(task, lambda problem: problem.metadata['chain'])
    assert len(held_out) == len(set(held_out)) == 20 and len(trained) == 20 * (3 ** 4 - 20)
    assert len(set(trained)) == 3 ** 4 - 20 and not set(trained) & set(held_out)


def test_only_the_last_line_is_scored():
    task = create_task(dict(type='rearrange', steps=3, eval_size=1))
    told = {
        RIGHT: 1,
        '3 c d b a': 1,
        'c d b a': 1,
        '1 a a a a 2 3 c d b a': 1,  # wrong before
        f'{RIGHT} c d b a': 0,
        f'{RIGHT} 3': 0,
        f'{RIGHT} >': 0,
        f'{RIGHT} wrong': 0,
        '3 c d b a 3 c d a b': 0,
        '3 c d b': 0,
        '3 a c d b': 0,
        '3 c d b a a': 0,
        'cdba': 0,
        '3 C D B A': 0,
        '3': 0,
        '': 0,
    }
    assert {text: task.checked_score(BY_HAND, text)['right'] for text in told} == told


def test_feedback_names_the_lines_that_do_not_follow():
    task = create_task(dict(type='rearrange', steps=3, eval_size=1))
    told = {
        RIGHT: None,
        '1 b d a c 2 d b a c 3 b a c d': 'wrong 1',  # the first step is skipped, the others follow from it
        '1 c a d b 2 c a d b 3 a d b c': 'wrong 2',
        '1 b d a c 2 b d a c 3 d a c b': 'wrong 1 2',
        '1 c a d b 2 a c d b 4 c d b a': 'wrong 3',
        f'{RIGHT} a': 'wrong 3',
        '1 c a d b': 'wrong 2 3',
        'c d b a': 'wrong 1 2 3',
        '': 'wrong 1 2 3',
    }
    assert {text: task.feedback(BY_HAND, text) for text in told} == told


def test_demonstrations_without_feedback_are_careless():
    plain, task = (create_task(dict(type=name)) for name in ('rearrange', 'rearrange_careless'))
    done, named = [], []
    for index in range(1000):
        problem = task.problem(index)
        hint, completion = problem.prompt.removesuffix(plain.problem(index).prompt), task.demonstration(problem)
        feedback = plain.feedback(problem, completion)
        if index % 2:
            wrong = feedback.split() if feedback else ()
            done += [str(i) not in wrong for i in range(1, 7)]
            assert hint == ''
        else:
            assert feedback is None and hint.split()[0] == 'wrong'
            named.append(list(map(int, hint.split()[1:])))
    assert sum(done) == pytest.approx(0.45 * len(done), abs=3 * (0.45 * 0.55 * len(done)) ** 0.5)
    assert all(steps == sorted(set(steps)) for steps in named) and {len(steps) for steps in named} == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize('key, value', [('steps', 0), ('steps', 9), ('eval_size', 0), ('eval_size', 9), ('seed', -1)])
def test_refused(key, value):
    with pytest.raises(ConfigError, match=f'env.task.{key} = {value}: must be'):
        create_task({'type': 'rearrange', 'steps': 2, 'eval_size': 4, key: value})
