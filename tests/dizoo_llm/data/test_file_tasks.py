from decimal import Decimal

import numpy as np
import pytest

from ding_common import ConfigError
from dizoo_llm.base import check_scorer
from dizoo_llm.tasks import create_task
from tests.dizoo_llm.helper import PROBLEMS, Prompts, problems, python_task, write

SUMS = [(n + n + 1, f'Tom has {n} apples and buys {n + 1}. How many?') for n in range(20)]
GSM8K = [dict(question=question, answer=f'it is {total}\n#### {total}') for total, question in SUMS]


@pytest.fixture
def gsm8k(tmp_path):
    path = write(tmp_path / 'train.jsonl', GSM8K)
    return dict(type='file', path=path, reference_in='####', answer_in='####', check='number')


class TestFile:

    def test_gsm8k_as_downloaded(self, gsm8k):
        task = create_task(gsm8k)
        problem = task.problem(3)
        assert len(task) == 20 and problem.prompt == GSM8K[3]['question'] and problem.answer == '7'
        assert task.checked_score(problem, 'it is\n#### 7') == dict(right=1)
        assert task.checked_score(problem, 'it is 7') == dict(right=0)
        assert problem.metadata['solution'] == GSM8K[3]['answer']
        asked = create_task(dict(gsm8k, template='Q: {prompt}\nA:'))
        assert asked.problem(3).prompt == f"Q: {GSM8K[3]['question']}\nA:"

    @pytest.mark.parametrize(
        'kind, values, written', [
            ('float32', [42.0, 0.1, 3.3], ['42', '0.1', '3.3']),
            ('decimal128', [Decimal(n) for n in ('42.00', '100.00', '2.50', '0.05')], ['42', '100', '2.5', '0.05']),
            ('string', ['42.0', '007'], ['42.0', '007']),
        ]
    )
    def test_numbers_of_a_table_are_written_as_people_write_them(self, tmp_path, kind, values, written):
        pa = pytest.importorskip('pyarrow')
        from pyarrow import parquet
        column = pa.array(values, getattr(pa, kind)(*[10, 2] * (kind == 'decimal128')))
        path = str(tmp_path / 'a.parquet')
        table = dict(question=[str(i) for i in range(len(values))], answer=column, kind=column)
        parquet.write_table(pa.table(table), path)
        task = create_task(dict(type='file', path=path, kind='kind'))
        for problem, text in zip(problems(task), written):
            assert problem.answer == problem.metadata['kind'] == task.demonstration(problem) == text
            assert task.checked_score(problem, text) == dict(right=1)

    @pytest.mark.parametrize(
        'options, expected', [
            (dict(), GSM8K[0]['answer']), (dict(answer_in='boxed'), '\\boxed{1}'),
            (dict(answer_in='answer_tag'), '<answer>1</answer>'), (dict(answer_in='whole'), '1')
        ]
    )
    def test_what_is_demonstrated_is_right(self, gsm8k, options, expected):
        task = create_task(dict(gsm8k, **options))
        shown = task.demonstration(task.problem(0))
        assert shown == expected and task.checked_score(task.problem(0), shown) == dict(right=1)

    def test_texts_that_occur_several_times(self, tmp_path):
        path = write(tmp_path / 'twice.jsonl', [dict(question=str(i % 3), answer='1') for i in range(12)])
        options = dict(type='file', path=path)
        with pytest.raises(ConfigError, match='eval_size = 5: there is no .* 3 held-out .* all 12 .* Lower eval_size'):
            create_task(dict(options, eval_size=5))
        with pytest.raises(ConfigError, match='env.task.eval_path: there is no .* Use other problems in it.'):
            create_task(dict(options, eval_path=path))
        with pytest.warns(UserWarning, match='eval_size = 1: 4 of 12 problems are not trained, because'):
            assert len(create_task(dict(options, eval_size=1))) == 8

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(reference_in='boxed'), "line 1: env.task.reference_in = 'boxed' finds no answer"),
            (dict(check='exactly'), "env.task.check = 'exactly': did you mean 'exact'"),
            (dict(answer_in='tag'), "env.task.answer_in = 'tag'"),
            (dict(template='Q'), r"env.task.template = 'Q': must contain \{prompt\}"),
            (dict(eval_size=20), 'no problem for training'),
            (dict(eval_size=-1), 'env.task.eval_size = -1: must be an integer of at least 0'),
            (dict(reference_in='whole'), "line 1: env.task.check = 'number' rejects the reference answer 'it is 1"),
            (dict(eval_path='empty.jsonl'), 'no problem for evaluation'),
            (dict(check_rows=0), 'env.task.check_rows'),
        ],
        ids=str
    )
    def test_wrong_config(self, gsm8k, tmp_path, own_folder, changes, message):
        write(tmp_path / 'empty.jsonl', [])
        with pytest.raises(ConfigError, match=message):
            create_task(dict(gsm8k, **changes))


