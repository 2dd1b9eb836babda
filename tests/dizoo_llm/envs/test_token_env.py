import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import Problem, Task
from tests.dizoo_llm.helper import Prompts, play


@pytest.fixture(scope='module')
def env():
    return TokenEnv()


def end(env, tokens, index=0):
    """The step that ends an episode."""
    step, = play(env, tokens, index=index)
    return step


@pytest.mark.envtest
class TestTokenEnv:

    def test_gymnasium_checker(self):
        env = gymnasium.make('dizoo_llm/TokenEnv-v0', max_new_tokens=3)
        assert env.unwrapped.max_new_tokens == 3
        check_env(env.unwrapped, skip_render_check=True)

    def test_same_seed_same_problem(self, env):
        other, starts = TokenEnv(), set()
        for seed in range(40):
            obs, info = env.reset(seed=seed)
            env.step([1, 2, 3])
            again, info_again = other.reset(seed=seed)
            assert np.array_equal(obs, again) and info == info_again
            starts.add(info['index'])
        assert starts == {0, 1, 2, 3}  # and every problem has its seeds

    def test_one_token_at_a_time_equals_all_at_once(self, env):
        completion = [9, 26, 27, 3, 28, 29]
        *_, info = at_once = end(env, completion)
        *steps, last = play(env, *completion)
        assert [step[1:] for step in steps] == [(0, False, False, dict(taken=1))] * 5
        assert np.array_equal(last[0], at_once[0]) and last[1:4] == at_once[1:4] == (2.0, True, False)
        assert {**last[4], 'taken': 6} == info
        assert info['reward_parts'] == dict(answer=1, format=1, solved=1) and info['return'] == 1
        assert info['completion'] == '9 </think> <answer> 3 </answer>'
        assert info['prompt'].endswith('20 11 <think>')

    @pytest.mark.parametrize('part, value', [(None, 1), ('format', 1), ('overlong', -0.5)])
    def test_the_return_is_the_part_that_the_config_names(self, part, value):
        env = TokenEnv(return_part=part, overlong_buffer=4, max_new_tokens=8)
        *_, info = end(env, [9, 26, 27, 3, 28, 29])
        assert info['reward_parts'] == dict(answer=1, format=1, solved=1, overlong=-0.5)
        assert info['return'] == value and env.token_spec.return_part == (part or 'solved')

    @pytest.mark.parametrize(
        'weights, parts, told', [
            (dict(a=1e30, b=1.), dict(a=1e30, b=0.), 'the reward is 1e+60 (1e+30 x a = 1e+30 + 1 x b = 0)'),
            (dict(a=1., b=1.), dict(a=3e38, b=3e38), 'the reward is 6e+38'),
            (dict(a=1., b=0.), dict(a=0., b=1e39), 'scored b = 1e+39, must be a finite number (float32) or None'),
            (dict(a=1., b=0.), dict(a=-1.7e308, b=0.), 'scored a = -1.7e+308, must be a finite number (float32) or'),
        ]
    )
    def test_a_reward_that_is_not_finite_in_float32_fails_its_row(self, weights, parts, told):
        task = Prompts('a', scorer=lambda problem, completion: parts, weights=weights, chars='ab')
        _, reward, *_, info = end(TokenEnv(task, max_new_tokens=1), 1)
        assert reward == info['return'] == 0 and told in info['failed']

    def test_nothing_is_taken_behind_the_end_of_sequence(self, env):
        obs, _, terminated, truncated, info = end(env, [26, 29, 27, 3, 28])
        assert (terminated, truncated, info['taken'], info['completion']) == (True, False, 2, '</think>')
        assert 27 not in obs[19:]

    @pytest.mark.parametrize('tokens, cut', [([26, 27, 3, 28, 29], True), ([26, 27, 29], False)])
    def test_the_length_limit_truncates_what_has_not_ended(self, tokens, cut):
        _, _, terminated, truncated, info = end(TokenEnv(max_new_tokens=3), tokens)
        assert (terminated, truncated, info['taken']) == (not cut, cut, 3)
        assert (info['terminated'], info['truncated']) == (not cut, cut)

    def test_special_tokens_that_the_policy_writes_are_not_dropped(self, env):
        # decoding with skip_special_tokens would turn '3 <pad>' into the right answer '3'
        *_, info = end(env, [26, 27, 3, 30, 28, 29])
        assert info['completion'] == '</think> <answer> 3 <pad> </answer>' and info['reward_parts']['answer'] == 0

    @pytest.mark.parametrize(
        'tokens, solved',
        [
            ([26, 27, 3, 28, 29], 1),
            ([5, 6, 26, 27, 3, 28, 29], 1),
            ([5, 26, 27, 3, 28], 0),  # cut
            ([26, 27, 3, 28, 16, 29], 0),
            ([27, 3, 28, 29], 0),
            ([26, 27, 7, 28, 29], 0),
        ]
    )
    def test_solved_is_the_right_answer_in_full_format_and_ended(self, tokens, solved):
        *_, info = end(TokenEnv(max_new_tokens=len(tokens)), tokens)
        assert info['return'] == info['reward_parts']['solved'] == solved

    @pytest.mark.parametrize('action', [[], [-1], [32], 32, [3, 99]])
    def test_action_outside_the_vocabulary(self, env, action):
        env.reset(seed=0)
        with pytest.raises(ValueError, match='token ids'):
            env.step(action)

    def test_step_before_reset(self):
        with pytest.raises(gymnasium.error.ResetNeeded):
            TokenEnv().step(1)

    @pytest.mark.parametrize(
        'tokens, ends, expected',
        [(2, True, 0), (4, True, 0), (5, True, -0.25), (7, True, -0.75), (8, True, -1), (8, False, -1)]
    )
    def test_the_overlong_penalty_falls_over_the_buffer(self, tokens, ends, expected):
        env = TokenEnv(max_new_tokens=8, overlong_buffer=4, overlong_weight=0.5)
        _, reward, *_, info = end(env, [1] * (tokens - 1) + [29 if ends else 1])  # 29 is the end of sequence
        assert info['reward_parts']['overlong'] == expected and reward == pytest.approx(0.5 * expected)
        assert env.token_spec.reward_weights == dict(answer=1.0, format=0.5, solved=0.5, overlong=0.5)


