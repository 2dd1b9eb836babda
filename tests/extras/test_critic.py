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
from ding_grpo.act.critic import Critic, StepCritic, head_of
from ding_grpo.data.batch import Batch
from ding_grpo.extras.value_loss import ValueLoss
from ding_grpo.learn.extra_loss import Setting
from ding_grpo.learn.update import Updater
from ding_grpo.rl_utils import LossConfig, gae_advantage
from tests.policies import make_batch, make_policy, sample_groups
from tests.act.test_step_actor import DISCRETE, make, sample_group
from tests.shipped import small

TORCHTUNE = json.load(open(os.path.join(os.path.dirname(__file__), '..', 'data', 'torchtune_ppo.json')))
GAE = dict(advantage='gae')


def token_policy(model=None, **learn):
    main, create = small('think_answer_grpo')
    main.policy.learn.update(dict(advantage='gae', adv_method=None), **learn)
    return make_policy(main, create, model=model)


def tensors(policy):
    critic = policy._learning.terms['critic'].critic.state_dict()
    return {**policy._model.state_dict(), **{f'critic {name}': x for name, x in critic.items()}}


class Recorded(nn.Module):
    """Log-probabilities and values as parameters, and the actor that reads them."""
    exact, max_length, seed = True, None, 0

    def __init__(self, logp, value):
        super().__init__()
        self.logp, self.value = nn.Parameter(logp), nn.Parameter(value)

    def read(self, model, batch, train_entropy, **heads):
        return Reading(self.logp, torch.zeros_like(self.logp), self.value)


@pytest.mark.unittest
class TestRowsOnTheDevice:

    @pytest.mark.parametrize('learn', [dict(advantage='gae', adv_method=None), dict(advantage='return_to_go_by_step')])
    def test_are_those_of_a_mini_batch(self, monkeypatch, learn):
        """A whole update may be larger than a GPU's memory."""
        moved, to = [], Batch.to
        monkeypatch.setattr(Batch, 'to', lambda self, device: moved.append(len(self)) or to(self, device))
        policy = make(
            DISCRETE, learn=dict(learn, batch_size=1, noise_every=1, shadow=['dapo'], shadow_every=1, beta=0.1)
        )
        policy.learn_mode.forward([sample_group(policy, [3, 2], truncated=(0, ), number=i) for i in range(4)])
        assert moved and max(moved) == policy.cfg.group_size


