import pytest

from dizoo_llm.tasks import create_task
from ding_common import ConfigError

pytest.importorskip('reasoning_gym')
SPELL = dict(type='reasoning_gym', name='spell_backward', config=dict(min_word_len=5, max_word_len=7), eval_size=100)


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
            dict(name='chain_sum', config=dict(max_terms=2, max_digits=1)),  # a small stock, which repeats itself
            dict(name=None, config=None, mixture=[dict(name='spell_backward'),
                                                  dict(name='gcd', weight=2)]),
        ],
        ids=str
    )
    def test_no_text_of_evaluation_is_in_training(self, changes):
        task = create_task(dict(SPELL, **changes, size=3000))
        held_out = texts(task.evaluation(), 100)
        assert len(set(held_out)) == 100 and not set(held_out) & set(texts(task, 3000))

    def test_neighbouring_seeds_share_items_which_is_why_texts_are_compared(self):
        import reasoning_gym
        a, b = (reasoning_gym.create_dataset('chain_sum', seed=seed, size=50) for seed in (1, 2))
        assert a[1]['question'] == b[0]['question']

    def test_mixture_by_weight(self):
        parts = [dict(name='spell_backward', weight=3), dict(name='gcd', weight=1)]
        task = create_task(dict(type='reasoning_gym', mixture=parts, eval_size=10))
        kinds = [task.problem(i).metadata['kind'] for i in range(400)]
        assert 260 < kinds.count('spell_backward') < 340 and kinds.count('gcd') == 400 - kinds.count('spell_backward')

    @pytest.mark.parametrize('changed', ['', ' junk', '!', '\n\nno', 'x'])
    def test_right_is_to_the_letter(self, changed):
        task = create_task(SPELL)
        for i in range(20):
            problem = task.problem(i)
            scored = task.checked_score(problem, problem.answer + changed)
            assert scored['right'] == (changed == '') and scored['score'] <= 1

    @pytest.mark.parametrize(
        'completion', ['', ' ', '\u202e', 'a' * 10_000, '<answer></answer>', 'Spell this word backward']
    )
    def test_tricks_earn_nothing_right(self, completion):
        task = create_task(SPELL)
        assert all(task.checked_score(task.problem(i), completion)['right'] == 0 for i in range(20))

    def test_answer_inside_a_tag(self):
        task = create_task(dict(SPELL, answer_in='answer_tag'))
        problem = task.problem(0)
        assert task.checked_score(problem, f'hm <answer>{problem.answer}</answer>') == dict(score=1, right=1)
        assert task.checked_score(problem, problem.answer) == dict(score=0, right=0)

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(name='spell_backwards'), "env.task.name = 'spell_backwards': did you mean 'spell_backward'"),
            (dict(name=None), 'exactly one is needed'),
            (dict(config=dict(min_wordlen=3)), 'env.task.config'),
            (dict(config=dict(min_word_len=9, max_word_len=3)), 'env.task.config'),
            (dict(answer_in='tags'), "env.task.answer_in = 'tags'"),
            (dict(template='ask'), 'env.task.template'),
            (dict(weights=dict(score=1)), 'env.task.weights'),
            (dict(name=None, mixture=[dict(nam='gcd')]), r'env.task.mixture\[0\]'),
            (
                dict(name='coin_flip', config=dict(min_trials=3, max_trials=3),
                     eval_size=10_000), 'different texts; lower it'
            ),
        ],
        ids=str
    )
    def test_wrong_config(self, changes, message):
        cfg = dict(SPELL, **changes)
        if cfg.get('mixture'):
            cfg.pop('config')
        with pytest.raises(ConfigError, match=message):
            create_task(cfg).evaluation().problem(0)
