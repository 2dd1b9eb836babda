"""``learn.advantage='gae'``: values of states in place of a comparison within the group."""
import copy
import json
import os

import pytest
import torch
from easydict import EasyDict
from torch import nn

from ding_common import ConfigError
from ding_grpo.act.actor import Reading
from ding_grpo.act.actor import Wanted
from ding_grpo.act.critic import Critic, StepCritic, head_of
from ding_grpo.config.keys import DEFAULTS
from ding_grpo.data.batch import Batch
from ding_grpo.extras.value_loss import ValueLoss
from ding_grpo.learn.extra_loss import Setting
from ding_grpo.learn.update import Updater
from ding_grpo.rl_utils import LossConfig, gae_advantage
from tests.policies import (DISCRETE, make_batch, sample_groups, sample_steps, step_policy, token_policy, update)
from tests.shipped import small

TORCHTUNE = json.load(open(os.path.join(os.path.dirname(__file__), '..', 'data', 'torchtune_ppo.json')))
GAE = dict(advantage='gae')


def with_critic(policy={}, trained_head=False, **learn):
    """A policy with a critic; its head starts at 0 unless it is trained."""
    found = token_policy(policy, **dict(GAE, adv_method=None, **learn))
    if trained_head:
        nn.init.normal_(critic_of(found).head.weight)
    return found


def critic_of(policy):
    return policy.terms['critic'].critic


def tensors(policy):
    critic = critic_of(policy).state_dict()
    return copy.deepcopy({**policy.model.state_dict(), **{f'critic {name}': x for name, x in critic.items()}})


def changed(policy, before):
    return {name for name, x in tensors(policy).items() if not torch.equal(x, before[name])}


class Recorded(nn.Module):
    """Log-probabilities and values as parameters, and the actor that reads them."""
    exact, max_length, seed = True, None, 0

    def __init__(self, logp, value):
        super().__init__()
        self.logp, self.value = nn.Parameter(logp), nn.Parameter(value)

    def read(self, model, batch, wanted):
        return Reading(self.logp, torch.zeros_like(self.logp), self.value)


@pytest.mark.parametrize('learn', [dict(GAE, adv_method=None), dict(advantage='return_to_go_by_step')])
def test_rows_on_the_device_are_those_of_a_mini_batch(monkeypatch, learn):
    """A whole update may be larger than a GPU's memory."""
    moved, to = [], Batch.to
    monkeypatch.setattr(Batch, 'to', lambda self, device: moved.append(len(self)) or to(self, device))
    learn = dict(learn, batch_groups=1, kl=dict(beta=0.1))
    instruments = dict(noise_every=1, shadow=['dapo'], shadow_every=1)
    policy = step_policy(DISCRETE, learn=learn, instruments=instruments)
    policy.learn_mode.forward([sample_steps(policy, [3, 2], truncated=(0, ), number=i) for i in range(4)])
    assert moved and max(moved) == policy.cfg.group_size


