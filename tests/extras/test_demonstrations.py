"""``policy.learn.demonstrations``: supervised tokens beside the policy's own rows."""
import pytest
import torch

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.rl_utils import sequence_mean, supervised_data, supervised_error
from dizoo_llm.envs import TokenEnv
from tests.dizoo_llm.helper import Prompts
from tests.extras.plain import assert_step, plain_log_probs
from tests.policies import ALONE, sample_groups, token_policy, update

ENV = dict(max_new_tokens=10)


def shown(env=None, group_size=4, share=1., weight=1., **learn):
    return token_policy(
        dict(group_size=group_size),
        env=env or TokenEnv(**ENV),
        demonstrations=dict(share=share, weight=weight),
        **learn
    )


def draw(policy, number, seed):
    return policy.terms['demonstrations'].draw(number, seed)


def answers(drawn):
    """(prompt, answer) of each row."""
    return [(prompt, drawn.action[row, :drawn.length[row]]) for row, prompt in enumerate(drawn.prompts)]


def test_error_by_hand():
    logp = torch.tensor([[-1., -3., 0.], [-5., 0., 0.]], requires_grad=True)
    data = supervised_data(logp, torch.tensor([[1., 1., 0.], [1., 0., 0.]]))
    for options, expected in ((dict(), 3.5), (dict(reduction='token'), 3.), (dict(reduction='sum'), 4.5)):
        loss, info = supervised_error(data, **options)
        assert loss.item() == expected and info.nll == 3.


def test_the_gradient_is_that_of_the_answers_under_transformers():
    policy = shown(**ALONE, share=0.5, weight=2., learning_rate=1e-9)
    batch = Batch.of(sample_groups(policy))
    drawn = draw(policy, len(batch), policy.updater.step_seed)
    assert len(drawn) == 4
    expected = -sequence_mean(plain_log_probs(policy.model, drawn), drawn.weight)
    metrics = assert_step(policy, policy.learning.to_learn(batch), 2 * expected)
    assert metrics['total_loss'] == pytest.approx(2 * expected.item(), abs=1e-5)
    assert metrics['demonstration_nll'] > 1 and 'demonstration_nll' in policy.learn_mode.monitor_vars()


def test_the_tokens_are_right_answers_of_training_problems():
    env, found = TokenEnv(**ENV), set()
    for prompt, answer in answers(draw(shown(), 64, 3)):
        index = next(i for i in range(4) if env.encode(env.task.problem(i)) == prompt.tolist())
        env.reset(options=dict(index=index))
        info = env.step(answer.numpy())[-1]
        assert info['return'] == 1 and info['terminated'] and info['taken'] == len(answer)
        found.add(index)
    assert found == {0, 1, 2, 3}


def test_each_step_has_its_own_and_the_same_when_repeated():
    policy = shown()
    first, second, again = ([p.tolist() for p in draw(policy, 32, seed).prompts] for seed in (0, 1, 0))
    assert first == again != second


def test_evaluation_problems_are_never_shown():
    env = TokenEnv(evaluation=True, **ENV)
    assert env.token_spec.demonstrations is None
    with pytest.raises(ConfigError, match='the environment has no demonstrations'):
        update(shown(env), reward=None)


def test_answers_that_the_scorer_does_not_reward():
    with pytest.raises(ConfigError, match='env.task: its scorer gives .* for its own demonstration'):
        shown(TokenEnv(Prompts('a', scorer=lambda problem, text: dict(right=0.), words=['0', 'a']), max_new_tokens=4))


def test_answers_that_are_too_long():
    with pytest.raises(ConfigError, match='env.max_new_tokens = 3: the answer .* has 6 tokens'):
        draw(shown(TokenEnv(max_new_tokens=3)), 64, 0)
