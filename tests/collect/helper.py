"""A collector with the environments of think_answer, and environments that misbehave."""
import copy
import time
from functools import partial

import numpy as np
import torch
from ding.envs import create_env_manager, get_env_manager_cls, get_vec_env_setting
from easydict import EasyDict
from tensorboardX import SummaryWriter

from ding_grpo.collect import GroupCollector
from dizoo_llm.envs import DingTokenEnv
from tests.policies import make_policy


class SlowResetEnv(DingTokenEnv):
    """Environments that take different times to reset, so that they become ready in another order."""

    def reset(self, **start):
        time.sleep(np.random.default_rng().uniform(0, 0.02))
        return super().reset(**start)


class AbnormalEnv(DingTokenEnv):
    """The first ``broken`` steps of all environments end abnormally."""
    broken = 0

    def step(self, action):
        step = super().step(action)
        if AbnormalEnv.broken > 0:
            AbnormalEnv.broken -= 1
            step.info['abnormal'] = True
        return step


def make_collector(
    main,
    create,
    tmp_path,
    manager='base',
    env_num=8,
    env_cls=DingTokenEnv,
    seed=0,
    policy=None,
    step_timeout=None,
    **collector
):
    policy = policy or make_policy(main, create, seed=seed)
    cfg = EasyDict(copy.deepcopy(main.env), type='token_env', import_names=[], collector_env_num=env_num)
    _, cfgs, _ = get_vec_env_setting(cfg, eval_=False)
    manager_cfg = get_env_manager_cls(EasyDict(type=manager)).default_config()
    manager_cfg.update(type=manager, step_timeout=step_timeout)
    envs = create_env_manager(manager_cfg, [partial(env_cls, cfg=c) for c in cfgs])
    torch.manual_seed(seed)
    config = EasyDict({**GroupCollector.config, **collector, 'type': 'group'})
    return GroupCollector(config, envs, policy.collect_mode, SummaryWriter(str(tmp_path / 'tb')), exp_name='exp')


def summary(samples):
    return [(s['group_id'], s['prompt'].tolist(), s['action'].tolist(), s['reward'].tolist()) for s in samples]
