"""
CartPole-v1 by the middleware of ``ding.framework``, as ``example/ppo.py`` of DI-engine trains it with PPO. In one
process:

    python examples/middleware.py

A learner, an evaluator and two collectors, each a process:

    ditask --package . --main examples.middleware.main --parallel-workers 4 --topology mesh --protocol ipc
"""
from functools import partial

from config.cartpole_grpo_config import create_config, main_config
from ding.config import compile_config
from ding.envs import BaseEnvManager, BaseEnvManagerV2, get_vec_env_setting
from ding.framework import ding_init, task
from ding.framework.context import OnlineRLContext
from ding.framework.middleware import (
    CkptSaver, ContextExchanger, ModelExchanger, interaction_evaluator, online_logger, termination_checker
)
from ding.utils import set_pkg_seed
from ditk import logging

from ding_grpo.framework import Weights, Workers, group_collector, group_trainer
from ding_grpo.policy import GRPOPolicy


def main(seed: int = 0, max_env_step: int = 300_000) -> None:
    logging.getLogger().setLevel(logging.INFO)
    main_config.exp_name = 'runs/middleware'
    cfg = compile_config(
        main_config, seed=seed, create_cfg=create_config, auto=True, save_cfg=task.router.node_id in (None, 0)
    )
    ding_init(cfg)
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        env, collector_cfg, evaluator_cfg = get_vec_env_setting(cfg.env)
        collector_env = BaseEnvManager([partial(env, c) for c in collector_cfg], cfg.env.manager)
        evaluator_env = BaseEnvManagerV2([partial(env, c) for c in evaluator_cfg], cfg.env.manager)
        set_pkg_seed(cfg.seed, use_cuda=cfg.policy.cuda)
        policy = GRPOPolicy(cfg.policy)
        groups = cfg.policy.collect.groups
        if task.router.is_active:  # several processes
            groups = -(-groups // max(task.router.n_parallel_workers - 2, 1))  # of each collector
            roles = {0: task.role.LEARNER, 1: task.role.EVALUATOR}
            task.add_role(roles.get(task.router.node_id, task.role.COLLECTOR))
            task.use(Workers())
            task.use(ContextExchanger(skip_n_iter=1))
            task.use(ModelExchanger(Weights(policy)))
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(group_collector(cfg, policy.collect_mode, collector_env, groups))
        task.use(group_trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.use(online_logger(train_show_freq=1))
        task.use(termination_checker(max_env_step=max_env_step))
        task.run()


if __name__ == '__main__':
    main()