class Halves(Task):
    """Training asks 0 to 4, evaluation 5 to 9."""
    weights = dict(right=1.0, odd=1.0)
    return_part = 'right'
    words = [str(i) for i in range(10)]
    first = 0

    def __len__(self):
        return 5

    def problem(self, index):
        return Problem(str(self.first + index), metadata=dict(kind='low' if index < 2 else 'high'))

    def score(self, problem, completion):
        if completion == '9':
            raise ValueError('nine')
        return dict(right=None if completion == '8' else float(completion == problem.prompt), odd=1.0)

    def evaluation(self):
        other = type(self)()
        other.first = 5
        return other


@pytest.mark.envtest
class TestHeldOut:

    def test_evaluation_meets_the_held_out_problems(self):
        for evaluation, expected in ((False, {'0', '1', '2', '3', '4'}), (True, {'5', '6', '7', '8', '9'})):
            env = TokenEnv(Halves(), max_new_tokens=2, evaluation=evaluation)
            assert {env.reset(seed=s) and env.problem.prompt for s in range(60)} == expected

    def test_parts_that_do_not_apply_and_completions_that_fail(self):
        env = TokenEnv(Halves(), max_new_tokens=2)
        _, reward, *_, info = end(env, [8, 10], 3)
        assert reward == 1 and info['return'] == 0 and info['failed'] is None and info['kind'] == 'high'
        assert info['reward_parts'] == dict(right=None, odd=1)
        _, reward, *_, info = end(env, [9, 10], 3)
        assert reward == 0 and info['reward_parts'] == dict(right=None, odd=None)
        assert 'ValueError: nine' in info['failed']
