import threading
import time

import pytest

from ding_common import ConfigError
from dizoo_llm.rewards import WRITTEN
from dizoo_llm.tasks import create_task

pytest.importorskip('reasoning_gym')
SPELL = dict(type='reasoning_gym', name='spell_backward', config=dict(min_word_len=5, max_word_len=7), eval_size=100)

SEVERAL = ('boxnet', 'graph_color', 'propositional_logic', 'rubiks_cube', 'rush_hour')  # right answers


def texts(task, number):
    return [task.problem(i).text for i in range(number)]


@pytest.mark.unittest
class TestReasoningGym:

    def test_items_are_a_function_of_seed_and_index(self):
        first, second = create_task(SPELL), create_task(SPELL)
        assert [first.problem(i) for i in (7, 3)] == [second.problem(i) for i in (7, 3)]
        assert texts(create_task(dict(SPELL, seed=1)), 20) != texts(first, 20)

    @pytest.mark.parametrize(
        'changes',
        [
            dict(),
            dict(name='chain_sum', config=dict(max_terms=2, max_digits=1), eval_size=30),  # a small stock
            dict(name=None, config=None, mixture=[dict(name='spell_backward'),
                                                  dict(name='gcd', weight=2)]),
        ],
        ids=str
    )
    def test_no_text_of_evaluation_is_in_training(self, changes):
        task = create_task(dict(SPELL, **changes, size=3000))
        held_out = texts(task.evaluation(), len(task.evaluation()))
        assert len(set(held_out)) == len(held_out) >= 30 and not set(held_out) & set(texts(task, 3000))

    def test_threads_do_not_change_a_generator_at_once(self, monkeypatch):
        """Generators such as tsumego keep the state of a problem, and all environments of a process share them."""

        class Dataset:
            running = together = 0

            def __len__(self):
                return 100

            def __getitem__(self, index):
                self.running += 1
                time.sleep(0.001)
                self.together = max(self.together, self.running)
                self.running -= 1
                return dict(question=str(index), answer='')

            def score_answer(self, given, entry):
                return 0.0

        dataset = Dataset()
        monkeypatch.setattr('reasoning_gym.create_dataset', lambda *args, **options: dataset)
        task = create_task(dict(SPELL, seed=777))  # a seed of no other test: generators are created once
        threads = [threading.Thread(target=task.problem, args=(i, )) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert dataset.together == 1

    def test_worked_examples_are_of_the_same_generator_and_nowhere_else(self):
        parts = [dict(name='spell_backward'), dict(name='gcd', weight=2)]
        task = create_task(dict(type='reasoning_gym', mixture=parts, eval_size=50, size=300, examples=2))
        shown, asked = {}, []
        for part in (task, task.evaluation()):
            for i in range(len(part)):
                problem = part.problem(i)
                assert [m['role'] for m in problem.prompt] == ['user', 'assistant'] * 2 + ['user']
                texts = tuple(m['content'] for m in problem.prompt[:-1])
                assert shown.setdefault(problem.metadata['kind'], texts) == texts
                asked.append(problem.prompt[-1]['content'])
        assert len(shown) == 2 and not set(sum(shown.values(), ())) & set(asked)
        assert not set(asked[:300]) & set(asked[300:])

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(name='rush_hour', config=None, right_by_score=True, examples=1), 'without reference answers'),
            (dict(examples=-1), 'examples = -1: must be an integer of at least 0'),
            (
                dict(name='gcd', config=dict(min_value=1, max_value=2),
                     examples=9), 'env.task.examples = 9: .* for examples. Lower it'
            ),
        ],
        ids=str
    )
    def test_examples_that_cannot_be_had(self, changes, message):
        with pytest.raises(ConfigError, match=message):
            create_task(dict(SPELL, **changes)).problem(0)

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
        for i in range(20):
            problem = task.problem(i)
            scored = task.checked_score(problem, form.format(problem.answer))
            assert scored['right'] == (form == '{}') and scored['score'] <= 1

    def test_answer_inside_a_tag(self):
        task = create_task(dict(SPELL, answer_in='answer_tag'))
        problem = task.problem(0)
        assert task.checked_score(problem, f'hm <answer>{problem.answer}</answer>') == dict(score=1, right=1)
        assert task.checked_score(problem, problem.answer) == dict(score=0, right=0)

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(name='spell_backwards'), "env.task.name = 'spell_backwards': did you mean 'spell_backward'"),
            (dict(name=None), 'set exactly one of them'),
            (dict(config=dict(min_wordlen=3)), 'env.task.config'),
            (dict(config=dict(min_word_len=9, max_word_len=3)), 'env.task.config'),
            (dict(answer_in='tags'), "env.task.answer_in = 'tags'"),
            (dict(template='ask'), 'env.task.template'),
            (dict(weights=dict(score=1)), 'env.task.weights'),
            (dict(name=None, mixture=[dict(nam='gcd')]), r'env.task.mixture\[0\]'),
            (dict(name=None, mixture=['gcd']), r"env.task.mixture = \['gcd'\]: must be a list of dicts"),
            (dict(name=None, mixture=[]), r'env.task.mixture = \[\]: must be a list of dicts'),
            (dict(size=0), 'env.task.size = 0: must be an integer of at least 1'),
            (dict(eval_size=-1), 'env.task.eval_size = -1'),
            (dict(seed=None), 'env.task.seed = None'),
            (dict(weights=dict(score='a', right=1)), 'env.task.weights'),
            (dict(name='countdown', config={}), "'countdown': its scorer executes answers as Python"),
            (dict(name='complex_arithmetic', config={}), r"its scorer gives 1.00 for 'nan', which answers no problem"),
            (dict(name='game_of_life_halting', config={}), 'which answers no problem'),
            (dict(name='ransom_note', config={}), 'differ between processes'),
            (dict(name='graph_color', config={}), 'no reference answer; set env.task.right_by_score = True'),
            (
                dict(name='coin_flip', config=dict(min_trials=3, max_trials=3),
                     eval_size=500), 'that are no other form of one another. Lower it'
            ),
        ],
        ids=str
    )
    def test_wrong_config(self, changes, message):
        cfg = dict(SPELL, **changes)
        if 'mixture' in cfg:
            cfg.pop('config')
        with pytest.raises(ConfigError, match=message):
            create_task(cfg).evaluation().problem(0)