@pytest.mark.unittest
class TestLoss:

    @pytest.mark.parametrize('case', TORCHTUNE['cases'], ids=range(len(TORCHTUNE['cases'])))
    def test_a_step_has_the_gradient_of_torchtune(self, case):
        given = {name: torch.tensor(x, dtype=torch.float64) for name, x in TORCHTUNE['inputs'].items()}
        # torchtune has one mask for tokens and one for values, the policy has one for both
        for name, mask in (('pi_logprobs', 'padding_masks'), ('phi_values', 'value_padding_masks')):
            weight = given[mask] if case['use_masks'] else torch.ones_like(given[mask])
            batch = make_batch(
                weight,
                logp_old=given['pi_old_logprobs'],
                adv=given['advantages'],
                value=given['phi_old_values'],
                return_=given['returns']
            )
            model = Recorded(given['pi_logprobs'].clone(), given['phi_values'].clone())
            options = case['kwargs']
            cfg = EasyDict(
                micro_batch_tokens=None,
                entropy_weight=0.,
                grad_clip_value=1e9,
                target_kl=None,
                max_ratio=None,
                max_bad_updates=1,
                value_weight=options.get('value_coeff', 0.1),
                value_clip=options.get('value_clip_range', 0.2),
                gae_lambda=None,
                value_norm=False
            )
            loss = LossConfig(reduction='token', beta=0., clip_ratio=options.get('epsilon', 0.1))
            setting = Setting(EasyDict(learn=cfg, collect=dict(discount_factor=1.)), loss, model, model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            updater = Updater(cfg, 1, loss, model, model, optimizer, [ValueLoss(setting, StepCritic())])
            metrics = updater.step(batch)
            gradient = {'pi_logprobs': model.logp, 'phi_values': model.value}[name].grad
            expected = torch.tensor(case[f'grad_{name}'], dtype=torch.float64)
            assert torch.allclose(gradient, expected, rtol=0, atol=1e-8)
            part = {'pi_logprobs': 'policy_loss', 'phi_values': 'value_loss'}[name]
            assert metrics[part] == pytest.approx(case[part], abs=1e-9)
            if not case['use_masks']:
                assert metrics['total_loss'] == pytest.approx(case['loss'], abs=1e-9)


@pytest.mark.unittest
class TestTokens:

    def test_values_come_from_the_pass_of_the_log_probabilities(self):
        policy = token_policy()
        nn.init.normal_(policy._learning.terms['critic'].critic.head.weight)
        batch = Batch.of(sample_groups(policy, [0, 1]))
        model, actor = policy._model, policy._actor
        passes = []
        handle = model.trunk.register_forward_hook(lambda *args: passes.append(1))
        reading = actor.read(model, batch, False, policy._learning.terms['critic'].critic)
        of_one_pass = len(passes)
        actor.read(model, batch)
        handle.remove()
        assert len(passes) == 2 * of_one_pass
        value = actor.value(model, batch, policy._learning.terms['critic'].critic)
        counted = batch.weight != 0
        assert torch.allclose(reading.value[counted], value[counted], atol=1e-6) and value[counted].std() > 0
        assert torch.equal(reading.logp[counted], actor.read(model, batch).logp[counted])

    def test_advantages_are_those_of_gae_over_the_batch(self):
        policy = token_policy(gae_lambda=0.5)
        nn.init.normal_(policy._learning.terms['critic'].critic.head.weight)
        batch = Batch.of(sample_groups(policy, [0, 1]))
        learned = policy._learning.to_learn(batch)
        adv, return_ = gae_advantage(batch.reward, learned.value, batch.weight, 1., 0.5)
        counted = batch.weight != 0
        assert torch.allclose(learned.return_, return_)
        assert torch.allclose(learned.adv[counted], (adv[counted] - adv[counted].mean()) / (adv[counted].std() + 1e-4))
        assert not learned.adv[~counted].any()

    def test_learns_to_predict_the_return(self):
        policy = token_policy(learning_rate=1e-2, value_weight=1., gae_lambda=1., entropy_weight=0.)
        groups = sample_groups(policy, [0, 1], reward=lambda group, row: 1. + group)
        metrics = [policy.learn_mode.forward(copy.deepcopy(groups)) for _ in range(100)]
        assert metrics[0]['explained_variance'] == pytest.approx(0, abs=1e-6)  # the head starts at 0
        late = metrics[50:]  # the series swings at this rate, another way with each processor's rounding
        assert max(m['explained_variance'] for m in late) > 0.8
        assert min(m['value_loss'] for m in late) < 0.1 * metrics[0]['value_loss']
        assert set(policy._monitor_vars_learn()) >= {'value_loss', 'value_clipfrac', 'explained_variance'}

    def test_values_in_units_of_the_returns_deviation(self):
        policies = [token_policy(value_norm=norm, gae_lambda=0.5) for norm in (False, True)]
        groups = sample_groups(policies[0], [0, 1], reward=lambda group, row: 10. * row - 30. * group)
        for policy in policies:
            nn.init.normal_(policy._learning.terms['critic'].critic.head.weight)
            torch.manual_seed(0)
        policies[1]._learning.terms['critic'].critic.load_state_dict(
            policies[0]._learning.terms['critic'].critic.state_dict()
        )
        first = [policy._learning.to_learn(Batch.of(groups)) for policy in policies]
        counted = first[0].weight != 0
        assert torch.equal(first[0].return_, first[1].return_)  # the deviation is 1 before anything is observed
        std = policies[1]._learning.terms['critic'].critic.return_std
        assert policies[0]._learning.terms['critic'].critic.return_std == pytest.approx(1, abs=1e-6)
        assert std == pytest.approx(first[0].return_[counted].double().std(unbiased=False).item(), rel=1e-3)
        second = policies[1]._learning.to_learn(Batch.of(groups))
        adv, return_ = gae_advantage(second.reward, second.value * std, second.weight, 1., 0.5)
        assert torch.allclose(second.return_, return_ / std, atol=1e-5)

    def test_running_deviation(self):
        critic, returns = Critic(), torch.randn(50) * 7 + 3
        for part in returns.split([10, 1, 39]):
            critic.observe(part)
        assert critic.return_std == pytest.approx(returns.double().std(unbiased=False).item(), rel=1e-4)

    def test_groups_of_one_row(self):
        main, create = small('think_answer_grpo')
        main.policy.group_size = 1
        main.policy.learn.update(advantage='gae', adv_method=None, batch_size=4)
        policy = make_policy(main, create)
        assert policy.learn_mode.forward(sample_groups(policy, [0, 1, 2, 3]))['optimizer_steps'] == 1

    def test_micro_batches_change_nothing_but_memory(self):
        found = []
        for most in (None, 60):
            policy = token_policy(micro_batch_tokens=most, loss='dapo')
            policy.learn_mode.forward(sample_groups(policy, [0, 1]))
            found.append(tensors(policy))
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found[0].values(), found[1].values()))

    def test_a_model_of_its_own(self):
        own = dict(config=dict(small('think_answer_grpo')[0].policy.model.config, hidden_size=16))
        policy = token_policy(critic=own)
        before = copy.deepcopy(policy._learning.terms['critic'].critic.model.state_dict())
        groups = sample_groups(policy, [0, 1])
        for _ in range(2):  # in the first update the head is 0, and no gradient passes it
            assert policy.learn_mode.forward(copy.deepcopy(groups))['optimizer_steps'] == 1
        after = policy._learning.terms['critic'].critic.model.state_dict()
        assert policy._learning.terms['critic'].critic.head.in_features == 16
        assert any(not torch.equal(before[name], after[name]) for name in before)

    def test_warm_up_trains_the_head_only(self):
        policy = token_policy(value_warmup=1, weight_decay=0.1)
        before = copy.deepcopy(tensors(policy))
        groups = sample_groups(policy, [0, 1])
        policy.learn_mode.forward(copy.deepcopy(groups))
        changed = {name for name, x in tensors(policy).items() if not torch.equal(x, before[name])}
        assert changed == {'critic head.weight', 'critic head.bias'}
        policy.learn_mode.forward(copy.deepcopy(groups))
        assert any('critic' not in name for name, x in tensors(policy).items() if not torch.equal(x, before[name]))

    def test_a_checkpoint_contains_the_critic(self):
        policy = token_policy()
        groups = sample_groups(policy, [0, 1])
        policy.learn_mode.forward(copy.deepcopy(groups))
        state = copy.deepcopy(policy.learn_mode.state_dict())
        other = token_policy()
        other.learn_mode.load_state_dict(state)
        for p in (policy, other):
            p.learn_mode.forward(copy.deepcopy(groups))
        ours, theirs = tensors(policy), tensors(other)
        assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
        plain = make_policy(*small('think_answer_grpo'))
        with pytest.raises(ConfigError, match='the checkpoint contains a critic'):
            plain.learn_mode.load_state_dict(state)
        with pytest.raises(ConfigError, match='the checkpoint contains no critic'):
            policy.learn_mode.load_state_dict(plain.learn_mode.state_dict())


