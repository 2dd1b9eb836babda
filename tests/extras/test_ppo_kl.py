import copy

import numpy as np
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from ding.policy import PPOPolicy
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.extras.ppo_kl import PPOKLPolicy
from ding_grpo.rl_utils import kl_estimate
from tests.policies import vector
from tests.runs import each_update
from tests.shipped import small

BATCH = 12


def make(cls, action_space='discrete', recompute_adv=True, epoch_per_collect=3, batch_size=5, **learn):
    cfg = EasyDict(copy.deepcopy(cls.config))
    sizes = dict(encoder_hidden_size_list=[8, 8], actor_head_hidden_size=8, critic_head_hidden_size=8)
    cfg.model = dict(sizes, obs_shape=4, action_shape=2, action_space=action_space)
    cfg.update(action_space=action_space, recompute_adv=recompute_adv, multi_gpu=False, bp_update_sync=True)
    cfg.learn.update(epoch_per_collect=epoch_per_collect, batch_size=batch_size, learning_rate=1e-2, **learn)
    torch.manual_seed(0)
    return cls(cfg, enable_field=['learn', 'collect'])


class OpenPPO(PPOKLPolicy):
    """The parts that derived policies use."""
    model, reference = property(lambda self: self._model), property(lambda self: self._reference)


def transitions(policy):
    """What a collector gives: one cut episode of random observations."""
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(BATCH + 1, 4, generator=generator)
    data = []
    for i in range(BATCH):
        out = policy.collect_mode.forward({0: obs[i]})[0]
        step = EasyDict(obs=obs[i + 1], reward=torch.randn(1, generator=generator), done=i == BATCH - 1)
        data.append(policy.collect_mode.process_transition(obs[i], out, step))
    return policy.collect_mode.get_train_sample(data)


def learn(policy, times=2):
    """The weights after updates, and their metrics."""
    torch.manual_seed(7)
    np.random.seed(7)  # DI-engine shuffles by it
    metrics = []
    for _ in range(times):
        metrics += policy.learn_mode.forward(transitions(policy))
    return vector(policy.learn_mode.state_dict()['model'].values()), metrics


@pytest.mark.parametrize(
    'action_space, recompute_adv, value_norm', [
        ('discrete', True, True),
        ('continuous', True, False),
        ('discrete', False, False),
        ('continuous', False, True),
    ]
)
def test_without_beta_it_is_di_engines_ppo(action_space, recompute_adv, value_norm):
    options = dict(action_space=action_space, recompute_adv=recompute_adv, value_norm=value_norm)
    expected, theirs = learn(make(PPOPolicy, **options))
    got, ours = learn(make(PPOKLPolicy, kl=dict(beta=0, type='k1'), **options))
    assert torch.equal(got, expected) and len(ours) == len(theirs)
    for mine, their in zip(ours, theirs):
        their.pop('kl_div', None)  # of DI-engine's main
        assert {k: mine[k] for k in their} == pytest.approx(their, rel=1e-6)
        assert set(mine) - set(their) == {'kl'} and mine['kl'] == 0


@pytest.mark.parametrize('action_space, kl_type', [('discrete', 'k2'), ('continuous', 'k3')])
def test_beta_keeps_the_policy_near_its_start(action_space, kl_type):
    last = {}
    for beta in (1e-6, 10):
        policy = make(OpenPPO, action_space, kl=dict(beta=beta, type=kl_type), adv_norm=False)
        start = copy.deepcopy(policy.model.state_dict())
        last[beta] = learn(policy, times=6)[1][-1]['kl']
        assert all(torch.equal(w, start[name]) for name, w in policy.reference.state_dict().items())
    assert 0 <= last[10] < last[1e-6] / 3


@pytest.mark.parametrize('kl_type', ['k1', 'k2', 'k3'])
def test_the_kl_is_that_of_the_taken_actions(kl_type):
    policy = make(OpenPPO, kl=dict(beta=0.1, type=kl_type), value_norm=False, epoch_per_collect=1, batch_size=BATCH)
    torch.manual_seed(3)
    for p in policy.model.parameters():
        p.data += 0.1 * torch.randn_like(p)
    data = transitions(policy)
    obs, action = torch.stack([d['obs'] for d in data]), torch.stack([d['action'] for d in data]).view(-1, 1)
    with torch.no_grad():
        new, old = (
            m.forward(obs, mode='compute_actor')['logit'].log_softmax(-1).gather(1, action)
            for m in (policy.model, policy.reference)
        )
    metrics, = policy.learn_mode.forward(data)
    assert metrics['kl'] == pytest.approx(kl_estimate(new, old, kl_type).mean().item(), rel=1e-4)
    total = metrics['policy_loss'] + 0.5 * metrics['value_loss'] + 0.1 * metrics['kl']
    assert metrics['total_loss'] == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(
    'options, message', [
        (dict(kl=dict(beta=-1, type='k1')), r'policy.learn.kl.beta = -1: must be a number in \[0, inf\)'),
        (dict(beta=0.1), 'policy.learn.beta is policy.learn.kl.beta now'),
        (dict(kl=dict(beta=0.1, type='k4')), "policy.learn.kl.type = 'k4': must be one of 'k1', 'k2', 'k3'"),
        (dict(action_space='hybrid'), "policy.action_space = 'hybrid': must be 'discrete' or 'continuous'"),
    ],
    ids=str
)
def test_wrong_use(options, message):

    class Fitting(PPOKLPolicy):
        """The space of the model is another than that of the policy."""

        def _create_model(self, cfg, model=None):
            return super()._create_model(EasyDict(cfg, model=dict(cfg.model, action_space='discrete')), model)

    with pytest.raises(ConfigError, match=message):
        make(Fitting, **options)


def test_on_tokens_through_the_pipeline(own_folder, monkeypatch):
    learn = dict(batch_size=16, learning_rate=3e-3, kl=dict(beta=0.1, type='k3'))
    main, create = small('think_answer_ppo', policy=dict(collect=dict(n_sample=64), learn=learn))
    create.policy.type, main.env.collector_env_num = 'ppo_kl', 8
    kls = []
    each_update(monkeypatch, after=lambda _, policy, steps: kls.extend(each['kl'] for each in steps), kind=PPOKLPolicy)
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
    assert len(kls) >= 4 and kls[0] == pytest.approx(0, abs=1e-5) and kls[-1] > 1e-5
