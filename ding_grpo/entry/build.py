"""Builds the parts of a run, in the order of DI-engine's serial pipelines, so that the same seed gives the same run."""
import copy
import os
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from ding.config import compile_config
from ding.envs import BaseEnvManager, get_vec_env_setting
from ding.policy import create_policy
from ding.utils import POLICY_REGISTRY, get_rank, set_pkg_seed
from ding.worker import (
    BaseLearner, BaseSerialCommander, create_buffer, create_serial_collector, create_serial_evaluator
)
from easydict import EasyDict
from tensorboardX import SummaryWriter

from ding_common import ConfigError
from ding_common.processes.env_manager import create_manager
from ding_common.versions import untested
from ding_grpo.config.check_keys import check_main_config
from ding_grpo.config.checks import check_replay, check_wrappers
from ding_grpo.evaluate import GroupEvaluator
from ding_grpo.learn.half_weights import check_trained
from ding_grpo.logs.screen import show
from ding_grpo.model import CausalLMVAC
from ding_grpo.data.capability import is_grpo
from ding_grpo.run.around import checked_while_compiled
from ding_grpo.run.parts import Limits, Parts
from ding_grpo.run.report import ReportHook

Configs = Tuple[EasyDict, EasyDict]
# What a ``Saver`` does, and not the hooks of DI-engine's learner: they save before an update is counted, load the
# policy's state only, and reduce metrics that are the same in all processes.
SAVING = ('load_ckpt_before_run', 'save_ckpt_after_iter', 'save_ckpt_after_run', 'log_reduce_after_iter')


def compiled(configs: Configs, seed: int, replays: bool = False, **kwargs: Any) -> EasyDict:
    """Both configs, which change, as one config with all defaults. ``replays``: the run learns from a replay buffer.
    ``kwargs`` are those of DI-engine's ``compile_config``."""
    main_config, create_config = configs

    def check(user_cfg: Dict, policy_cfg: Dict) -> None:
        if is_grpo(policy_cfg.type):
            check_wrappers(user_cfg.get('env', {}))
            check_main_config(user_cfg, policy_cfg, POLICY_REGISTRY.get(policy_cfg.type).default_config())
            for line in untested():
                show(line)
            if replays:
                check_replay(user_cfg.policy, policy_cfg.other.replay_buffer.type)

    with checked_while_compiled(check):
        return compile_config(main_config, seed=seed, auto=True, create_cfg=create_config, **kwargs)


def build(
        configs: Configs,
        seed: int = 0,
        env_setting: Optional[List[Any]] = None,
        model: Optional[torch.nn.Module] = None,
        limits: Limits = Limits(),
        replays: bool = False,
        dynamic_seed: bool = True
) -> Parts:
    """The parts of a run, whose folder is made. ``configs`` are not changed; arguments are those of the pipelines."""
    main_config, create_config = copy.deepcopy(configs)
    groups = is_grpo(create_config.policy.type)
    if not groups:
        create_config.policy.type += '_command'
    resumes = main_config.policy.learn.get('resume_training', False)
    if env_setting is None and 'type' not in create_config.get('env', {}):
        raise ConfigError("create_config.env.type: missing; must be a registered environment, such as 'token_env'.")
    cfg = compiled(
        (main_config, create_config),
        seed,
        replays,
        env=env_setting and env_setting[0],
        save_cfg=True,
        renew_dir=not resumes
    )
    env, *env_cfgs = env_setting or get_vec_env_setting(cfg.env)
    collector_env, evaluator_env = (environments(cfg, env, of_mode) for of_mode in env_cfgs)
    collector_env.seed(cfg.seed, dynamic_seed=dynamic_seed)
    evaluator_env.seed(cfg.seed, dynamic_seed=False)
    policy = make_policy(cfg, model, seed, groups)
    folder = cfg.exp_name
    tb_logger = SummaryWriter(os.path.join(f'./{folder}/log/', 'serial')) if get_rank() == 0 else None
    learner, report = make_learner(cfg.policy.learn.learner, policy.learn_mode, tb_logger, folder, groups)
    collector = create_serial_collector(
        cfg.policy.collect.collector,
        env=collector_env,
        policy=policy.collect_mode,
        tb_logger=tb_logger,
        exp_name=folder
    )
    evaluator = make_evaluator(cfg, evaluator_env, policy, tb_logger, replays)
    parts = Parts(cfg, policy, learner, collector, evaluator, limits, seed, collector_env=collector_env)
    if replays:
        parts.buffer = create_buffer(cfg.policy.other.replay_buffer, tb_logger=tb_logger, exp_name=folder)
    if groups:
        parts.limits = limits_of(cfg.policy, limits)
    else:
        parts.commander = BaseSerialCommander(
            cfg.policy.other.commander, learner, collector, evaluator, parts.buffer, policy.command_mode
        )
    report.parts = parts
    return parts


