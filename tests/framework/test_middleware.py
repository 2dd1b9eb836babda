"""A task of ``ding.framework`` in one process."""
import copy
import os

import pytest
from ding.config import compile_config
from ding.envs import BaseEnvManager, BaseEnvManagerV2, get_vec_env_setting
from ding.framework import ding_init, task
from ding.framework.context import OnlineRLContext
from ding.framework.middleware import CkptSaver, StepCollector, interaction_evaluator, online_logger
from ding.policy import PPOPolicy
from ding.utils import set_pkg_seed

from ding_common import ConfigError
from ding_grpo.framework import Weights, Workers, group_collector, group_trainer
from ding_grpo.policy import GRPOPolicy
from tests.policies import change, step_policy
from tests.runs import train
from tests.same import same
from tests.shipped import small

UPDATES = 3


@pytest.fixture
def cfg(own_folder):
    main, create = small('cartpole_grpo', exp_name='task')
    return compile_config(main, seed=0, create_cfg=create, auto=True, save_cfg=False)


def environments(cfg, evaluates=False):
    env, *settings = get_vec_env_setting(copy.deepcopy(cfg.env))
    kind = BaseEnvManagerV2 if evaluates else BaseEnvManager
    return kind([lambda each=each: env(each) for each in settings[evaluates]], cfg.env.manager)


@pytest.mark.envtest
def test_the_weights_are_those_of_the_pipeline_and_the_files_those_of_ding(cfg):
    ding_init(cfg)
    set_pkg_seed(0, use_cuda=False)
    policy = GRPOPolicy(cfg.policy)
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        task.use(Workers())  # nothing in one process
        task.use(interaction_evaluator(cfg, policy.eval_mode, environments(cfg, evaluates=True)))
        task.use(group_collector(cfg, policy.collect_mode, environments(cfg)))
        task.use(group_trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=1))
        task.use(online_logger(train_show_freq=1))
        task.run(max_step=UPDATES)
        counts = task.ctx.train_iter, task.ctx.env_step, task.ctx.env_episode
    assert counts[0] == UPDATES and counts[2] == UPDATES * 8 and counts[1] > counts[2]
    other = train(small('cartpole_grpo'), UPDATES)
    same(policy.learn_mode.state_dict()['model'], other.learn_mode.state_dict()['model'])
    assert os.path.exists(f'task/ckpt/iteration_{UPDATES}.pth.tar')


def made():
    return step_policy(dict(type='vac', obs_shape=3, action_shape=2, action_space='discrete'))


@pytest.fixture
def policy():
    return made()


class Learner:
    """A learn mode that notes what it gets."""

    def __init__(self, policy):
        self.policy, self.got = policy, []

    def get_attribute(self, name):
        return self.policy.learn_mode.get_attribute(name)

    def forward(self, groups):
        self.got.append([(group['number'], group['staleness']) for group in groups])
        self.policy._learning.updates += 1
        return dict(reward_mean=0., staleness_max=0.)


def test_groups_that_are_too_old_are_dropped_and_counted(cfg, policy):
    learner, ctx = Learner(policy), OnlineRLContext()
    learn = group_trainer(cfg, learner, max_staleness=1)

    def arrive(*groups):
        ctx.episodes, ctx.train_output = [dict(number=n, collect_iter=age) for n, age in groups], None
        learn(ctx)
        return ctx.train_output and ctx.train_output['stale_groups']

    assert arrive((0, 0)) is None and learner.got == []  # an update takes two
    assert arrive((1, 0), (2, 0), (3, 0)) == 0
    assert arrive() == 0 and learner.got == [[(0, 0), (1, 0)], [(2, 1), (3, 1)]]
    assert arrive((4, 0), (5, 1), (6, 0)) is None  # 4 and 6 are two updates old
    assert arrive((7, 2)) == 2 and learner.got[2:] == [[(5, 1), (7, 0)]]
    assert ctx.train_iter == 3
    with pytest.raises(RuntimeError, match='41 groups since the last update had weights that were more than 1 upd'):
        arrive(*((8, 0) for _ in range(41)))


def test_weights_arrive_with_their_age(policy):
    other = made()
    change(other._model, 2)
    other._learning.updates, other._learning.updater.optimizer_steps = 5, 20
    sent = Weights(other).state_dict()
    change(other._model, 2)  # the next update, while a thread sends
    Weights(policy).load_state_dict(sent)
    change(policy._model, 2)
    same(policy._model.state_dict(), other._model.state_dict())
    assert policy.age == (5, 20)


def test_each_takes_its_own_policies(cfg, policy):
    with pytest.raises(ConfigError, match='StepCollector: grpo learns from whole groups.*group_collector'):
        StepCollector(cfg, policy.collect_mode, environments(cfg))
    main, create = small('cartpole_ppo')
    of_ppo = compile_config(main, seed=0, create_cfg=create, auto=True, save_cfg=False)
    ppo = PPOPolicy(of_ppo.policy, enable_field=['collect'])
    with pytest.raises(ConfigError, match="policy.type = 'ppo': does not learn from groups. Use DI-engine's"):
        group_collector(cfg, ppo.collect_mode, environments(cfg))
    StepCollector(cfg, ppo.collect_mode, environments(cfg))
