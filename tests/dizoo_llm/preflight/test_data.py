"""Data with faults, and without."""
import pytest
from tokenizers.normalizers import Lowercase

from dizoo_llm.base import Problem
from dizoo_llm.base.task import DividedTask
from dizoo_llm.preflight.data import of_data
from dizoo_llm.preflight.few import FewTask
from dizoo_llm.preflight.prompts import of_prompts
from dizoo_llm.envs.options import ENV_OPTIONS
from dizoo_llm.tasks import create_task
from dizoo_llm.text.tokenizer import build_char_tokenizer
from tests.dizoo_llm.helper import Prompts, file_task, write


class Rows(DividedTask):
    """Given prompts and answers for training and evaluation."""
    weights, listed = dict(right=1.0), True

    def __init__(self, items, held_out=None):
        self._items, self._held_out = items, held_out

    def problem(self, index):
        return Problem(*self._items[index])

    def score(self, problem, completion):
        return dict(right=float(completion == problem.answer))


def rows(number, start=0):
    return [(f'What is {i} + 1?', str(i + 1)) for i in range(start, start + number)]


def causes(items, held_out=None):
    return [found['cause'] for found in of_data(Rows(items, held_out)).findings]


def test_healthy_data():
    found = of_data(Rows(rows(20), rows(5, start=20)))
    assert found.findings == []
    assert found.lines == ['20 problems for training, 20 different ones among the 20 read', '5 problems held out']
    assert of_data(Rows(rows(20))).lines[1] == 'evaluation uses the training problems'


@pytest.mark.parametrize(
    'cause, items, held_out', [
        ('repeated', [*rows(18), *rows(2)], None),
        ('contradiction', [*rows(30), ('what is 3 + 1', '5')], None),
        ('no_answer', [*rows(20), ('What is it?', ' ')], None),
        ('leak', rows(20), [*rows(3, start=20), ('what is  7 + 1', '8')]),
    ]
)
def test_data_with_a_fault(cause, items, held_out):
    assert causes(items, held_out) == [cause]


def test_what_is_no_fault():
    """One repetition in many, answers that differ in case as their texts do, and a task that makes its problems."""
    assert causes([*rows(40), rows(1)[0]]) == []
    assert causes([*rows(40), ('Reverse: Abc', 'cbA'), ('reverse: abc', 'cba')]) == []
    assert of_data(create_task(dict(type='guess'))).findings == []


def test_the_same_problems_for_training_and_evaluation_are_no_leak(tmp_path):
    found = of_data(file_task(tmp_path / 'a.jsonl', [dict(question=q, answer=a) for q, a in rows(10)]))
    assert found.findings == [] and found.lines[1] == 'evaluation uses the training problems'


def options(task, **changes):
    return {**ENV_OPTIONS, 'tokenizer': dict(chars='abcdefghijklmnopqrstuvwxyz? '), **changes}


def test_prompts_as_tokens():
    task = Prompts('what is it?', 'who?', chars='x')
    found = of_prompts(task, options(task))
    assert found.findings == [] and found.lines == ['prompts have 4 to 11 tokens, median 8']
    found, = of_prompts(task, options(task, max_prompt_length=10)).findings
    assert found['cause'] == 'prompt_too_long' and found['problems'] == [0] and 'longest 11' in found['message']
    found, = of_prompts(Prompts('what is 7?'), options(task)).findings
    assert found['cause'] == 'not_encoded' and '7' in found['message']


def test_a_tokenizer_that_rewrites_a_prompt(tmp_path):
    tokenizer = build_char_tokenizer('abcdefghijklmnopqrstuvwxyz? ')
    tokenizer.backend_tokenizer.normalizer = Lowercase()
    tokenizer.save_pretrained(tmp_path)
    given = {**ENV_OPTIONS, 'tokenizer': dict(pretrained=str(tmp_path))}
    assert of_prompts(Prompts('who?', 'what is it?'), given).findings == []
    found, = of_prompts(Prompts('who?', 'What is it?'), given).findings
    assert (found['cause'], found['problem'], found['role']) == ('template_loses', 1, 'user')


def test_right_completions_that_are_too_long():
    task = create_task(dict(type='think_answer'))
    assert of_prompts(task, {**ENV_OPTIONS, 'max_new_tokens': 16}).findings == []
    found, = of_prompts(task, {**ENV_OPTIONS, 'max_new_tokens': 5}).findings
    assert found['cause'] == 'cut' and found['problems'] == [0, 1, 2, 3]


def test_a_handful_of_problems(tmp_path):
    """Those with the shortest answers, each answer once; the scorer gets the whole problem, the policy its end."""
    data = [dict(question='q' * 300 + str(i), answer='7' * (1 + i % 6)) for i in range(12)]
    rewards = tmp_path / 'rewards.py'
    rewards.write_text(
        "def correct(problem, completion):\n    return float(len(problem['question']) > 300 and completion == "
        "'#### ' + problem['answer'])\n"
    )
    path = write(tmp_path / 'a.jsonl', data)
    given = dict(type='file', path=path, reward=f'{rewards}:correct')
    few = FewTask(given, number=3, form='hashes')
    assert [few.demonstration(few.problem(i)) for i in range(len(few))] == ['#### 7', '#### 77', '#### 777']
    assert few.problem(2).prompt == '2 ' + 'q' * 199 + '2'
    asked = [few.problem(0), few.problem(1)]
    assert few.score_batch(asked, ['#### 7', '77']) == [dict(correct=1.0), dict(correct=0.0)]
    assert few.chars is None and {'####', '7', '77', '777', '2'} < set(few.words) and few.longest == 2


def test_tokens_of_a_handful_are_characters_where_white_space_counts(tmp_path):
    path = write(tmp_path / 'a.jsonl', [dict(question=f'q{i}', answer=f'{i}\n{i}') for i in range(4)])
    few = FewTask(dict(type='file', path=path), number=3)
    assert few.words is None and set('0123\nq') - {'3'} <= set(few.chars) and few.longest == 3
    assert len(set(few.chars)) == len(few.chars) and few.problem(1).prompt == 'q1'
