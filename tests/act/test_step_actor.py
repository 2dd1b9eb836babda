import copy

import numpy as np
import pytest
import torch
from ding.utils import MODEL_REGISTRY
from gymnasium.spaces import Box, Discrete
from torch import nn

from ding_common import ConfigError
from ding_grpo.act.distributions import Gaussian
from ding_grpo.data.batch import Batch
from tests.policies import CONTINUOUS, DISCRETE, Seen, Timestep, sample_steps, step_policy, weights


def two_groups(policy):
    """Of uneven lengths, with other returns at each step."""
    return [
        sample_steps(policy, lengths, lambda row, step: float(row + step), number=n)
        for n, lengths in enumerate(([3, 1], [2, 5]))
    ]


class TestSampling:

    @pytest.mark.parametrize(
        'info, truncated', [
            ({'TimeLimit.truncated': True}, True),
            ({'truncated': False, 'TimeLimit.truncated': True}, False),
            ({}, False),
        ],
        ids=str
    )  # yapf: disable
    def test_a_time_limit_by_the_name_of_gymnasium_and_of_gym(self, info, truncated):
        policy, step = step_policy(DISCRETE), Timestep(1.)
        step.info = info
        out = policy.collect_mode.forward({0: np.zeros(3, np.float32)}, row_keys={0: (0, 0, 0)})[0]
        assert policy.collect_mode.process_transition(np.zeros(3), out, step)['truncated'] is truncated

    @pytest.mark.parametrize('model', [dict(DISCRETE, type='pg'), dict(CONTINUOUS, type='pg')])
    def test_sampled_log_probabilities_are_those_of_learning(self, model):
        policy = step_policy(model)
        metrics = policy.learn_mode.forward([sample_steps(policy, [3, 1])])
        assert metrics['ratio_max'] == pytest.approx(1, abs=1e-5) and metrics['episode_length_mean'] == 2

    def test_discrete_actions_follow_the_distribution(self):
        policy, obs = step_policy(DISCRETE), torch.zeros(3)
        out = policy.collect_mode.forward({i: obs for i in range(4000)}, row_keys={i: (0, 0, i) for i in range(4000)})
        share = torch.bincount(torch.cat([o['action'] for o in out.values()]), minlength=4) / 4000
        p = policy.model(obs[None], mode='compute_actor')['logit'].softmax(-1)[0]
        assert torch.allclose(share, p, atol=0.03)

    def test_continuous_actions_follow_the_distribution(self):
        mu, sigma = torch.tensor([[1., -2.]]).expand(4000, 2), torch.tensor([[0.5, 3.]]).expand(4000, 2)
        action = Gaussian(mu, sigma).sample([np.random.default_rng(i) for i in range(4000)])
        noise = (action - mu) / sigma
        assert noise.mean(0).abs().max() < 0.06 and (noise.std(0) - 1).abs().max() < 0.05

    def test_a_rows_random_numbers_are_its_own(self):
        """The logits are its own up to rounding: some processors' products depend on the number of rows."""
        policy = step_policy(CONTINUOUS)
        obs, keys = {i: torch.zeros(3) for i in range(3)}, {i: (0, 0, i) for i in range(3)}
        together = policy.collect_mode.forward(obs, row_keys=keys)
        policy.collect_mode.reset(None)
        alone, again = (policy.collect_mode.forward({2: obs[2]}, row_keys={2: keys[2]})[2]['action'] for _ in '12')
        assert torch.allclose(alone, together[2]['action'], atol=1e-5)
        assert (again - alone).abs().max() > 1e-2  # the generator goes on

    @pytest.mark.parametrize(
        'model, expected', [
            (DISCRETE, lambda logit: logit.argmax(-1, True)),
            (CONTINUOUS, lambda logit: logit['mu']),
        ]
    )
    def test_greedy(self, model, expected):
        policy, obs = step_policy(model), torch.randn(3)
        action = policy.eval_mode.forward({5: obs})[5]['action']
        assert torch.equal(action, expected(policy.model(obs[None], mode='compute_actor')['logit'])[0])

    def test_a_model_without_an_actor_is_refused(self):
        policy = step_policy(dict(type='continuous_qac', obs_shape=3, action_shape=2, action_space='regression'))
        with pytest.raises(ConfigError, match='policy.model.type: .*logits'):
            policy.collect_mode.forward({0: torch.zeros(3)}, row_keys={0: (0, 0, 0)})