@pytest.mark.unittest
class TestSteps:

    def test_a_time_limit_is_followed_by_the_critics_value(self):
        policy = make(DISCRETE, learn=GAE)
        batch = Batch.of([sample_group(policy, [2, 3], truncated=[1])])
        learned = policy._learning.to_learn(batch)
        with torch.no_grad():
            final = policy._model(batch.final_obs, mode='compute_critic')['value']  # (2, )
        value = learned.value
        for row, last, following in ((0, 1, 0.), (1, 2, final[1])):
            discount = policy.cfg.collect.discount_factor
            delta = batch.reward[row, last] + discount * following - value[row, last]
            assert torch.allclose(learned.return_[row, last], delta + value[row, last])
        assert batch.final_obs.tolist() == [[1.] * 3] * 2  # the fake environment's last observation

    @pytest.mark.parametrize('batch_steps', [None, 3])
    def test_learns_with_mini_batches_of_groups_or_steps(self, batch_steps):
        policy = make(DISCRETE, learn=dict(GAE, batch_steps=batch_steps))
        metrics = policy.learn_mode.forward([sample_group(policy, [2, 3], truncated=[1])])
        assert metrics['optimizer_steps'] >= 1 and metrics['value_loss'] > 0

    @pytest.mark.parametrize('share_encoder', [True, False])
    def test_the_head_is_what_the_actor_does_not_use(self, share_encoder):
        policy = make(dict(DISCRETE, share_encoder=share_encoder), learn=dict(GAE, value_warmup=1))
        head = {id(p) for p in head_of(policy._model, policy._learning.terms['critic'].critic)}
        names = {name.split('.')[0] for name, p in policy._model.named_parameters() if id(p) in head}
        assert names == ({'critic_head'} if share_encoder else {'critic_head', 'critic_encoder'})

    def test_a_model_without_values(self):
        with pytest.raises(ConfigError, match="PG, has no value head. Use model type 'vac'"):
            make(dict(DISCRETE, type='pg'), learn=GAE)
        with pytest.raises(ConfigError, match='policy.learn.critic = .*only available for language models'):
            make(DISCRETE, learn=dict(GAE, critic=dict(config={})))


@pytest.mark.unittest
class TestConfig:

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(group_size=1), "policy.group_size = 1: .*or set policy.learn.advantage to 'gae'"),
            (dict(learn=dict(gae_lambda=0.95)), 'policy.learn.gae_lambda = 0.95: only available with'),
            (dict(learn=dict(value_weight=0.5)), "policy.learn.value_weight = 0.5 .*policy.learn.advantage='gae'"),
            (dict(learn=dict(value_warmup=3)), 'policy.learn.value_warmup = 3: only available with'),
            (dict(learn=dict(advantage='gae', adv_method='rloo')), "adv_method = 'rloo': with advantage 'gae'"),
            (dict(learn=dict(advantage='gae', drop_equal_groups=True)), 'policy.learn.drop_equal_groups = True'),
            (dict(learn=dict(advantage='gae', critic=dict(layers=1))), 'policy.learn.critic.layers'),
            (dict(learn=dict(advantage='gae', critic=dict())), 'policy.learn.critic'),
            (
                dict(learn=dict(advantage='gae'), collect=dict(collector=dict(max_replacements=1)
                                                               )), 'max_replacements = 1: must be 0'
            ),
        ],
        ids=str
    )
    def test_one_line_for_a_wrong_one(self, changes, message):
        main, create = small('think_answer_grpo')
        main.policy.learn.adv_method = None
        for section, value in changes.items():
            if isinstance(value, dict):
                main.policy[section].update(value)
            else:
                main.policy[section] = value
        with pytest.raises(ConfigError, match=message) as caught:
            make_policy(main, create)
        assert '\n' not in str(caught.value)