@pytest.mark.parametrize('case', TORCHTUNE['cases'], ids=range(len(TORCHTUNE['cases'])))
@pytest.mark.parametrize(
    'name, mask, part',
    [
        # torchtune has one mask for tokens and one for values, the policy has one for both
        ('pi_logprobs', 'padding_masks', 'policy_loss'),
        ('phi_values', 'value_padding_masks', 'value_loss'),
    ]
)
def test_a_step_has_the_gradient_of_torchtune(case, name, mask, part):
    given = {key: torch.tensor(x, dtype=torch.float64) for key, x in TORCHTUNE['inputs'].items()}
    weight = given[mask] if case['use_masks'] else torch.ones_like(given[mask])
    of_steps = dict(logp_old='pi_old_logprobs', adv='advantages', value='phi_old_values', return_='returns')
    batch = make_batch(weight, **{name: given[key] for name, key in of_steps.items()})
    model = Recorded(given['pi_logprobs'].clone(), given['phi_values'].clone())
    options, cfg = case['kwargs'], EasyDict(copy.deepcopy(DEFAULTS['learn']), grad_clip_value=1e9)
    cfg.critic.value_weight = options.get('value_coeff', 0.1)
    cfg.critic.value_clip = options.get('value_clip_range', 0.2)
    loss = LossConfig(reduction='token', beta=0., clip_ratio=options.get('epsilon', 0.1))
    setting = Setting(EasyDict(learn=cfg, collect=dict(discount_factor=1.)), loss, model, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    metrics = Updater(cfg, 1, loss, model, model, optimizer, [ValueLoss(setting, StepCritic())]).step(batch)
    gradient = {'pi_logprobs': model.logp, 'phi_values': model.value}[name].grad
    expected = torch.tensor(case[f'grad_{name}'], dtype=torch.float64)
    assert torch.allclose(gradient, expected, rtol=0, atol=1e-8)
    assert metrics[part] == pytest.approx(case[part], abs=1e-9)
    if not case['use_masks']:
        assert metrics['total_loss'] == pytest.approx(case['loss'], abs=1e-9)


class TestTokens:

    def test_values_come_from_the_pass_of_the_log_probabilities(self):
        policy = with_critic(trained_head=True)
        batch, passes = Batch.of(sample_groups(policy)), []
        handle = policy.model.trunk.register_forward_hook(lambda *args: passes.append(1))
        reading = policy.actor.read(policy.model, batch, Wanted(critic=critic_of(policy)))
        of_one_pass = len(passes)
        plain = policy.actor.read(policy.model, batch)
        handle.remove()
        assert len(passes) == 2 * of_one_pass
        value = policy.actor.value(policy.model, batch, critic_of(policy))
        counted = batch.weight != 0
        assert torch.allclose(reading.value[counted], value[counted], atol=1e-6) and value[counted].std() > 0
        assert torch.equal(reading.logp[counted], plain.logp[counted])

    def test_advantages_are_those_of_gae_over_the_batch(self):
        policy = with_critic(trained_head=True, critic=dict(gae_lambda=0.5))
        batch = Batch.of(sample_groups(policy))
        learned = policy.learning.to_learn(batch)
        adv, return_ = gae_advantage(batch.reward, learned.value, batch.weight, 1., 0.5)
        counted = batch.weight != 0
        assert torch.allclose(learned.return_, return_)
        assert torch.allclose(learned.adv[counted], (adv[counted] - adv[counted].mean()) / (adv[counted].std() + 1e-4))
        assert not learned.adv[~counted].any()

    def test_learns_to_predict_the_return(self):
        policy = with_critic(learning_rate=1e-2, critic=dict(value_weight=1., gae_lambda=1.), entropy=dict(weight=0.))
        groups = sample_groups(policy, reward=lambda group, row: 1. + group)
        metrics = [policy.learn_mode.forward(copy.deepcopy(groups)) for _ in range(100)]
        assert metrics[0]['explained_variance'] == pytest.approx(0, abs=1e-6)  # the head starts at 0
        late = metrics[50:]  # the series swings at this rate, another way with each processor's rounding
        assert max(m['explained_variance'] for m in late) > 0.8
        assert min(m['value_loss'] for m in late) < 0.1 * metrics[0]['value_loss']
        assert set(policy.learn_mode.monitor_vars()) >= {'value_loss', 'value_clipfrac', 'explained_variance'}

    def test_values_in_units_of_the_returns_deviation(self):
        policies = [with_critic(trained_head=True, critic=dict(value_norm=n, gae_lambda=0.5)) for n in (False, True)]
        plain, normed = policies
        critic_of(normed).load_state_dict(critic_of(plain).state_dict())
        batch = Batch.of(sample_groups(plain, reward=lambda group, row: 10. * row - 30. * group))
        first, other = (policy.learning.to_learn(batch) for policy in policies)
        assert torch.equal(first.return_, other.return_)  # the deviation is 1 before anything is observed
        std, returns = critic_of(normed).return_std, first.return_[first.weight != 0].double()
        assert critic_of(plain).return_std == pytest.approx(1, abs=1e-6)
        assert std == pytest.approx(returns.std(unbiased=False).item(), rel=1e-3)
        second = normed.learning.to_learn(batch)
        adv, return_ = gae_advantage(second.reward, second.value * std, second.weight, 1., 0.5)
        assert torch.allclose(second.return_, return_ / std, atol=1e-5)

    def test_running_deviation(self):
        critic, returns = Critic(), torch.randn(50) * 7 + 3
        for part in returns.split([10, 1, 39]):
            critic.observe(part)
        assert critic.return_std == pytest.approx(returns.double().std(unbiased=False).item(), rel=1e-4)

    def test_groups_of_one_row(self):
        policy = with_critic(dict(group_size=1), batch_groups=4)
        assert update(policy, [0, 1, 2, 3], reward=None)['optimizer_steps'] == 1

    def test_a_model_of_its_own(self):
        config = dict(small('think_answer_grpo')[0].policy.model.config, hidden_size=16)
        policy = with_critic(critic=dict(model=dict(config=config)))
        before = tensors(policy)
        for _ in range(2):  # in the first update the head is 0, and no gradient passes it
            assert update(policy, reward=None)['optimizer_steps'] == 1
        assert critic_of(policy).head.in_features == 16
        assert any(name.startswith('critic model.') for name in changed(policy, before))

    def test_warm_up_trains_the_head_only(self):
        policy = with_critic(weight_decay=0.1, critic=dict(value_warmup=1))
        before = tensors(policy)
        update(policy, reward=None)
        assert changed(policy, before) == {'critic head.weight', 'critic head.bias'}
        update(policy, reward=None)
        assert any('critic' not in name for name in changed(policy, before))

    def test_a_checkpoint_with_a_critic_and_one_without(self):
        policies = with_critic(), token_policy()
        states = [copy.deepcopy(policy.learn_mode.state_dict()) for policy in policies]
        for policy, state, message in zip(policies, reversed(states), ('contains no critic', 'contains a critic')):
            with pytest.raises(ConfigError, match=f'the checkpoint {message}'):
                policy.learn_mode.load_state_dict(state)


class TestSteps:

    def test_a_time_limit_is_followed_by_the_critics_value(self):
        policy = step_policy(DISCRETE, learn=GAE)
        batch = Batch.of([sample_steps(policy, [2, 3], truncated=[1])])
        learned = policy.learning.to_learn(batch)
        with torch.no_grad():
            final = policy.model(batch.final_obs, mode='compute_critic')['value']  # (2, )
        value = learned.value
        for row, last, following in ((0, 1, 0.), (1, 2, final[1])):
            discount = policy.cfg.collect.discount_factor
            delta = batch.reward[row, last] + discount * following - value[row, last]
            assert torch.allclose(learned.return_[row, last], delta + value[row, last])
        assert batch.final_obs.tolist() == [[1.] * 3] * 2  # the fake environment's last observation

    @pytest.mark.parametrize('batch_steps', [None, 3])
    def test_learns_with_mini_batches_of_groups_or_steps(self, batch_steps):
        policy = step_policy(DISCRETE, learn=dict(GAE, batch_steps=batch_steps))
        metrics = policy.learn_mode.forward([sample_steps(policy, [2, 3], truncated=[1])])
        assert metrics['optimizer_steps'] >= 1 and metrics['value_loss'] > 0

    @pytest.mark.parametrize(
        'share_encoder, parts', [(True, {'critic_head'}), (False, {'critic_head', 'critic_encoder'})]
    )
    def test_the_head_is_what_the_actor_does_not_use(self, share_encoder, parts):
        policy = step_policy(dict(DISCRETE, share_encoder=share_encoder), learn=dict(GAE, critic=dict(value_warmup=1)))
        head = {id(p) for p in head_of(policy.model, critic_of(policy))}
        assert {name.split('.')[0] for name, p in policy.model.named_parameters() if id(p) in head} == parts