def limits_of(policy_cfg: EasyDict, limits: Limits) -> Limits:
    number = policy_cfg.run.num_updates
    return limits if number is None else limits._replace(updates=min(number, limits.updates))


def environments(cfg: EasyDict, env: Callable, env_cfgs: List[Any]) -> BaseEnvManager:
    return create_manager(cfg.env.manager, [partial(env, cfg=c) for c in env_cfgs])


def make_policy(cfg: EasyDict, model: Optional[torch.nn.Module], seed: int, groups: bool) -> Any:
    """The policy, after the generators of random numbers have been seeded."""
    set_pkg_seed(seed, use_cuda=cfg.policy.cuda)
    fields = ['learn', 'collect', 'eval']
    if groups:
        return create_policy(cfg.policy, model=model, enable_field=fields, seed=seed)
    kept = isinstance(model, CausalLMVAC) or cfg.policy.model.get('type') == 'causal_lm_vac'
    if kept and cfg.policy.learn.get('ppo_param_init'):
        raise ConfigError(
            'policy.learn.ppo_param_init = True: would reinitialise every layer of the language model. Set '
            'ppo_param_init=False.'
        )
    policy = create_policy(cfg.policy, model=model, enable_field=[*fields, 'command'])
    if kept:
        check_trained(dict(policy.learn_mode.get_attribute('model').named_parameters()))
    return policy


def make_learner(
        learner_cfg: EasyDict,
        policy: Any,
        tb_logger: Optional[SummaryWriter],
        exp_name: str,
        groups: bool,
        make: Callable = BaseLearner
) -> Tuple[BaseLearner, ReportHook]:
    """DI-engine's learner, and the hook that reports the run, which its config may name."""
    cfg, hooks = copy.deepcopy(learner_cfg), learner_cfg.hook
    named = [name for name, hook in hooks.items() if isinstance(hook, dict) and hook.get('type') == 'grpo_report']
    for name in [*named, *(SAVING if groups else ())]:
        cfg.hook.pop(name, None)
    several = dict(dist_info=(get_rank(), 1)) if groups else {}  # else it adds a hook that reduces metrics
    learner = make(cfg, policy, tb_logger, exp_name=exp_name, **several)
    arguments = hooks[named[0]].get('ext_args', {}) if named else {}
    report = ReportHook('report', 90, position='before_run', ext_args=arguments)
    learner.register_hook(report)
    return learner, report


def make_evaluator(
        cfg: EasyDict, env: BaseEnvManager, policy: Any, tb_logger: Optional[SummaryWriter], replays: bool
) -> Any:
    """DI-engine's on-policy pipeline has one evaluator; the other takes that of ``create_config``."""
    settings, common = cfg.policy.eval.evaluator, dict(tb_logger=tb_logger, exp_name=cfg.exp_name)
    if replays and settings.get('type', 'interaction') != 'interaction':
        return create_serial_evaluator(settings, env=env, policy=policy.eval_mode, **common)
    return GroupEvaluator(settings, env, policy.eval_mode, **common)