SCORE = 'def score(problem, completion):\n    return 1\n'
PARTS = "weights = dict(a=1.0, b=0.5)\nreturn_part = {}\ndef score(problem, completion):\n    return {}\n"
BATCH = (
    "def score_batch(problems, completions):\n    if len(completions) == 9:\n        return None\n"
    "    return [{}(c == str(p['answer'])) if c else KeyError('empty') for p, c in zip(problems, completions)]\n"
)
ANSWERS = [
    (42.0, '42'), (-0., '0'), (1e-7, '0.0000001'), (1e16, '10000000000000000'), (1e300, '1e+300'), (True, 'True'),
    (np.float32(0.1), '0.1'), (np.int64(7), '7'), (np.float64(1e3), '1000'), (Decimal('1E+3'), '1000'),
    ('42.0', '42.0'), ([4.0], ''), (None, ''), (10 ** 30, str(10 ** 30))
]


class TestPython:

    def test_an_answer_is_written_as_people_write_it(self, tmp_path):
        rows = 'def problems():\n    return [dict(prompt="1", answer=answer) for answer, _ in ANSWERS]\n'
        task = python_task(tmp_path, f'from {__name__} import ANSWERS\n{rows}{SCORE}')
        assert [problem.answer for problem in problems(task)] == [text for _, text in ANSWERS]

    def test_several_parts_with_weights(self, tmp_path):
        task = python_task(
            tmp_path, "chars = 'xyz'\n" + PROBLEMS + PARTS.format("'b'", 'dict(a=1, b=None)'), eval_size=1
        )
        assert task.weights == dict(a=1, b=0.5) and task.chars == 'xyz' and task.return_part == 'b'
        assert (len(task), len(task.evaluation())) == (8, 1)
        assert task.checked_score(task.problem(0), '') == dict(a=1, b=None)

    @pytest.mark.parametrize('parts', ['float', 'lambda right: dict(score=right)'])
    def test_a_function_for_batches(self, tmp_path, parts):
        task = python_task(tmp_path, PROBLEMS + BATCH.format(f'({parts})'), eval_size=2)
        for part in (task, task.evaluation()):
            asked = [part.problem(i) for i in (0, 1, 0)]
            right, wrong, failed = part.checked_scores(asked, [str(asked[0].answer), 'x', ''])
            assert (right, wrong) == (dict(score=1), dict(score=0)) and "KeyError: 'empty'" in failed.message
            assert part.checked_score(asked[1], str(asked[1].answer)) == dict(score=1)
            failed = part.checked_scores(asked * 3, ['x'] * 9)
            assert all('score returned None, must return a list of 9' in error.message for error in failed)

    def test_rows_keep_their_objects_and_other_rewards_score_them(self, tmp_path):
        rows = "def problems():\n    return [dict(prompt='1', kind='k', check=lambda text: text == 'x')]\n"
        own = rows + 'def score(completion, check):\n    return check(completion)\n'
        task = python_task(tmp_path, own)
        assert task.checked_score(task.problem(0), 'x') == dict(score=1) and task.problem(0).metadata['kind'] == 'k'
        given = python_task(tmp_path, own, reward=lambda completion: len(completion))
        assert given.checked_score(given.problem(0), 'xyz') == dict(reward=3)
        exact = python_task(tmp_path, PROBLEMS, reward='exact')  # the file needs no scorer then
        assert exact.checked_score(exact.problem(0), '1') == dict(right=1) and exact.demonstrates

    def test_of_both_functions_that_for_batches_is_used(self, tmp_path):
        task = python_task(tmp_path, PROBLEMS + BATCH.format('float') + SCORE.replace('1', '5'))
        assert task.checked_score(task.problem(0), '1') == dict(score=1)
        assert task.checked_scores([task.problem(0)] * 2, ['1', '2']) == [dict(score=1), dict(score=0)]


