import copy

import numpy as np
import pytest
import torch
from ding.config import compile_config
from ding.utils import MODEL_REGISTRY
from easydict import EasyDict
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import nn
from torch.distributions import Categorical, Normal

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.policy import GRPOPolicy

DISCRETE = dict(obs_shape=3, action_shape=4, action_space='discrete', encoder_hidden_size_list=[64, 64])
CONTINUOUS = dict(DISCRETE, action_shape=2, action_space='continuous')


def make(model, group_size=2, **sections):
    main = EasyDict(
        exp_name='run',
        env=dict(collector_env_num=group_size, evaluator_env_num=1, n_evaluator_episode=1),
        policy=dict(group_size=group_size, model=model, collect=dict(n_sample=1), learn=dict(batch_size=1)),
    )
    for name, section in sections.items():
        main.policy.setdefault(name, EasyDict()).update(section)
    create = EasyDict(
        env=dict(type='gymnasium_env', import_names=['ding_grpo']),
        env_manager=dict(type='base'),
        policy=dict(type='grpo'),
        collector=dict(type='group')
    )
    cfg = compile_config(main, seed=0, auto=True, create_cfg=create, save_cfg=False)
    torch.manual_seed(0)
    policy = GRPOPolicy(cfg.policy, seed=0)
    policy.bind(None)
    return policy


class Timestep:

    def __init__(self, reward, truncated=False, done=True):
        self.reward, self.info = np.array([reward]), dict(truncated=truncated)
        self.obs, self.done = np.full(3, reward, np.float32), done


def sample_group(policy, lengths, reward=lambda row, step: 1., truncated=(), number=0):
    """A group whose rows have these lengths; observations are random, the first one shared."""
    generator = torch.Generator().manual_seed(number)
    first = torch.randn(3, generator=generator)
    episodes = []
    for row, length in enumerate(lengths):
        episode = []
        for step in range(length):
            obs = first if step == 0 else torch.randn(3, generator=generator)
            out = policy.collect_mode.forward({row: obs.numpy()}, row_keys={row: (0, number, row)})[row]
            ends = step == length - 1
            episode.append(
                policy.collect_mode.process_transition(
                    obs, out, Timestep(reward(row, step), ends and row in truncated, ends)
                )
            )
        episodes.append(episode)
        policy.collect_mode.reset([row])
    sample, = policy.collect_mode.get_train_sample(episodes)
    from_collector = dict(seconds_sampling=0.1, seconds_scoring=0.1, replaced_groups=0., group_id=number)
    return dict(sample, collect_iter=0, **from_collector)