class TestLearning:

    def test_what_is_learned_does_not_depend_on_padding(self):
        """A group of uneven lengths beside a longer group: the gradient is that of each alone, added."""
        learned = []
        learn = dict(batch_groups=2, learning_rate=1., reduction='sum', advantage='return_to_go', grad_clip_value=1e9)
        for batch in ([0], [1], [0, 1]):
            policy = step_policy(DISCRETE, learn=learn)
            groups = two_groups(policy)
            policy.use_sgd()
            before = weights(policy)
            policy.learn_mode.forward([groups[i] for i in batch])
            learned.append(weights(policy) - before)
        assert torch.allclose((learned[0] + learned[1]) / 2, learned[2], atol=1e-5)

    def test_steps_of_all_groups_in_one_mini_batch_are_the_groups_token_mean(self):
        learned = []
        for learn in (dict(batch_groups=2, reduction='token'), dict(batch_steps=100)):
            policy = step_policy(DISCRETE, learn=dict(learn, advantage='return_to_go', kl=dict(beta=0.1)))
            for p in policy.reference.parameters():
                p.data.mul_(1.3)
            learned.append((policy.learn_mode.forward(two_groups(policy)), weights(policy)))
        (one, first), (two, second) = learned
        assert torch.allclose(first, second, atol=1e-6)
        for name in ('total_loss', 'kl', 'entropy', 'grad_norm'):
            assert one[name] == pytest.approx(two[name], rel=1e-4), name

    def test_mini_batches_of_steps_take_each_step_once_an_epoch(self):
        policy = step_policy(DISCRETE, learn=dict(batch_steps=4, epoch_per_collect=3))
        seen, groups = Seen(policy), two_groups(policy)
        policy.learn_mode.forward(groups)
        obs = [batch.obs for batch in seen.steps]
        assert [len(x) for x in obs] == [4, 4, 3] * 3
        everything = torch.cat([g['obs'] for g in groups]).sum(0)
        assert all(torch.allclose(torch.cat(obs[i:i + 3]).sum(0), everything, atol=1e-5) for i in (0, 3, 6))


class Net(nn.Module):

    def __init__(self, layer):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 64), layer(), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return dict(logit=self.net(x))


def unchanged(before, policy):
    return all(torch.equal(x, before[name]) for name, x in policy.model.state_dict().items())


@pytest.mark.parametrize('layer', [lambda: nn.Dropout(0.2), lambda: nn.BatchNorm1d(64)], ids=['dropout', 'batch norm'])
class TestModesOfTheModel:
    """Sampling and evaluation ran in training mode: with noise, with other rows' statistics, and changing these."""

    def policy(self, layer):
        MODEL_REGISTRY.register('net', Net, force_overwrite=True)
        policy = step_policy(dict(type='net', layer=layer), learn=dict(epoch_per_collect=2))
        for x in policy.model.buffers():  # statistics that are not those of the rows
            x.data += 1
        policy.bind(None, (Box(-1, 1, (3, )), Discrete(4)))
        return policy, copy.deepcopy(policy.model.state_dict())

    def test_an_action_depends_neither_on_noise_nor_on_other_rows(self, layer):
        policy, before = self.policy(layer)
        obs, actions, logps = {i: np.full(3, i, np.float32) for i in range(16)}, [], []
        for chosen in (obs, obs, {i: obs[i] for i in range(4)}):
            out = policy.collect_mode.forward(chosen, row_keys={i: (0, 0, i) for i in chosen})
            policy.collect_mode.reset()
            greedy = policy.eval_mode.forward(chosen)
            actions.append([found[i]['action'].item() for found in (out, greedy) for i in range(4)])
            logps.append([out[i]['logp'].item() for i in range(4)])
        assert actions[0] == actions[1] == actions[2]
        assert logps[1] == pytest.approx(logps[0], abs=1e-6) and logps[2] == pytest.approx(logps[0], abs=1e-6)
        assert unchanged(before, policy)

    def test_what_only_looks_changes_nothing(self, layer):
        policy, before = self.policy(layer)
        batch, random = Batch.of([sample_steps(policy, [4, 3])]), torch.get_rng_state()
        found = [policy.updater.read(batch) for _ in range(2)]
        with policy.actor.aside():
            policy.updater.read(batch)
            policy.actor.read(policy.model, batch).logp.sum().backward()
        assert torch.equal(*found) and torch.equal(torch.get_rng_state(), random) and unchanged(before, policy)

    def test_the_learner_compares_with_its_own_first_pass(self, layer):
        policy, _ = self.policy(layer)
        groups = [sample_steps(policy, [4, 3], lambda row, step: float(row))]
        policy.use_sgd(lr=0.)
        before = copy.deepcopy(dict(policy.model.named_buffers()))
        metrics = policy.learn_mode.forward(groups)
        after = dict(policy.model.named_buffers())
        assert all(not torch.equal(x, after[name]) for name, x in before.items())  # training mode
        assert metrics['sampler_gap_mean'] > 1e-3 and not policy.actor.exact


def test_a_layer_decides_about_its_mode_by_a_method_of_its_own():
    seen = []

    class Frozen(nn.ReLU):

        def train(self, mode=True):
            self.told = mode
            return super().train(False)

        def forward(self, x):
            seen.append((torch.is_grad_enabled(), self.told, self.training))
            return super().forward(x)

    MODEL_REGISTRY.register('net', Net, force_overwrite=True)
    policy = step_policy(dict(type='net', layer=Frozen))
    policy.learn_mode.forward([sample_steps(policy, [4, 3])])
    policy.eval_mode.forward({0: np.zeros(3, np.float32)})
    assert set(seen) == {(True, True, False), (False, False, False)}
