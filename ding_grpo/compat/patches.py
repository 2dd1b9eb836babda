"""Patches for DI-engine 0.5.3, each with the defect that it fixes."""
import copy
import errno
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import partial, wraps
from importlib import import_module
from multiprocessing import connection
from pprint import pformat
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union

import click
import ding.config.config
import ding.entry
import ding.entry.application_entry
import ding.entry.serial_entry
import ding.entry.serial_entry_onpolicy
import ding.envs
import ding.envs.env_manager.base_env_manager
import ding.worker.collector.interaction_serial_evaluator
import ding.worker.learner.learner_hook
import torch
from ding.envs import AsyncSubprocessEnvManager, SyncSubprocessEnvManager
from ding.policy import PPOPolicy
from ding.utils import POLICY_REGISTRY, read_file, registry, save_file
from ding.worker import create_serial_evaluator
from ditk.logging.file import LoggingFileHandler
from easydict import EasyDict

from ding_common import (
    CheckpointError, ConfigError, ConfigFile, TaskError, check_configs, check_links, ending_at_once, parallel,
    read_config_file, require_dict, unwrap_task_error
)
from ding_common.create_config import check_names
from ding_common.env_manager import LOG, closing_all, create_manager, while_alive
from ding_common.files import check_writable
from ding_common.versions import untested
from ding_grpo.config.check_keys import check_exp_name, check_main_config, check_sections
from ding_grpo.config.cross_checks import check_replay
from ding_grpo.data.plain import plain
from ding_grpo.evaluate import GroupEvaluator
from ding_grpo.learn.half_weights import check_trained
from ding_grpo.logs.screen import show
from ding_grpo.model import CausalLMVAC
from ding_grpo.policy import is_grpo
from ding_grpo.run.checkpoint import read_checkpoint, save_checkpoint
from ding_grpo.run.commander import RunCommander
from ding_grpo.run.interrupt import handlers_given_back

from . import drop_ins, private
from .private import running

_folders: Set[str] = set()  # of the run that is starting: where DI-engine saved its config