@pytest.mark.unittest
class TestStepActor:

    @pytest.mark.parametrize(
        'info, truncated', [
            (dict(truncated=True), True),
            ({
                'TimeLimit.truncated': True
            }, True),
            ({
                'truncated': False,
                'TimeLimit.truncated': True
            }, False),
            ({}, False),
        ],
        ids=str
    )
    def test_a_time_limit_by_the_name_of_gymnasium_and_of_gym(self, info, truncated):
        policy = make(DISCRETE)
        out = policy.collect_mode.forward({0: np.zeros(3, np.float32)}, row_keys={0: (0, 0, 0)})[0]
        step = Timestep(1.)
        step.info = info
        assert policy.collect_mode.process_transition(np.zeros(3), out, step)['truncated'] is truncated

    @pytest.mark.parametrize('model', [DISCRETE, CONTINUOUS, dict(DISCRETE, type='pg'), dict(CONTINUOUS, type='pg')])
    def test_sampled_log_probabilities_are_those_of_learning(self, model):
        policy = make(model)
        metrics = policy.learn_mode.forward([sample_group(policy, [3, 1])])
        assert metrics['ratio_max'] == pytest.approx(1, abs=1e-5) and metrics['episode_length_mean'] == 2

    def test_discrete_log_probability_by_torch(self):
        policy = make(DISCRETE)
        obs = {0: torch.randn(3), 1: torch.randn(3)}
        out = policy.collect_mode.forward(obs, row_keys={0: (0, 0, 0), 1: (0, 0, 1)})
        logit = policy._model(torch.stack(list(obs.values())), mode='compute_actor')['logit']
        action = torch.cat([out[i]['action'] for i in obs])
        expected = Categorical(logits=logit).log_prob(action)
        assert torch.allclose(torch.stack([out[i]['logp'] for i in obs]), expected, atol=1e-6)

    def test_continuous_log_probability_and_entropy_by_torch(self):
        policy = make(CONTINUOUS)
        sample = sample_group(policy, [2, 2])
        logit = policy._model(sample['obs'], mode='compute_actor')['logit']
        normal = Normal(logit['mu'], logit['sigma'])
        assert sample['action'].shape == (2, 2, 2)
        assert torch.allclose(
            sample['logp_old'].flatten(), normal.log_prob(sample['action'].view(4, 2)).sum(1), atol=1e-5
        )
        metrics = policy.learn_mode.forward([sample])
        assert metrics['entropy'] == pytest.approx(normal.entropy().sum(1).mean().item(), rel=1e-4)

    def test_actions_follow_the_distribution(self):
        policy = make(DISCRETE)
        obs = torch.zeros(3)
        out = policy.collect_mode.forward({i: obs for i in range(4000)}, row_keys={i: (0, 0, i) for i in range(4000)})
        share = torch.bincount(torch.cat([o['action'] for o in out.values()]), minlength=4) / 4000
        p = policy._model(obs[None], mode='compute_actor')['logit'].softmax(-1)[0]
        assert torch.allclose(share, p, atol=0.03)

    def test_a_rows_random_numbers_are_its_own(self):
        """The logits are its own up to rounding: some processors' products depend on the number of rows."""
        policy = make(CONTINUOUS)
        obs, keys = {i: torch.zeros(3) for i in range(3)}, {i: (0, 0, i) for i in range(3)}
        together = policy.collect_mode.forward(obs, row_keys=keys)
        policy.collect_mode.reset(None)
        alone = policy.collect_mode.forward({2: obs[2]}, row_keys={2: keys[2]})
        assert torch.allclose(alone[2]['action'], together[2]['action'], atol=1e-5)
        again = policy.collect_mode.forward({2: obs[2]}, row_keys={2: keys[2]})
        assert (again[2]['action'] - alone[2]['action']).abs().max() > 1e-2  # the generator goes on

    def test_greedy(self):
        for model, expected in ((DISCRETE, lambda logit: logit.argmax(-1, True)), (CONTINUOUS,
                                                                                   lambda logit: logit['mu'])):
            policy = make(model)
            obs = torch.randn(3)
            action = policy.eval_mode.forward({5: obs})[5]['action']
            assert torch.equal(action, expected(policy._model(obs[None], mode='compute_actor')['logit'])[0])

    def test_what_is_learned_does_not_depend_on_padding(self):
        """A group of uneven lengths beside a longer group: the gradient is that of each alone, added."""
        learned = []
        for batch in ([0], [1], [0, 1]):
            learn = dict(batch_size=2, learning_rate=1., reduction='sum', advantage='return_to_go')
            policy = make(DISCRETE, learn=learn)
            groups = [
                sample_group(policy, lengths, lambda row, step: float(row + step), number=n)
                for n, lengths in enumerate(([3, 1], [2, 5]))
            ]
            policy._optimizer = torch.optim.SGD(policy._model.parameters(), lr=1.)
            policy._cfg.learn.grad_clip_value = 1e9
            before = torch.cat([p.detach().flatten() for p in policy._model.parameters()])
            policy.learn_mode.forward([groups[i] for i in batch])
            learned.append(torch.cat([p.detach().flatten() for p in policy._model.parameters()]) - before)
        assert torch.allclose((learned[0] + learned[1]) / 2, learned[2], atol=1e-5)

    def test_steps_of_all_groups_in_one_mini_batch_are_the_groups_token_mean(self):
        learned = []
        for learn in (dict(batch_size=2, reduction='token'), dict(batch_steps=100)):
            policy = make(DISCRETE, learn=dict(learn, advantage='return_to_go', beta=0.1))
            for p in policy._learning.reference.copy.parameters():
                p.data.mul_(1.3)
            groups = [
                sample_group(policy, lengths, lambda row, step: float(row + step), number=n)
                for n, lengths in enumerate(([3, 1], [2, 5]))
            ]
            metrics = policy.learn_mode.forward(groups)
            learned.append((metrics, torch.cat([p.detach().flatten() for p in policy._model.parameters()])))
        assert torch.allclose(learned[0][1], learned[1][1], atol=1e-6)
        for name in ('total_loss', 'kl', 'entropy', 'grad_norm'):
            assert learned[0][0][name] == pytest.approx(learned[1][0][name], rel=1e-4), name

    def test_mini_batches_of_steps_take_each_step_once_an_epoch(self):
        policy = make(DISCRETE, learn=dict(batch_steps=4, epoch_per_collect=3))
        seen = []
        update = policy._learning.updater.step
        policy._learning.updater.step = lambda batch: seen.append(batch.obs) or update(batch)
        groups = [sample_group(policy, lengths, number=n) for n, lengths in enumerate(([3, 1], [2, 5]))]
        policy.learn_mode.forward(groups)
        assert [len(x) for x in seen] == [4, 4, 3] * 3
        everything = torch.cat([g['obs'] for g in groups]).sum(0)
        assert all(torch.allclose(torch.cat(seen[i:i + 3]).sum(0), everything, atol=1e-5) for i in (0, 3, 6))

    @pytest.mark.parametrize('learn', [dict(ratio='sequence'), dict(loss='gspo')])
    def test_single_steps_have_no_ratio_of_the_row(self, learn):
        with pytest.raises(ConfigError, match='policy.learn.batch_steps = 4: single steps'):
            make(DISCRETE, learn=dict(learn, batch_steps=4))

    @pytest.mark.parametrize(
        'model, learn, message', [
            (DISCRETE, dict(loss='vespo', batch_steps=4), "batch_steps = 4: single steps .* surrogate 'vespo' needs"),
            (CONTINUOUS, dict(surrogate='dppo_tv'), "surrogate = 'dppo_tv': compares probabilities .* have densities"),
            (CONTINUOUS, dict(adv_method='optimal_token_baseline'), "needs probabilities of discrete actions"),
        ]
    )
    def test_losses_that_do_not_fit(self, model, learn, message):
        with pytest.raises(ConfigError, match=message):
            make(model, learn=learn)

    def test_a_model_without_an_actor_is_refused(self):
        policy = make(dict(type='continuous_qac', obs_shape=3, action_shape=2, action_space='regression'))
        with pytest.raises(ConfigError, match='policy.model.type: .*logits'):
            policy.collect_mode.forward({0: torch.zeros(3)}, row_keys={0: (0, 0, 0)})


