"""
One run of the comparison, the same code for every side: collect, learn, and evaluate each time the collected
environment steps pass a multiple of the interval. It imports DI-engine and gymnasium, and nothing of this project.
"""
import json
import os
import pickle
import time
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import gymnasium
import numpy as np
import torch
from ding.config import compile_config
from ding.envs import BaseEnvManager, DingEnvWrapper, create_env_manager
from ding.envs.common.common_function import affine_transform
from ding.policy import create_policy
from ding.utils import set_pkg_seed
from ding.worker import BaseLearner, BaseSerialCommander, create_serial_collector
from easydict import EasyDict
from tensorboardX import SummaryWriter

from benchmarks.shared.starts import Starts

NEVER_SAVED = 10 ** 9  # updates

Evaluate = Callable[[int], float]  # greedy return at an environment step


class Parts(NamedTuple):
    """What a run is made of, as in DI-engine's pipeline."""
    cfg: EasyDict
    policy: Any
    learner: BaseLearner
    collector: Any
    evaluator_envs: Any  # None where ``greedy_episodes`` evaluates
    tb_logger: SummaryWriter


def greedy_episodes(env: EasyDict, policy: NamedTuple, episodes: int) -> Evaluate:
    """The mean return of DI-engine's eval mode of a policy from the starts of ``Starts``."""

    def act(obs: np.ndarray) -> List[Any]:
        found = policy.forward(dict(enumerate(torch.from_numpy(obs)))).values()
        actions, space = [output['action'].numpy() for output in found], starts.envs[0].action_space
        if env.get('act_scale', False):
            return [affine_transform(a, min_val=space.low, max_val=space.high) for a in actions]
        return actions if isinstance(space, gymnasium.spaces.Box) else [int(a) for a in actions]

    def evaluate(envstep: int) -> float:
        policy.reset()
        return starts()

    starts = Starts(env, act, episodes)
    return evaluate


def gymnasium_env(cfg: EasyDict) -> DingEnvWrapper:
    """DI-engine's own wrapper over gymnasium. It takes an instance, because it cannot create one of gymnasium 1.x."""
    return DingEnvWrapper(gymnasium.make(cfg.env_id), cfg)


def wrapped_envs(cfg: EasyDict) -> Tuple[BaseEnvManager, None]:
    """The collector's environments, in DI-engine's own wrapper."""
    cfgs = DingEnvWrapper.create_collector_env_cfg(cfg)
    return create_env_manager(cfg.manager, [partial(gymnasium_env, c) for c in cfgs]), None


def set_keys(main_config: EasyDict, keys: Dict[str, Any]) -> None:
    """Set keys by their dotted paths, which begin with ``env`` or below ``policy``."""
    for path, value in keys.items():
        *sections, name = path.split('.')
        found = main_config if sections[:1] == ['env'] else main_config.policy
        for section in sections:
            found = found.setdefault(section, EasyDict())
        found[name] = EasyDict(value) if isinstance(value, dict) else value


def load(job: Dict[str, Any]) -> Tuple[EasyDict, EasyDict]:
    """The config of a run: the shipped one with the keys of the job, and without checkpoints."""
    with open(job['config'], 'rb') as f:
        main, create = pickle.load(f)
    set_keys(main, job['keys'])
    main.exp_name = job['folder']
    main.policy.learn.setdefault('learner', EasyDict()).setdefault('hook', EasyDict())
    main.policy.learn.learner.hook.save_ckpt_after_iter = NEVER_SAVED
    create.policy.type += '_command'
    return main, create


def build(job: Dict[str, Any], config: Tuple[EasyDict, EasyDict], make_envs: Callable, env: Any = None) -> Parts:
    """
    Overview:
        Policy, learner and collector, as DI-engine's ``serial_pipeline_onpolicy`` builds them.
    Arguments:
        - job (:obj:`Dict[str, Any]`): See ``comparison_runs.Work``.
        - config (:obj:`Tuple[EasyDict, EasyDict]`): From ``load``.
        - make_envs (:obj:`Callable`): Gives the environments of the collector and, or None, of the evaluator.
        - env (:obj:`Any`): Class of the environments; None finds the one that the config names.
    """
    main, create = config
    cfg = compile_config(main, seed=job['seed'], env=env, auto=True, create_cfg=create)
    envs, evaluator_envs = make_envs(cfg.env)
    envs.seed(cfg.seed)
    if evaluator_envs is not None:
        evaluator_envs.seed(cfg.seed, dynamic_seed=False)
    set_pkg_seed(cfg.seed, use_cuda=False)
    policy = create_policy(cfg.policy, enable_field=['learn', 'collect', 'eval', 'command'])
    tb_logger = SummaryWriter(os.path.join(cfg.exp_name, 'log', 'serial'))
    learner = BaseLearner(cfg.policy.learn.learner, policy.learn_mode, tb_logger, exp_name=cfg.exp_name)
    collector = create_serial_collector(
        cfg.policy.collect.collector, env=envs, policy=policy.collect_mode, tb_logger=tb_logger, exp_name=cfg.exp_name
    )
    return Parts(cfg, policy, learner, collector, evaluator_envs, tb_logger)


def train(job: Dict[str, Any], parts: Parts, evaluate: Evaluate) -> Dict[str, Any]:
    """
    Overview:
        Train until an evaluation reaches the bar, or the budget of environment steps is used up.
    Returns:
        - result (:obj:`Dict[str, Any]`): ``evaluations``: environment step, greedy return, and processor seconds of \
            training so far, of each evaluation, the first with the untrained policy; ``samples``: how many the policy \
            learned from, which are steps for PPO and groups for GRPO; ``collecting``: processor seconds of that part.
    """
    learner, collector = parts.learner, parts.collector
    commander = BaseSerialCommander(
        parts.cfg.policy.other.commander, learner, collector, None, None, parts.policy.command_mode
    )
    found, passed, seconds, collecting, samples = [(0, round(evaluate(0), 6), 0.0)], 0, 0.0, 0.0, 0
    while found[-1][0] < job['budget'] and (len(found) == 1 or found[-1][1] < job['bar']):
        begun = time.process_time()
        data = collector.collect(train_iter=learner.train_iter, policy_kwargs=commander.step())
        collecting += time.process_time() - begun
        learner.train(data, collector.envstep)
        seconds += time.process_time() - begun
        samples += len(data)
        if collector.envstep // job['interval'] > passed or collector.envstep >= job['budget']:
            passed = collector.envstep // job['interval']
            found.append((collector.envstep, round(evaluate(collector.envstep), 6), seconds))
    evaluations = [(int(step), value, round(spent, 2)) for step, value, spent in found]
    return dict(evaluations=evaluations, samples=samples, collecting=round(collecting, 2))


def read_job(path: str) -> Dict[str, Any]:
    torch.set_num_threads(1)
    with open(path) as f:
        return json.load(f)


def write_result(job: Dict[str, Any], result: Dict[str, Any]) -> None:
    """Write the result to the file that the job names."""
    with open(job['result'], 'w') as f:
        json.dump(result, f)
