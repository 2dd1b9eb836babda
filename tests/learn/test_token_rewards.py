"""``Task.token_rewards``: from the task to the advantages."""
import numpy as np
import pytest
import torch
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.data.token_rewards import with_token_rewards
from dizoo_llm import Reply
from dizoo_llm.envs import TokenEnv
from dizoo_llm.envs.ding_token_env import DingTokenEnv
from dizoo_llm.tasks import TASK_REGISTRY, ThinkAnswerTask
from dizoo_llm.tasks.mixture import MixtureTask
from tests.policies import Step, learned, token_policy
from tests.tasks import Game


@TASK_REGISTRY.register('test_stepwise', force_overwrite=True)
class Stepwise(ThinkAnswerTask):
    """A token is worth a tenth of the number of its place, and 1 more if it contains the letter n."""

    def token_rewards(self, problem, completion, tokens):
        return [0.1 * place + ('n' in token) for place, token in enumerate(tokens)]


def ended(env, ids):
    env.reset(options=dict(index=0))
    _, reward, _, _, info = env.step(ids)
    return reward, info


def answer_of(env):
    return env.encode_answer(env.task.demonstration(env.task.problem(0)))


def test_on_their_tokens_with_the_rest_on_the_last():
    transition = dict(reward=torch.tensor([0., 0., 2.5]), turn=0)
    found = with_token_rewards(transition, dict(token_rewards=[0.5, -1., 1.]))
    assert found == dict(reward=found['reward'], turn=0) and found['reward'].dtype == torch.float32
    assert found['reward'].tolist() == [0.5, -1., 3.]  # the sum is 0.5, so 2 are not of tokens
    assert with_token_rewards(transition, dict(taken=3)) is transition


def test_their_sum_is_a_part_of_the_reward():
    env = TokenEnv(Stepwise(), max_new_tokens=10)
    ids = answer_of(env)
    reward, info = ended(env, ids)
    plain, other = ended(TokenEnv(max_new_tokens=10), ids)
    assert info['token_rewards'] == Stepwise(
    ).token_rewards(None, None, pieces(env, ids)) and 'token_rewards' not in other
    assert info['reward_parts'] == dict(other['reward_parts'], tokens=sum(info['token_rewards']))
    assert reward == pytest.approx(plain + sum(info['token_rewards']), abs=1e-12)
    half, info_of_half = ended(TokenEnv(Stepwise(), max_new_tokens=10, reward_weights=dict(tokens=0.5)), ids)
    assert half == pytest.approx(plain + sum(info['token_rewards']) / 2)
    assert info_of_half['token_rewards'] == [r / 2 for r in info['token_rewards']]


def pieces(env, ids):
    ended(env, ids)
    return env._pieces(env._text())


def test_the_texts_of_tokens_are_those_of_the_completion():
    env = TokenEnv(Stepwise(), max_new_tokens=10)
    ids = answer_of(env)
    texts = pieces(env, ids)
    assert len(texts) == len(ids) and texts[-1] == '' and ids[-1] in env.eos_token_ids
    assert ''.join(texts) == ended(env, ids)[1]['completion']
    cut = pieces(env, ids[:3])
    assert cut == texts[:3]


class Bytes:
    """A decoder of bytes, as of tokenizers of bytes."""

    def decode(self, ids, before=()):
        return bytes(ids).decode('utf-8', 'replace')


def test_a_character_of_several_tokens_is_that_of_its_last():
    env = TokenEnv(max_new_tokens=10)
    env.reset(options=dict(index=0))
    text = 'aé€b'
    env._encoder, env._turn = Bytes(), list(text.encode())
    assert env._pieces(text) == ['a', '', 'é', '', '', '€', 'b']
    env._turn = list(text.encode())[:5]  # cut within a character
    assert env._pieces('aé\ufffd') == ['a', '', 'é', '', '\ufffd']


def group(task, **learn):
    """A policy, a group that it sampled of problem 0, and what the environment said of each row."""
    env = TokenEnv(task, max_new_tokens=6)
    policy = token_policy(env=env, **learn)
    episodes, infos = [], []
    for row in range(policy.cfg.group_size):
        obs, _ = env.reset(options=dict(index=0))
        out = policy.collect_mode.forward({0: obs}, row_keys={0: (0, 0, row)})[0]
        _, reward, _, _, info = env.step(out['action'].numpy())
        episodes.append([policy.collect_mode.process_transition(obs, out, Step(reward, info))])
        infos.append(dict(info, reward=reward))
    sample, = policy.collect_mode.get_train_sample(episodes)
    seconds = dict(seconds_sampling=0.1, seconds_scoring=0.1)
    return policy, dict(sample, collect_iter=0, group_id=0, replaced_groups=0., **seconds), infos