@pytest.mark.unittest
class TestAdvantage:

    def adv(self, sample_lengths, reward, truncated=(), **sections):
        policy = make(DISCRETE, **sections)
        batch = Batch.of([sample_group(policy, sample_lengths, reward, truncated)])
        return policy._advantage.of(batch)

    def test_outcome_is_the_discounted_return(self):
        adv = self.adv(
            [2, 1],
            lambda row, step: 1.,
            learn=dict(adv_method='no_std'),
            collect=dict(discount_factor=0.5),
        )
        assert adv.tolist() == [0.25, -0.25]  # returns 1.5 and 1

    def test_returns_to_go_are_compared_within_the_group(self):
        adv = self.adv([2, 1], lambda row, step: 1., learn=dict(adv_method='no_std', advantage='return_to_go'))
        third = 1 / 3  # returns 2, 1 and 1: mean 4/3
        assert torch.allclose(adv, torch.tensor([[2 * third, -third], [-third, 0]]))

    def test_a_cut_episode_is_taken_to_go_on(self):
        adv = self.adv(
            [2, 2],
            lambda row, step: 1.,
            truncated=(0, ),
            learn=dict(adv_method='no_std', advantage='return_to_go', extend_truncated=True),
            collect=dict(discount_factor=0.5),
        )
        # 1 + 1/2 + 1/4 ... = 2 at each step of the cut one; 1.5 and 1 in the other: mean 6.5 / 4
        assert torch.allclose(adv, torch.tensor([[2, 2], [1.5, 1]]) - 1.625)

    def test_returns_to_go_are_compared_at_each_step(self):
        adv = self.adv([2, 1], lambda row, step: 1., learn=dict(adv_method='no_std', advantage='return_to_go_by_step'))
        assert adv.tolist() == [[0.5, 0.5], [-0.5, 0]]  # returns 2 and 1, then 1 and, of what has ended, 0

    def test_a_cut_episode_goes_on_at_each_step(self):
        adv = self.adv(
            [1, 2],
            lambda row, step: 1.,
            truncated=(0, ),
            learn=dict(adv_method='no_std', advantage='return_to_go_by_step', extend_truncated=True),
            collect=dict(discount_factor=0.5),
        )
        assert adv.tolist() == [[0.25, 0], [-0.25, -0.5]]  # returns 2 and 1.5, then 2 for ever and 1

    def test_comparing_steps_needs_a_method_for_them(self):
        with pytest.raises(ConfigError, match="adv_method = 'opo': with advantage 'return_to_go_by_step'"):
            make(DISCRETE, learn=dict(adv_method='opo', advantage='return_to_go_by_step'))

    def test_extending_needs_a_discount(self):
        with pytest.raises(ConfigError, match='extend_truncated = True.*discount_factor'):
            make(DISCRETE, learn=dict(extend_truncated=True))