def apply() -> None:
    """Apply all patches. A second call has no effect."""
    # serial_onpolicy and eval always build InteractionSerialEvaluator, whatever create_config.evaluator says. It can
    # neither record the evaluated texts nor end in one line when a task fails. The subclass evaluates in the same way,
    # and prints one line instead of the full log.
    ding.entry.serial_entry_onpolicy.InteractionSerialEvaluator = GroupEvaluator
    ding.entry.application_entry.InteractionSerialEvaluator = GroupEvaluator
    # In serial mode, 'interaction' also means that evaluator.
    ding.entry.serial_entry.create_serial_evaluator = _create_evaluator
    # While rank 0 evaluates, the other processes wait in a torch.distributed call. Its error does not mention the
    # process that has exited, and it unpickles what arrives.
    ding.worker.collector.interaction_serial_evaluator.broadcast_object_list = _broadcast_object_list
    # The pipelines save a checkpoint between an update and its count, without the state of buffer, collector, evaluator
    # and random number generators. They crash at the end of a resumed run in which no evaluation was due. The subclass
    # fixes this for grpo only.
    for module in (ding.entry.serial_entry, ding.entry.serial_entry_onpolicy):
        module.BaseSerialCommander = RunCommander
    # Checkpoints of every policy are written in place, so that a kill leaves a partial file.
    ding.worker.learner.learner_hook.save_file = _save_file
    ding.worker.learner.learner_hook.read_file = _read_file
    # The command line fails with a traceback if the config is invalid or does not exist, and cannot find a shipped
    # config by its name.
    commands = import_module('ding.entry.cli')  # ding.entry.cli is the command
    commands.read_config = read_config_file
    for option in commands.cli.params:
        if option.name == 'config':
            option.type, option.callback = ConfigFile(), _needed
        option.required = option.required or option.name == 'mode'
    # Merging a config crashes on a section that is not a dict, and silently accepts unknown keys. This function is the
    # first that every pipeline, ``eval`` too, calls with the user's config. By then even ``ding`` has imported this
    # plugin.
    ding.config.config.compile_collector_config = _with_checked_config(ding.config.config.compile_collector_config)
    # Formatting total_config.py takes a second of every start, and the file cannot be imported if infinity ends a
    # section.
    ding.config.config.save_config_py = _save_config
    # ppo_param_init, on by default, reinitialises every linear layer, even of a pretrained model, and fails on layers
    # without bias. PPOPolicy also trains float16 weights, which its optimizer destroys.
    PPOPolicy._init_learn = _with_kept_weights(PPOPolicy._init_learn)
    # Registry.build prints a page of "Hint: expected args" before it raises any error, even a ConfigError.
    registry._innest_error = False
    # Managers of another pipeline, and environments without spaces, end in tracebacks.
    for module in (ding.entry.serial_entry, ding.entry.serial_entry_onpolicy, ding.entry.application_entry):
        module.create_env_manager = create_manager
    # Text logs are in the locale's encoding, which may lack a character.
    LoggingFileHandler.__init__.__defaults__ = ('a', 'utf-8', False)
    # Env managers log their spaces to the root logger, which has no file yet and clutters the screen.
    ding.envs.env_manager.base_env_manager.space_log_flag = False
    # They print an error that hides the environment's own message, and tracebacks of environment processes. The
    # exception that they raise contains both.
    for name in ('base', 'subprocess'):
        import_module(f'ding.envs.env_manager.{name}_env_manager').logging = LOG
    # Ctrl-C in a terminal and torchrun's SIGTERM go to the whole process group, and kill the environment processes
    # before the learner has saved.
    AsyncSubprocessEnvManager.worker_fn_robust = staticmethod(_apart(AsyncSubprocessEnvManager.worker_fn_robust))
    # An environment process that has been killed ends in tracebacks of its pipe, of a reset that is tried again, and
    # of closing the others.
    for manager in (AsyncSubprocessEnvManager, SyncSubprocessEnvManager):
        manager.step = while_alive(manager.step)
    AsyncSubprocessEnvManager.reset = while_alive(AsyncSubprocessEnvManager.reset)
    AsyncSubprocessEnvManager.close = closing_all(AsyncSubprocessEnvManager.close)
    # The pipelines read cfg.policy.learn and look up names before any check: a misspelt name ends in an AttributeError
    # or a KeyError. (The ``ding`` command imports this plugin only after that, so the defect remains there.) Each of
    # several processes would create its own run and folder, and DDPContext requires NCCL. A full disk ends in a
    # traceback.
    for module in (ding.entry, ding.entry.serial_entry_onpolicy):
        module.serial_pipeline_onpolicy = _guarded(module.serial_pipeline_onpolicy)
    for module in (ding.entry, ding.entry.serial_entry):
        module.serial_pipeline = _guarded(module.serial_pipeline)
    # ``eval`` does not check names either, reads a checkpoint with ``torch.load``, and leaves two folders behind; those
    # of other policies stay.
    for module in (ding.entry, ding.entry.application_entry):
        module.eval = _with_read_checkpoint(module.eval)
    # Modules of ding.rl_utils on DI-engine's GitHub main are missing in the release.
    drop_ins.add()


