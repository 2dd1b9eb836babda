"""
A run of the comparison with this project's packages: GRPO, its critic, and DI-engine's PPO where environment and model
are the plugin's own. ``python -m benchmarks.comparison.plugin JOB.json``
"""
import sys
from functools import partial
from typing import Optional, Tuple

import numpy as np
from ding.envs import BaseEnvManager, create_env_manager, get_vec_env_setting
from easydict import EasyDict

import ding_grpo  # noqa: F401  so that DI-engine's import is quiet
from benchmarks.comparison.loop import Evaluate, Parts, build, greedy_episodes, load, read_job, train, write_result
from ding_grpo.evaluate import GroupEvaluator


def plugin_envs(cfg: EasyDict) -> Tuple[BaseEnvManager, Optional[BaseEnvManager]]:
    """The environments of the collector and, for a task of tokens, of the evaluator."""
    make_env, of_collector, of_evaluator = get_vec_env_setting(cfg, eval_='env_id' not in cfg)
    managers = (
        cfgs and create_env_manager(cfg.manager, [partial(make_env, cfg=c) for c in cfgs])
        for cfgs in (of_collector, of_evaluator)
    )
    return tuple(managers)


def greedy_decoding(parts: Parts) -> Evaluate:
    """The mean return of greedy decoding over all problems of the evaluation, by the plugin's evaluator."""
    cfg, policy = parts.cfg.policy.eval.evaluator, parts.policy.eval_mode
    evaluator = GroupEvaluator(cfg, parts.evaluator_envs, policy, parts.tb_logger, exp_name=parts.cfg.exp_name)

    def evaluate(envstep: int) -> float:
        _, info = evaluator.eval(None, parts.learner.train_iter, envstep)
        return float(np.mean(info['eval_episode_return']))

    return evaluate


def main(path: str) -> None:
    job = read_job(path)
    config = load(job)
    parts = build(job, config, plugin_envs)
    evaluate = greedy_decoding(parts) if parts.evaluator_envs is not None else \
        greedy_episodes(config[0].env, parts.policy.eval_mode, job['episodes'])
    write_result(job, train(job, parts, evaluate))


if __name__ == '__main__':
    main(sys.argv[1])
