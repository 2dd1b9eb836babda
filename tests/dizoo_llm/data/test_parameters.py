"""A scorer gets what its parameters name, wherever they stand; what cannot be bound is refused before the run."""
import pytest

from ding_common import ConfigError
from dizoo_llm.base import check_scorer
from dizoo_llm.tasks import Problem, Task, create_task

ROWS = [dict(prompt=str(n), answer=n + 1, **(dict(hint='h') if n == 0 else {})) for n in range(3)]
# Bodies see what each name got: 'problem' a dict with the answer, 'completion' the text, 'answer' a number.
RIGHT = [
    'def score(problem, completion): return float(completion == str(problem["answer"]))',
    'def score(p, c): return float(c == str(p["answer"]))',
    'def score(row, completion): return float(completion == str(row["answer"]))',
    'def score(problem, text, strict=True): return float(text == str(problem["answer"]))',
    'def score(p, c, answer=None): return float(c == str(answer) == str(p["answer"]))',
    'def score(p, c, **kw): return float(c == str(kw["answer"]) and set(kw) <= {"prompt", "answer", "hint"})',
    'def score(*args): return float(args[1] == str(args[0]["answer"]))',
    'def score(completion, problem): return float(completion == str(problem["answer"]))',
    'def score(completion, answer): return float(completion == str(answer))',
    'def score(completion, answer, **kw): return float(completion == str(answer) == str(kw["problem"]["answer"]))',
    'def score(answer, completion): return float(completion == str(answer))',
    'def score(completion, answer, /): return float(completion == str(answer))',
    'def score(completion, other=1, answer=None, /): return float(completion == str(answer) and other == 1)',
    'def score(*, completion, answer): return float(completion == str(answer))',
    'def score(prompt, completion): return float(completion == str(int(prompt) + 1))',
    'def score(prompt, answer, completion, problem): return float(completion == str(problem["answer"]) != prompt)',
    'def score(completion, answer, hint=0): return float(completion == str(answer) and (hint == "h") == (answer < 2))',
    'def score(**kw): return float(kw["completion"] == str(kw["answer"]) and kw["problem"]["prompt"] == kw["prompt"])',
    'class S:\n    def __call__(self, completion, answer): return float(completion == str(answer))\nscore = S()',
]
EACH = '[float(c == str(a)) for c, a in zip({}, {})]'
BATCHES = [
    'def score_batch(problems, completions): return ' + EACH.format('completions', '[p["answer"] for p in problems]'),
    'def score_batch(ps, cs): return ' + EACH.format('cs', '[p["answer"] for p in ps]'),
    'def score_batch(completions, problems): return ' + EACH.format('completions', '[p["answer"] for p in problems]'),
    'def score_batch(completions, answer, **kw): return ' + EACH.format('completions', 'answer'),
    'def score_batch(prompts, completions, answers): return ' + EACH.format('completions', 'answers') +
    ' if [str(a - 1) for a in answers] == prompts else None',
    'def score_batch(completions, hint=(), **kw): return ' +
    EACH.format('completions', '[a if (h == "h") == (a < 2) else -1 for h, a in zip(hint, kw["answer"])]'),
    'def score_batch(**kw): return ' + EACH.format('kw["completions"]', '[p["answer"] for p in kw["problems"]]'),
]
WRONG = [
    ('def score(completion, row): return 1', "nothing is known to give to 'row'"),
    ('def score(text, problem): return 1', "nothing is known to give to 'text'"),
    ('def score(text, answer): return 1', "nothing is known to give to 'text'"),
    ('def score(answer, text): return 1', "nothing is known to give to 'text'"),
    ('def score(completions, answers): return 1', "nothing is known to give to 'answers'"),
    ('def score(problem, answer): return 1', 'none gets the completion'),
    ('def score(problem): return 1', 'none gets the completion'),
    ('def score(): return 1', 'none gets the completion'),
    ('def score(a, b, c): return 1', "nothing is known to give to 'a', 'b', 'c'"),
    ('def score(completion, answer, reference): return 1', "nothing is known to give to 'reference'"),
    ('def score_batch(completions, rows): return [1]', "nothing is known to give to 'rows'"),
    ('def score_batch(answers, texts): return [1]', "nothing is known to give to 'texts'"),
]


@pytest.fixture
def task_of(tmp_path):

    def create(scorer):
        path = tmp_path / 'my_task.py'
        path.write_text(f'def problems():\n    return {ROWS!r}\n\n\n{scorer}\n')
        return create_task(dict(type='python', file=str(path)))

    return create


@pytest.mark.unittest
class TestSignature:

    @pytest.mark.parametrize('scorer', [*RIGHT, *BATCHES])
    def test_each_parameter_gets_what_it_names(self, task_of, scorer):
        task = task_of(scorer)
        problems = [task.problem(i) for i in (0, 1, 2, 0)]
        assert task.checked_scores(problems, ['1', '2', '3', '2']) == [dict(score=x) for x in (1, 1, 1, 0)]
        assert task.checked_score(problems[1], '2') == dict(score=1)

    @pytest.mark.parametrize('scorer, why', WRONG)
    def test_what_fits_no_form_is_refused_with_the_forms(self, task_of, scorer, why):
        with pytest.raises(ConfigError) as refused:
            task_of(scorer)
        message = refused.value.message
        assert why in message and "'problem', 'completion' or a key of the problems (prompt, answer, hint)" in message
        assert 'my_task.py' in message and '(completion, answer, **others)' in message and '\n' not in message

    @pytest.mark.parametrize('scorer', ['score(completion, hint)', 'score_batch(completions, hints)'])
    def test_a_key_that_a_problem_lacks(self, task_of, scorer):
        with pytest.raises(ConfigError, match="problem 1 has no key 'hint'. Add it, or give the parameter a default"):
            task_of(f'def {scorer}: return 1')

    def test_a_file_without_problems_is_refused_as_such(self, tmp_path):
        path = tmp_path / 'my_task.py'
        path.write_text('def problems():\n    return []\n\n\ndef score(completion, answer):\n    return 1\n')
        with pytest.raises(ConfigError, match='the task has no problem for training'):
            create_task(dict(type='python', file=str(path)))

    @pytest.mark.parametrize('method', ['score', 'score_batch'])
    def test_a_class_whose_parameters_are_swapped(self, method):

        class Swapped(Task):
            weights = dict(right=1.)

            def __len__(self):
                return 1

            def problem(self, index):
                return Problem('1')

        def score(self, completion, problem):
            return dict(right=1.)

        setattr(Swapped, method, score)
        with pytest.raises(ConfigError, match=rf'Swapped.{method}\(completion, problem\): gets the problem first'):
            check_scorer(Swapped())
