"""``policy.learn.environment_tokens`` (ECHO): the policy learns to predict the replies of the environment."""
import pytest
import torch

from ding_grpo.data.batch import Batch
from ding_grpo.extras.environment_tokens import of_environment
from ding_grpo.rl_utils import masked_mean, supervised_data, supervised_error
from dizoo_llm.envs import TokenEnv
from tests.extras.plain import assert_step, plain_log_probs, refused
from tests.policies import Chatter, make_batch, sample_dialogues, token_policy
from tests.rl_utils.peers import assert_recorded, recorded, tensors

PEERS = recorded('relatives')
TURNS = dict(max_turns=4, max_new_tokens=5, max_reply_tokens=10)
WITHOUT_REWARD = dict(learning_rate=1e-9, entropy=dict(weight=0.), kl=dict(beta=0.))


def echoing(weight=0.5, env=None, policy={}, collect={}, **learn):
    env = env or TokenEnv(Chatter(), **TURNS)
    return token_policy(policy, collect, env=env, environment_tokens=dict(weight=weight), **learn), env


def test_prime_rl():
    case, = PEERS['echo']
    new, mask = tensors(PEERS, 'logp_new', 'mask')
    loss, info = supervised_error(supervised_data(new.requires_grad_(), 1 - mask), 'token')
    assert_recorded(case['weight'] * loss, new, case, 'grad')
    assert info.nll == pytest.approx(case['nll'], abs=1e-9)


def test_which_tokens():
    weight = torch.tensor([[1., 0., 0., 1., 0.], [1., 1., 0., 0., 0.], [0., 0., 0., 0., 0.]])
    batch = make_batch(weight, length=torch.tensor([4, 2, 3]))
    # between turns; not after the end of a row, and not in a row that is masked
    assert of_environment(batch).tolist() == [[0, 1, 1, 0, 0], [0] * 5, [0] * 5]


@pytest.mark.parametrize('reduction, micro', [('sequence', None), ('sequence', 40), ('token', 40), ('constant', None)])
def test_the_gradient_is_that_under_transformers(reduction, micro):
    policy, env = echoing(reduction=reduction, micro_batch_tokens=micro, **WITHOUT_REWARD)
    learned = policy.learning.to_learn(Batch.of(sample_dialogues(policy, env, 2)))
    learned.adv = torch.zeros_like(learned.adv)  # the loss of the policy is then 0
    nll, env_tokens = -plain_log_probs(policy.model, learned), of_environment(learned)
    counts = env_tokens.sum(1)
    assert (counts == 0).any() or (counts > 0).all()
    divisor = dict(
        sequence=len(learned) * counts.clamp(min=1),
        token=learned.weight.sum(),
        constant=torch.tensor(len(learned) * policy.actor.max_length)
    )[reduction]
    expected = ((nll * env_tokens).sum(1) / divisor).sum()
    metrics = assert_step(policy, learned, 0.5 * expected)
    assert metrics['total_loss'] == pytest.approx(0.5 * expected.item(), abs=1e-5)
    assert metrics['environment_nll'] == pytest.approx(((nll * env_tokens).sum() / env_tokens.sum()).item(), abs=1e-5)
    assert 'environment_nll' in policy.learn_mode.monitor_vars()


def test_sampling_rules_are_not_those_of_the_environment():
    policy, env = echoing(collect=dict(top_k=4, temperature=0.7), **WITHOUT_REWARD)
    learned = policy.learning.to_learn(Batch.of(sample_dialogues(policy, env, 2)))
    expected = -masked_mean(plain_log_probs(policy.model, learned, temperature=0.7), of_environment(learned)).item()
    assert policy.updater.step(learned)['environment_nll'] == pytest.approx(expected, abs=1e-4) and expected > 1


def test_it_learns_to_predict_and_is_off_by_default():
    policy, env = echoing(weight=5., learning_rate=1e-2, epoch_per_collect=4)
    data = sample_dialogues(policy, env, 2)
    first, last = (policy.learn_mode.forward([dict(group) for group in data])['environment_nll'] for _ in range(2))
    assert last < first - 0.1
    assert 'environment_tokens' not in token_policy(env=env).terms


REFUSED = {
    'environment_tokens.weight = 0.5: needs env.max_turns above 1': dict(env=TokenEnv(max_new_tokens=6)),
    "log_prob_fn = 'naive_method': must be 'linear_log_prob' with": dict(log_prob_fn='naive_method'),
    'teacher = .*: must be None with policy.learn.environment_tokens': dict(policy=dict(teacher=dict(self='live'))),
    'environment_tokens.weight = -1': dict(weight=-1.),
}


@pytest.mark.parametrize('told', REFUSED)
def test_refused(told):
    with refused(told):
        echoing(**REFUSED[told])
