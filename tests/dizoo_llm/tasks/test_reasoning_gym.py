import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ding_common import ConfigError
from dizoo_llm.rewards import WRITTEN
from dizoo_llm.tasks import create_task
from tests.cases import long
from tests.dizoo_llm.helper import problems, sides

pytest.importorskip('reasoning_gym')
SPELL = dict(type='reasoning_gym', name='spell_backward', config=dict(min_word_len=5, max_word_len=7), eval_size=100)
TWO = dict(type='reasoning_gym', mixture=[dict(name='spell_backward'), dict(name='gcd', weight=2)])
EVALUATING = {
    'binary_matrix', 'countdown', 'intermediate_integration', 'n_queens', 'number_sorting', 'puzzle24',
    'simple_integration', 'spiral_matrix', 'string_insertion', 'polynomial_multiplication'
}
SEVERAL = ('boxnet', 'graph_color', 'propositional_logic', 'rubiks_cube', 'rush_hour')  # right answers


def make(name, **options):
    return create_task(dict(dict(type='reasoning_gym', name=name, eval_size=5), **options))


class TestReasoningGym:

    def test_items_are_a_function_of_seed_and_index(self):
        first, second, other = create_task(SPELL), create_task(SPELL), create_task(dict(SPELL, seed=1))
        assert [first.problem(i) for i in (7, 3)] == [second.problem(i) for i in (7, 3)]
        assert [first.problem(i).text for i in range(20)] != [other.problem(i).text for i in range(20)]

    def test_threads_do_not_change_a_generator_at_once(self, monkeypatch):
        """Generators such as tsumego keep the state of a problem, and all environments of a process share them."""

        from reasoning_gym.factory import DATASETS
        (kind, config), together = DATASETS['spell_backward'], []

        class Slow(kind):
            running = 0

            def __getitem__(self, index):
                Slow.running += 1
                time.sleep(0.001)
                together.append(Slow.running)
                Slow.running -= 1
                return super().__getitem__(index)

        monkeypatch.setitem(DATASETS, 'spell_slowly', (Slow, config))
        task = create_task(dict(SPELL, name='spell_slowly'))
        with ThreadPoolExecutor(20) as threads:
            list(threads.map(task.problem, range(20)))
        assert set(together) == {1}

    def test_worked_examples_are_of_the_same_generator_and_nowhere_else(self):
        shown, asked = {}, []
        for problem in sum(sides(create_task(dict(TWO, eval_size=50, size=300, examples=2)), lambda each: each), []):
            assert [m['role'] for m in problem.prompt] == ['user', 'assistant'] * 2 + ['user']
            texts = tuple(m['content'] for m in problem.prompt[:-1])
            assert shown.setdefault(problem.metadata['kind'], texts) == texts
            asked.append(problem.prompt[-1]['content'])
        assert len(shown) == 2 and not set(sum(shown.values(), ())) & set(asked)
        assert not set(asked[:300]) & set(asked[300:])

    def test_mixture_by_weight(self):
        parts = [dict(name='spell_backward', weight=3), dict(name='gcd', weight=1)]
        task = create_task(dict(type='reasoning_gym', mixture=parts, eval_size=10))
        kinds = [task.problem(i).metadata['kind'] for i in range(400)]
        assert 260 < kinds.count('spell_backward') < 340 and kinds.count('gcd') == 400 - kinds.count('spell_backward')

    @pytest.mark.parametrize(
        'form', [
            '{}', '{} junk', '{}!', '{}\n\nno', '{}x', '', ' ', '\u202e', 'a' * 10_000, '<answer></answer>',
            'Spell this word backward'
        ]
    )
    def test_right_is_to_the_letter(self, form):
        task = create_task(SPELL)
        for problem in map(task.problem, range(20)):
            scored = task.checked_score(problem, form.format(problem.answer))
            assert scored['right'] == (form == '{}') and scored['score'] <= 1


class TestScorers:

    @pytest.mark.parametrize('names', [EVALUATING | {'chain_sum', 'coin_flip', 'rush_hour'}, long(None)])
    def test_none_evaluates_what_a_model_writes(self, tmp_path, names):
        """Every generator, in the long checks, given texts that leave a file behind if they are run."""
        from reasoning_gym.factory import DATASETS
        mark = tmp_path / 'mark'
        run = f"__import__('pathlib').Path({str(mark)!r}).touch()"
        refused, others = [], {'acre', 'composite', 'word_ladder', 'quantum_lock'}  # slow, or not by themselves
        for name in names or set(DATASETS) - others:
            try:
                task = make(name, eval_size=2, size=3, right_by_score=name in SEVERAL)
            except ConfigError as error:
                refused.append((name, error.message))
                continue
            for text in (run, f'[{run}]', f'{{"a": {run}}}', f'1 + {run}'):
                assert task.checked_score(task.problem(0), text)['right'] == 0
                assert not mark.exists(), name
        assert {name for name, message in refused if 'executes answers' in message} == EVALUATING
        assert len(refused) < 20

    @pytest.mark.parametrize(
        'name, answer_in', [('spell_backward', 'whole'), ('chain_sum', 'boxed'), ('prime_factorization', '####')]
    )
    def test_a_demonstration_is_right_and_junk_costs_no_row(self, name, answer_in):
        task = make(name, answer_in=answer_in)
        for problem in problems(task.evaluation()):
            assert task.checked_score(problem, task.demonstration(problem))['right'] == 1
            for junk in ('', 'x', '2 x', 'None', '9' * 5000, '\x00'):
                assert task.checked_score(problem, WRITTEN[answer_in].format(junk))['right'] == 0

    def test_there_may_be_several_right_answers(self):
        task = make('rush_hour', right_by_score=True)
        assert task.checked_score(task.problem(0), 'None')['right'] == 0