@pytest.mark.unittest
class TestScorers:

    def test_none_evaluates_what_a_model_writes(self, tmp_path):
        """Every generator, given texts that leave a file behind if they are run."""
        from reasoning_gym.factory import DATASETS
        mark = tmp_path / 'mark'
        run = f"__import__('pathlib').Path({str(mark)!r}).touch()"
        refused = []
        for name in set(DATASETS) - {'acre', 'composite', 'word_ladder', 'quantum_lock'}:  # slow, or not by themselves
            try:
                task = create_task(
                    dict(type='reasoning_gym', name=name, eval_size=2, size=3, right_by_score=name in SEVERAL)
                )
            except ConfigError as error:
                refused.append((name, error.message))
                continue
            for text in (run, f'[{run}]', f'{{"a": {run}}}', f'1 + {run}'):
                assert task.checked_score(task.problem(0), text)['right'] == 0
                assert not mark.exists(), name
        evaluating = {name for name, message in refused if 'executes answers' in message}
        assert evaluating == {
            'binary_matrix', 'countdown', 'intermediate_integration', 'n_queens', 'number_sorting', 'puzzle24',
            'simple_integration', 'spiral_matrix', 'string_insertion', 'polynomial_multiplication'
        }
        assert len(refused) < 20

    @pytest.mark.parametrize('name', ['spell_backward', 'chain_sum', 'letter_counting', 'prime_factorization'])
    @pytest.mark.parametrize('answer_in', ['whole', 'answer_tag', 'boxed', '####'])
    def test_a_demonstration_is_right_and_junk_costs_no_row(self, name, answer_in):
        task = create_task(dict(type='reasoning_gym', name=name, eval_size=5, answer_in=answer_in))
        for i in range(5):
            problem = task.problem(i)
            assert task.checked_score(problem, task.demonstration(problem))['right'] == 1
            for junk in ('', 'x', '2 x', 'None', '9' * 5000, '\x00'):
                assert task.checked_score(problem, WRITTEN[answer_in].format(junk))['right'] == 0

    def test_there_may_be_several_right_answers(self):
        task = create_task(dict(type='reasoning_gym', name='rush_hour', eval_size=3, right_by_score=True))
        assert task.checked_score(task.problem(0), 'None')['right'] == 0