def test_the_advantage_sees_them():
    policy, sample, infos = group(Stepwise(), adv_method='reinforce_plus_plus')
    batch = learned(policy, [sample])
    for row, info in enumerate(infos):
        own, n = info['token_rewards'], info['taken']
        found = batch.reward[row, :n].tolist()
        assert found[:-1] == pytest.approx(own[:-1]) and sum(found) == pytest.approx(info['reward'])
    counted = batch.weight != 0
    to_go = batch.reward.flip(1).cumsum(1).flip(1)[counted]  # the rewards from each token on
    assert torch.allclose(batch.adv[counted], (to_go - to_go.mean()) / to_go.std(), atol=1e-4)


def test_outcomes_compare_sums():
    policy, sample, infos = group(Stepwise(), adv_method='no_std')
    total = torch.tensor([info['reward'] for info in infos])
    assert torch.allclose(learned(policy, [sample]).adv, total - total.mean(), atol=1e-5)


def test_a_score_that_comes_later_leaves_them():
    cfg = dict(DingTokenEnv.default_config(), task=dict(type='think_answer'), max_new_tokens=10)
    env = DingTokenEnv(EasyDict(cfg))
    env._env.task = env._env.scoring._task = Stepwise()
    env._env.scoring.weights['tokens'] = 1.0
    ids = np.array(answer_of(env._env))
    env.seed(0, dynamic_seed=False)
    env.reset(index=0)
    at_once = env.step(ids)
    env.reset(index=0, defer_score=True)
    later = env.step(ids)
    assert 'token_rewards' not in later.info and later.reward == 0
    later, = env._scorer.score([(0, later)])
    assert later.info['token_rewards'] == at_once.info['token_rewards'] != []
    assert later.reward == at_once.reward and later.info['exact_reward'] == at_once.info['exact_reward']


@pytest.mark.parametrize(
    'found, told', [
        ([0.], 'token_rewards returned 1 entries, must return a list of 3'),
        (1., 'token_rewards returned 1.0, must return a list of 3'),
        ([0., float('nan'), 0.], 'must return finite numbers'),
        (ValueError('no model'), 'token_rewards raised ValueError: no model'),
    ]
)
def test_wrong_ones_drop_the_row(found, told):

    class Wrong(Stepwise):

        def token_rewards(self, *args):
            if isinstance(found, Exception):
                raise found
            return found

    env = TokenEnv(Wrong(), max_new_tokens=10)
    ids = [*answer_of(env)[:2], env.eos_token_ids[0]]
    reward, info = ended(env, ids)
    assert reward == 0 and 'token_rewards' not in info and told in info['failed']
    assert set(info['reward_parts'].values()) == {None}


def test_a_row_without_a_score_has_none():

    class Unscored(Stepwise):

        def score(self, problem, completion):
            raise ValueError('no score')

    env = TokenEnv(Unscored(), max_new_tokens=10)
    reward, info = ended(env, answer_of(env))
    assert reward == 0 and 'no score' in info['failed'] and 'token_rewards' not in info


def test_none_is_a_part_that_does_not_apply():

    class Silent(Stepwise):

        def token_rewards(self, *args):
            return None

    env = TokenEnv(Silent(), max_new_tokens=10)
    _, info = ended(env, answer_of(env))
    assert info['reward_parts']['tokens'] is None and info['failed'] is None and 'token_rewards' not in info


class Talk(Game):
    words = ['a', 'b']

    def respond(self, problem, state, turn):
        return Reply('', dict(right=1.0), done=True)

    def token_rewards(self, problem, completion, tokens):
        return [0.] * len(tokens)


class Named(Stepwise):
    weights = dict(Stepwise.weights, tokens=1.0)


class Async(Stepwise):

    async def token_rewards(self, problem, completion, tokens):
        return None


@pytest.mark.parametrize(
    'make, told', [
        (lambda: TokenEnv(Talk(), max_new_tokens=4), 'Talk has token_rewards, which is for tasks of one turn'),
        (lambda: TokenEnv(Named(), max_new_tokens=4), "Named has token_rewards, whose sum is the part 'tokens'"),
        (lambda: TokenEnv(Async(), max_new_tokens=4), 'token_rewards'),
        (
            lambda: MixtureTask([dict(type='test_stepwise')] * 2),
            r'env.task.parts\[0\]: Stepwise has token_rewards. Train it alone'
        ),
    ]
)
def test_refused(make, told):
    with pytest.raises(ConfigError, match=told) as error:
        make()
    assert '\n' not in str(error.value)