def _guarded(pipeline: Callable) -> Callable:
    if hasattr(pipeline, '__wrapped__'):
        return pipeline

    @wraps(pipeline)
    def serial_pipeline(input_cfg: Union[str, Tuple[dict, dict]], *args, **kwargs) -> Any:
        main_config, create_config = _checked(input_cfg)
        if 'exp_name' not in main_config:
            main_config.exp_name = 'default_experiment'  # as DI-engine does, later
        ends_well, existed = False, os.path.isdir(main_config.exp_name)
        _folders.clear()
        try:
            ours = is_grpo(create_config.policy.type)
            if ours:
                check_sections(main_config.policy, POLICY_REGISTRY.get(create_config.policy.type).default_config())
                main_config.policy.setdefault('learn', {})
                if existed and main_config.policy.learn.get('resume_training', False):
                    # the run writes into its files; wandb links to its own logs
                    check_links(main_config.exp_name, 'exp_name', to_folders=True, besides='wandb')
                _join_others(main_config)
            with _in_one_line(), handlers_given_back(), ending_at_once() if ours else nullcontext(), \
                    running(pipeline, (main_config, create_config), *args, **kwargs), RunCommander.last_save():
                policy = pipeline((main_config, create_config), *args, **kwargs)
            ends_well = True
            return policy
        except (ConfigError, TaskError):
            if not existed or main_config.exp_name not in _folders:
                _remove_untrained()
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

    return serial_pipeline


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Context of a pipeline: what a task or an environment raises becomes a ``TaskError`` without marks."""
    try:
        yield
    except TaskError as error:
        error.marked = False
        raise
    except Exception as error:
        unwrap_task_error(error)


def _join_others(main_config: Dict) -> None:
    """Join the processes that ``torchrun`` started."""
    if parallel.launched() > 1:
        check_exp_name(main_config.exp_name)
        parallel.check_launch(main_config.policy.get('multi_gpu', False))
        parallel.start(main_config.policy.get('cuda', False))
        main_config.exp_name = _agreed_folder(main_config)


def _checked(input_cfg: Union[str, Tuple[dict, dict]]) -> Tuple[dict, dict]:
    if isinstance(input_cfg, str):
        main_config, create_config = read_config_file(input_cfg)
    else:
        main_config, create_config = copy.deepcopy(input_cfg)
        check_configs(main_config, create_config)
    check_names(create_config)
    if getattr(POLICY_REGISTRY.get(create_config.policy.type), '_learns_from_groups', False):
        create_config.setdefault('collector', EasyDict(type='group'))
    return main_config, create_config


def _remove_untrained() -> None:
    """Remove the folder of a run that was refused, so that the next one gets its name."""
    for folder in filter(None, _folders):
        results = ('ckpt', 'log/evaluator/evaluations.jsonl', 'log/learner/metrics.jsonl')
        if not any(os.path.exists(os.path.join(folder, name)) for name in results):
            shutil.rmtree(folder, ignore_errors=True)


def _with_read_checkpoint(evaluate: Callable) -> Callable:
    if hasattr(evaluate, '__wrapped__'):
        return evaluate

    @wraps(evaluate)
    def eval(
            input_cfg: Union[str, Tuple[dict, dict]],
            seed: int = 0,
            env_setting: Optional[List] = None,
            model: Optional[torch.nn.Module] = None,
            state_dict: Optional[Dict] = None,
            load_path: Optional[str] = None,
            replay_path: Optional[str] = None,
    ) -> float:
        main_config, create_config = _checked(input_cfg)
        if state_dict is None:
            learn = main_config.policy.get('learn', {})
            require_dict(learn, 'policy.learn')
            learner = learn.get('learner', {})
            require_dict(learner, 'policy.learn.learner')
            path = load_path or learner.get('load_path')
            if path is None:
                raise ConfigError('--load-path: missing; name the checkpoint to evaluate.')
            state_dict = _read_file(path)
        arguments = seed, env_setting, model, state_dict, None, replay_path
        with _in_one_line():
            if not is_grpo(create_config.policy.type):
                return evaluate((main_config, create_config), *arguments)
            check_exp_name(main_config.get('exp_name', 'default_experiment'))
            with _without_a_folder(main_config):
                return evaluate((main_config, create_config), *arguments)

    return eval


@contextmanager
def _without_a_folder(main_config: Dict) -> Iterator[None]:
    """Context of an evaluation whose logs are removed at its end."""
    application = ding.entry.application_entry
    with tempfile.TemporaryDirectory() as folder:
        main_config.exp_name = os.path.relpath(os.path.join(folder, 'eval'))
        application.InteractionSerialEvaluator = partial(GroupEvaluator, exp_name=main_config.exp_name)
        try:
            yield
        finally:
            application.InteractionSerialEvaluator = GroupEvaluator


def _apart(worker: Callable) -> Callable:
    if hasattr(worker, '__wrapped__'):
        return worker

    @wraps(worker)
    def worker_fn_robust(*args, **kwargs) -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the manager terminates the process with it
        threading.Thread(target=_end_with_parent, daemon=True).start()
        with suppress(ConnectionError):  # the parent has ended
            worker(*args, **kwargs)

    return worker_fn_robust


def _end_with_parent() -> None:
    """Exit with the parent. A kill of its group misses this process; a hanging step does not see the closed pipe."""
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _agreed_folder(main_config: Dict) -> str:
    """The run folder of rank 0; for other processes a folder inside it, for their text logs."""
    name = main_config.exp_name
    if os.path.exists(name) and not main_config.policy.get('learn', {}).get('resume_training', False):
        name += time.strftime('_%y%m%d_%H%M%S')  # as DI-engine does
    name = parallel.broadcast_object(name)
    return name if parallel.rank() == 0 else os.path.join(name, 'log', f'process_{parallel.rank()}')


def _broadcast_object_list(objects: List[Any], src: int) -> None:
    objects[:] = parallel.broadcast_object(plain(objects))


def _create_evaluator(cfg: Dict, **kwargs: Any) -> Any:
    plain = cfg.get('type', 'interaction') == 'interaction'
    return GroupEvaluator(cfg, **kwargs) if plain else create_serial_evaluator(cfg, **kwargs)


def _save_config(config_: Dict, path: str) -> None:
    _folders.add(os.path.dirname(path))
    with open(path, 'w', encoding='utf-8') as f:
        f.write("inf, nan = float('inf'), float('nan')\n\n")
        f.write(f'exp_config = {pformat(config_, width=120, sort_dicts=False)}\n')


def _needed(context: click.Context, option: click.Parameter, config: Optional[str]) -> Optional[str]:
    if config is None and not (context.params.get('env') and context.params.get('policy')):
        raise ConfigError(
            "--config: missing; name a config file, a shipped config, or one of DI-engine's own by --env and --policy."
        )
    return config


def _save_file(path: str, data: Dict) -> None:
    save_file(path, data) if path.startswith('s3') else save_checkpoint(path, data)


def _read_file(path: str) -> Dict:
    return read_file(path) if path.startswith('s3') else read_checkpoint(path)


def _with_kept_weights(init_learn: Callable) -> Callable:
    if hasattr(init_learn, '__wrapped__'):
        return init_learn

    @wraps(init_learn)
    def _init_learn(self: PPOPolicy) -> None:
        if isinstance(self._model, CausalLMVAC):
            if self._cfg.learn.ppo_param_init:
                raise ConfigError(
                    'policy.learn.ppo_param_init = True: would reinitialise every layer of the language model. Set '
                    'ppo_param_init=False.'
                )
            check_trained(dict(self._model.named_parameters()))
        init_learn(self)

    return _init_learn


def _with_checked_config(compile_collector_config: Callable) -> Callable:
    if hasattr(compile_collector_config, '__wrapped__'):
        return compile_collector_config

    @wraps(compile_collector_config)
    def check_and_compile(policy_cfg: dict, user_cfg: dict, *args) -> dict:
        if is_grpo(policy_cfg.type):
            collector = policy_cfg.collect.collector
            if private.is_bare() and collector.type == 'sample':  # DI-engine's, if the config names none
                collector.type = 'group'
            check_main_config(user_cfg, policy_cfg, POLICY_REGISTRY.get(policy_cfg.type).default_config())
            for line in untested():
                show(line)
            if private.pipeline() == 'serial_pipeline':
                check_replay(user_cfg.policy, policy_cfg.other.replay_buffer.type)
        return compile_collector_config(policy_cfg, user_cfg, *args)

    return check_and_compile