ROWS = [dict(prompt=str(n), answer=n + 1, **(dict(hint='h') if n == 0 else {})) for n in range(3)]
# Scorers get what their parameters name, wherever they stand: 'problem' is a dict with the answer, 'completion' the
# text, 'answer' a number.
RIGHT = [
    'def score(row, completion): return float(completion == str(row["answer"]))',
    'def score(problem, text, strict=True): return float(text == str(problem["answer"]))',
    'def score(p, c, answer=None): return float(c == str(answer) == str(p["answer"]))',
    'def score(p, c, **kw): return float(c == str(kw["answer"]) and set(kw) <= {"prompt", "answer", "hint"})',
    'def score(*args): return float(args[1] == str(args[0]["answer"]))',
    'def score(completion, answer, **kw): return float(completion == str(answer) == str(kw["problem"]["answer"]))',
    'def score(answer, completion): return float(completion == str(answer))',
    'def score(completion, other=1, answer=None, /): return float(completion == str(answer) and other == 1)',
    'def score(*, completion, answer): return float(completion == str(answer))',
    'def score(prompt, answer, completion, problem): return float(completion == str(problem["answer"]) != prompt)',
    'def score(completion, answer, hint=0): return float(completion == str(answer) and (hint == "h") == (answer < 2))',
    'def score(**kw): return float(kw["completion"] == str(kw["answer"]) and kw["problem"]["prompt"] == kw["prompt"])',
    'class S:\n    def __call__(self, completion, answer): return float(completion == str(answer))\nscore = S()',
]
EACH = '[float(c == str(a)) for c, a in zip({}, {})]'
BATCHES = [
    'def score_batch(ps, cs): return ' + EACH.format('cs', '[p["answer"] for p in ps]'),
    'def score_batch(completions, problems): return ' + EACH.format('completions', '[p["answer"] for p in problems]'),
    'def score_batch(prompts, completions, answers): return ' + EACH.format('completions', 'answers') +
    ' if [str(a - 1) for a in answers] == prompts else None',
    'def score_batch(completions, hint=(), **kw): return ' +
    EACH.format('completions', '[a if (h == "h") == (a < 2) else -1 for h, a in zip(hint, kw["answer"])]'),
    'def score_batch(**kw): return ' + EACH.format('kw["completions"]', '[p["answer"] for p in kw["problems"]]'),
]
WRONG = [
    ('def score(completion, row): return 1', "nothing is known to give to 'row'"),
    ('def score(text, problem): return 1', "nothing is known to give to 'text'"),
    ('def score(answer, text): return 1', "nothing is known to give to 'text'"),
    ('def score(problem, answer): return 1', 'none gets the completion'),
    ('def score(): return 1', 'none gets the completion'),
    ('def score(a, b, c): return 1', "nothing is known to give to 'a', 'b', 'c'"),
    ('def score_batch(answers, texts): return [1]', "nothing is known to give to 'texts'"),
]


class TestSignature:

    def task(self, folder, scorer, rows=ROWS):
        return python_task(folder, f'def problems():\n    return {rows!r}\n\n\n{scorer}\n')

    @pytest.mark.parametrize('scorer', [*RIGHT, *BATCHES])
    def test_each_parameter_gets_what_it_names(self, tmp_path, scorer):
        task = self.task(tmp_path, scorer)
        asked = [*problems(task), task.problem(0)]
        assert task.checked_scores(asked, ['1', '2', '3', '2']) == [dict(score=x) for x in (1, 1, 1, 0)]
        assert task.checked_score(asked[1], '2') == dict(score=1)

    @pytest.mark.parametrize('scorer, why', WRONG)
    def test_what_fits_no_form_is_refused_with_the_forms(self, tmp_path, scorer, why):
        with pytest.raises(ConfigError) as refused:
            self.task(tmp_path, scorer)
        message = refused.value.message
        assert why in message and "'problem', 'completion' or a key of the problems (prompt, answer, hint)" in message
        assert 't.py' in message and '(completion, answer, **others)' in message and '\n' not in message

    @pytest.mark.parametrize('scorer', ['score(completion, hint)', 'score_batch(completions, hints)'])
    def test_a_key_that_a_problem_lacks(self, tmp_path, scorer):
        for lacking, rows in enumerate((ROWS[::-1], ROWS)):
            with pytest.raises(ConfigError, match=f"problem {lacking} has no key 'hint'. Add it, or give"):
                self.task(tmp_path, f'def {scorer}: return 1', rows)

    @pytest.mark.parametrize('method', ['score', 'score_batch'])
    def test_a_class_whose_parameters_are_swapped(self, method):
        kind = type('Swapped', (Prompts, ), dict([(method, lambda self, completion, problem: dict(right=1.))]))
        with pytest.raises(ConfigError, match=rf'Swapped.{method}\(completion, problem\): gets the problem first'):
            check_scorer(kind('1'))


def test_feedback_of_a_python_file(tmp_path):
    told = 'def feedback(problem, completion):\n    return f"{completion} is not {problem[\'answer\']}"\n'
    for feedback, found in ((told, '3 is not 2'), ('', None)):
        task = python_task(tmp_path, PROBLEMS + SCORE + feedback)
        assert task.feedback(task.problem(1), '3') == found