@pytest.mark.unittest
class TestSpaces:

    @pytest.mark.parametrize(
        'model, observations, actions, message', [
            (DISCRETE, (4, ), Discrete(4), r'policy.model.obs_shape: VAC does not read observations of shape \(4,\)'),
            (DISCRETE, (3, ), Discrete(3), 'policy.model.action_shape = 4: the environment has 3'),
            (DISCRETE, (3, ), Box(-1, 1, (4, )), "policy.model.action_space = 'discrete': .* are continuous"),
            (CONTINUOUS, (3, ), Discrete(2), "policy.model.action_space = 'continuous': .* are discrete"),
            (CONTINUOUS, (3, ), Box(-1, 1, (3, )), 'policy.model.action_shape = 2: the environment has 3'),
        ]
    )
    def test_a_model_that_does_not_fit_the_environment(self, model, observations, actions, message):
        bind = make(model).bind
        with pytest.raises(ConfigError, match=message):
            bind(None, (Box(-1, 1, observations), actions))

    @pytest.mark.parametrize(
        'model, actions', [(DISCRETE, Discrete(4)), (CONTINUOUS, Box(-1, 1, (2, ))), (DISCRETE, Discrete(4, start=7))]
    )
    def test_one_that_does_is_left_as_it_is(self, model, actions):
        policy = make(dict(model, norm_type='BN'))
        before = {name: value.clone() for name, value in policy._model.state_dict().items()}
        policy.bind(None, (Box(-1, 1, (3, )), actions))
        after = policy._model.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items())

    @pytest.mark.parametrize(
        'model, actions', [
            (DISCRETE, MultiBinary(4)), (DISCRETE, MultiDiscrete([4, 4])), (DISCRETE, Tuple([Discrete(4)])),
            (DISCRETE, Dict(a=Discrete(4))), (CONTINUOUS, Box(-2, 2, (2, ), int)),
            (CONTINUOUS, Box(0, 255, (2, ), 'uint8'))
        ],
        ids=str
    )
    def test_actions_outside_of_the_space_ran_in_silence(self, model, actions):
        bind = make(model).bind
        with pytest.raises(ConfigError, match=r'create_config.env: the actions .* are .*, and grpo gives .*wrap'):
            bind(None, (Box(-1, 1, (3, )), actions))

    @pytest.mark.parametrize(
        'model, actions', [(DISCRETE, Discrete(4, start=10)), (dict(CONTINUOUS, action_shape=4), Box(-9, 9, (2, 2)))]
    )
    def test_the_environment_gets_its_own_actions_and_the_learner_the_models(self, model, actions):
        policy = make(model)
        policy.bind(None, (Box(-1, 1, (3, )), actions))
        obs = {i: np.full(3, i, np.float32) for i in range(20)}
        outputs = policy.collect_mode.forward(obs, row_keys={i: (0, 0, i) for i in obs})
        outputs.update({i + 20: out for i, out in policy.eval_mode.forward(obs).items()})
        # DI-engine's policies give discrete actions in the shape (1, ), which environments such as frozen_lake index
        of_environment = (out['action'].numpy() for out in outputs.values())
        assert all(actions.contains(a[0] if 'n' in vars(actions) else a) for a in of_environment)
        step = policy.collect_mode.process_transition(obs[3], outputs[3], Timestep(1.))
        of_model = outputs[3]['action'][0] - 10 if 'n' in vars(actions) else outputs[3]['action'].flatten()
        assert torch.equal(step['action'][0], of_model)

    @pytest.mark.parametrize('change', [
        lambda box: setattr(box, 'dtype', np.float32),  # as DI-engine's wrapper does with spaces of float64
        lambda box: vars(box).update(low=box.high, high=box.low),  # as gym-hybrid has them
        lambda box: vars(box).update(low=np.full(3, -1.7e308), high=np.full(3, 1.7e308)),
    ])  # yapf: disable
    @pytest.mark.parametrize('around', [lambda box: box, lambda box: Dict(a=Dict(b=box)), lambda box: Tuple([box])])
    def test_spaces_that_cannot_be_sampled(self, change, around):
        box = Box(-1, 1, (3, ), np.float64)
        change(box)
        space, policy = around(box), make(DISCRETE)
        if space is not box:
            reading = policy._actor._collate
            policy._actor._collate = lambda obs: self.flat(reading(obs))
        policy.bind(None, (space, Discrete(4)))
        assert policy._actor.exact  # no NaN

    def flat(self, obs):
        return obs if isinstance(obs, torch.Tensor) else self.flat([*getattr(obs, 'values', lambda: obs)()][0])


