"""The ways in: DI-engine's serial pipelines and its evaluation, with the same arguments and for every policy."""
import copy
import errno
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, nullcontext
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import click
import numpy as np
import torch
from ding.envs import get_vec_env_setting
from ding.policy import create_policy
from ding.utils import POLICY_REGISTRY, set_pkg_seed
from easydict import EasyDict

from ding_common import (
    CheckpointError, ConfigError, TaskError, check_links, ending_at_once, environment_errors, parallel,
    read_config_file, require_dict
)
from ding_common.files import check_writable
from ding_common.processes.ding_private import reset_although_recording
from ding_grpo.config.check_keys import check_exp_name, check_sections
from ding_grpo.evaluate import GroupEvaluator
from ding_grpo.loop import run
from ding_grpo.data.capability import is_grpo
from ding_grpo.run.around import around_run, read_state
from ding_grpo.run.parts import Limits, Parts

from .build import Configs, build, compiled, environments
from .complete import complete

InputConfig = Union[str, Tuple[dict, dict]]
TRAINED = ('ckpt', 'log/evaluator/evaluations.jsonl', 'log/learner/metrics.jsonl')


def serial_pipeline_onpolicy(
        input_cfg: InputConfig,
        seed: int = 0,
        env_setting: Optional[List[Any]] = None,
        model: Optional[torch.nn.Module] = None,
        max_train_iter: Optional[int] = int(1e10),
        max_env_step: Optional[int] = int(1e10),
) -> Any:
    """
    Overview:
        Learn from what the current weights collect (``ding -m serial_onpolicy``).
    Arguments:
        - input_cfg (:obj:`Union[str, Tuple[dict, dict]]`): Path of a config file, or main_config and create_config, \
            dicts or EasyDicts, which are not changed.
        - seed (:obj:`int`): Of the run.
        - env_setting (:obj:`Optional[List]`): Class of the environments, and configs of those to collect in and to \
            evaluate in.
        - model (:obj:`Optional[nn.Module]`): None builds the one of the config.
        - max_train_iter (:obj:`Optional[int]`): Number of updates; of DI-engine's own policies, of mini-batches.
        - max_env_step (:obj:`Optional[int]`): Number of environment steps.
    Returns:
        - policy (:obj:`Policy`): The trained policy.
    """
    return _run(input_cfg, seed, env_setting, model, Limits(max_train_iter, max_env_step))


def serial_pipeline(
        input_cfg: InputConfig,
        seed: int = 0,
        env_setting: Optional[List[Any]] = None,
        model: Optional[torch.nn.Module] = None,
        max_train_iter: Optional[int] = int(1e10),
        max_env_step: Optional[int] = int(1e10),
        dynamic_seed: Optional[bool] = True,
) -> Any:
    """Learn from a replay buffer (``ding -m serial``); otherwise as ``serial_pipeline_onpolicy``."""
    limits = Limits(max_train_iter, max_env_step)
    return _run(input_cfg, seed, env_setting, model, limits, replays=True, dynamic_seed=dynamic_seed)


def _run(*args: Any, **kwargs: Any) -> Any:
    with running(*args, **kwargs) as parts:
        run(parts)
    return parts.policy


@contextmanager
def running(input_cfg: InputConfig, seed: int, env_setting: Any, model: Any, limits: Limits,
            **kwargs: Any) -> Iterator[Parts]:
    """Context of a run, with its parts, which it builds and closes. Arguments are those of the pipelines."""
    configs = checked(input_cfg)
    main_config, create_config = configs
    ours, ends_well, made = is_grpo(create_config.policy.type), False, None
    try:
        if ours:
            _check_before(main_config, create_config)
        made = _choose_folder(main_config)
        with environment_errors(), around_run(), ending_at_once() if ours else nullcontext():
            parts = build(configs, seed, env_setting, model, limits, **kwargs)
            try:
                yield parts
            finally:
                parts.close()
        ends_well = True
    except (ConfigError, TaskError):
        if made is not None and not any(os.path.exists(os.path.join(made, name)) for name in TRAINED):
            shutil.rmtree(made, ignore_errors=True)  # so that the next run gets its name
        raise
    except OSError as error:
        check_writable(main_config.exp_name, error)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise CheckpointError(
            f'{error.strerror}: {error.filename or main_config.exp_name} could not be written. Free some space, '
            'and resume from the last checkpoint with policy.learn.resume_training=True'
        ) from error
    finally:
        parallel.end(failed=not ends_well)


def checked(input_cfg: InputConfig) -> Configs:
    """main_config and create_config of a file, or copies of both, complete and with registered names."""
    if isinstance(input_cfg, str):
        main_config, create_config = read_config_file(input_cfg)
    else:
        main_config, create_config = (EasyDict(c) if isinstance(c, dict) else c for c in copy.deepcopy(input_cfg))
    with environment_errors():
        complete(main_config, create_config)
    return main_config, create_config