class Net(nn.Module):

    def __init__(self, layer):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 64), layer(), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return dict(logit=self.net(x))


@pytest.mark.unittest
@pytest.mark.parametrize('layer', [lambda: nn.Dropout(0.2), lambda: nn.BatchNorm1d(64)], ids=['dropout', 'batch norm'])
class TestModesOfTheModel:
    """Sampling and evaluation ran in training mode: with noise, with other rows' statistics, and changing these."""

    def policy(self, layer):
        model = 'net'
        MODEL_REGISTRY.register(model, Net, force_overwrite=True)
        policy = make(dict(type=model, layer=layer), learn=dict(epoch_per_collect=2))
        for x in policy._model.buffers():  # statistics that are not those of the rows
            x.data += 1
        policy.bind(None, (Box(-1, 1, (3, )), Discrete(4)))
        return policy

    def test_an_action_depends_neither_on_noise_nor_on_other_rows(self, layer):
        policy, found = self.policy(layer), []
        before = copy.deepcopy(policy._model.state_dict())
        obs = {i: np.full(3, i, np.float32) for i in range(16)}
        for chosen in (obs, obs, {i: obs[i] for i in range(4)}):
            out = policy.collect_mode.forward(chosen, row_keys={i: (0, 0, i) for i in chosen})
            policy.collect_mode.reset()
            found.append([(out[i]['action'].item(), out[i]['logp'].item()) for i in range(4)])
            greedy = policy.eval_mode.forward(chosen)
            found[-1] += [(greedy[i]['action'].item(), 0) for i in range(4)]
        for other in found[1:]:
            assert [a for a, _ in other] == [a for a, _ in found[0]]
            assert [p for _, p in other] == pytest.approx([p for _, p in found[0]], abs=1e-6)
        assert all(torch.equal(x, before[name]) for name, x in policy._model.state_dict().items())

    def test_what_only_looks_changes_nothing(self, layer):
        policy = self.policy(layer)
        updater, before = policy._learning.updater, copy.deepcopy(policy._model.state_dict())
        batch, random = Batch.of([sample_group(policy, [4, 3])]), torch.get_rng_state()
        found = [updater.read(batch) for _ in range(2)]
        with policy._actor.aside():
            updater.read(batch)
            policy._actor.read(policy._model, batch).logp.sum().backward()
        assert torch.equal(*found) and torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(x, before[name]) for name, x in policy._model.state_dict().items())

    def test_the_learner_compares_with_its_own_first_pass(self, layer):
        policy = self.policy(layer)
        groups = [sample_group(policy, [4, 3], lambda row, step: float(row))]
        policy._optimizer = torch.optim.SGD(policy._model.parameters(), lr=0.)
        before = copy.deepcopy(dict(policy._model.named_buffers()))
        metrics = policy.learn_mode.forward(groups)
        after = dict(policy._model.named_buffers())
        assert all(not torch.equal(x, after[name]) for name, x in before.items())  # training mode
        assert metrics['sampler_gap_mean'] > 1e-3 and not policy._actor.exact