def _check_before(main_config: EasyDict, create_config: EasyDict) -> None:
    """Check what is read before the whole config is, and join the processes that ``torchrun`` started."""
    check_sections(main_config.policy, POLICY_REGISTRY.get(create_config.policy.type).default_config())
    check_exp_name(main_config.setdefault('exp_name', 'default_experiment'))
    learn = main_config.policy.setdefault('learn', EasyDict())
    if os.path.isdir(main_config.exp_name) and learn.get('resume_training', False):
        # the run writes into its files; wandb links to its own logs
        check_links(main_config.exp_name, 'exp_name', to_folders=True, besides='wandb')
    if parallel.launched() > 1:
        if not main_config.policy.get('multi_gpu', False):
            raise ConfigError(  # each would repeat the same run
                f'policy.multi_gpu = False: torchrun started {parallel.launched()} processes; must be True for them to '
                'share one run.'
            )
        parallel.start(main_config.policy.get('cuda', False))


def _choose_folder(main_config: EasyDict) -> Optional[str]:
    """Name the run's folder as DI-engine does, and return it if it does not exist: one that exists gets the time as an
    ending, unless the run resumes. Processes after the first have a folder in it for their text logs."""
    name = main_config.setdefault('exp_name', 'default_experiment')
    resumes = main_config.policy.get('learn', {}).get('resume_training', False)
    if os.path.exists(name) and not resumes:
        name += time.strftime('_%y%m%d_%H%M%S')
    name = parallel.broadcast_object(name)
    main_config.exp_name = name if parallel.rank() == 0 else os.path.join(name, 'log', f'process_{parallel.rank()}')
    return None if os.path.exists(name) else name


def eval(
        input_cfg: InputConfig,
        seed: int = 0,
        env_setting: Optional[List] = None,
        model: Optional[torch.nn.Module] = None,
        state_dict: Optional[Dict] = None,
        load_path: Optional[str] = None,
        replay_path: Optional[str] = None,
) -> float:
    """
    Overview:
        Evaluate a checkpoint (``ding -m eval``).
    Arguments:
        - input_cfg, seed, env_setting, model: See ``serial_pipeline_onpolicy``.
        - state_dict (:obj:`Optional[Dict]`): The checkpoint.
        - load_path (:obj:`Optional[str]`): Its path, if there is no ``state_dict``.
        - replay_path (:obj:`Optional[str]`): Folder for videos, of environments that make some.
    Returns:
        - episode_return (:obj:`float`): Mean over the episodes.
    """
    info, _ = evaluated(input_cfg, seed, env_setting, model, state_dict, load_path, replay_path)
    value = np.mean(info['eval_episode_return'])
    click.echo(f'Eval is over! The performance of your RL policy is {value}')
    return value


def evaluated(
        input_cfg: InputConfig,
        seed: int = 0,
        env_setting: Optional[List] = None,
        model: Optional[torch.nn.Module] = None,
        state_dict: Optional[Dict] = None,
        load_path: Optional[str] = None,
        replay_path: Optional[str] = None,
) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """As ``eval``: what DI-engine's evaluator returns, with each episode's return, and the record of the evaluation."""
    main_config, create_config = checked(input_cfg)
    state_dict = state_dict if state_dict is not None else read_state(_path_of(main_config, load_path))
    ours = is_grpo(create_config.policy.type)
    if ours:
        check_exp_name(main_config.setdefault('exp_name', 'default_experiment'))
    with environment_errors(), around_run(), _folder(main_config, ours):
        cfg = compiled(
            (main_config, create_config),
            seed,
            env=env_setting and env_setting[0],
            save_cfg=not ours,
            **({} if ours else dict(save_path='eval_config.py'))
        )
        env, _, env_cfgs = env_setting or get_vec_env_setting(cfg.env, collect=False)
        manager = environments(cfg, env, env_cfgs)
        manager.seed(seed, dynamic_seed=False)
        replay_path = replay_path or cfg.env.get('replay_path', None)
        if replay_path:
            manager.enable_save_replay(replay_path)
        set_pkg_seed(seed, use_cuda=cfg.policy.cuda)
        policy = create_policy(cfg.policy, model=model, enable_field=['eval'], **(dict(seed=seed) if ours else {}))
        policy.eval_mode.load_state_dict(state_dict)
        name = dict(exp_name=cfg.exp_name) if ours else {}
        evaluator = GroupEvaluator(cfg.policy.eval.evaluator, manager, policy.eval_mode, **name)
        reset_although_recording(manager)
        _, info = evaluator.eval()
        if ours:
            policy.close()
    return info, evaluator.record


def _path_of(main_config: EasyDict, load_path: Optional[str]) -> str:
    learn = main_config.policy.get('learn', {})
    require_dict(learn, 'policy.learn')
    learner = learn.get('learner', {})
    require_dict(learner, 'policy.learn.learner')
    path = load_path or learner.get('load_path')
    if path is None:
        raise ConfigError('--load-path: missing; name the checkpoint to evaluate.')
    return path


@contextmanager
def _folder(main_config: EasyDict, ours: bool) -> Iterator[None]:
    """Context of an evaluation, whose logs are removed at its end; those of other policies stay."""
    if not ours:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        main_config.exp_name = os.path.relpath(os.path.join(folder, 'eval'))
        yield
