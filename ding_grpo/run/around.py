"""What is different in DI-engine 0.5.3 while this package builds and runs a run, each with its reason."""
from contextlib import contextmanager
from pprint import pformat
from typing import Any, Callable, Dict, Iterator, List

import ding.config.config
import ding.envs.env_manager.base_env_manager
from ding.utils import read_file, registry, save_file
from ding.worker.collector import interaction_serial_evaluator
from ding.worker.learner import learner_hook
from ditk.logging.file import LoggingFileHandler

from ding_common import parallel
from ding_common.config.total_config import as_literals
from ding_common.quiet import show_any_text
from ding_grpo.data.plain import plain

from .checkpoint import read_checkpoint, save_checkpoint


@contextmanager
def replaced(owner: Any, **names: Any) -> Iterator[None]:
    """Context in which attributes of a module or a class have other values."""
    before = {name: getattr(owner, name) for name in names}
    for name, value in names.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def around_run() -> Iterator[None]:
    """Context in which a run is built and runs. What it changes computes the same."""
    show_any_text()  # what a run prints contains text of models and data
    # Text logs are in the locale's encoding, which may lack a character.
    # Registry.build prints a page of "Hint: expected args" before it raises any error, even a ConfigError. Env managers
    # log their spaces to the root logger, which has no file yet and clutters the screen.
    # While rank 0 evaluates, the other processes wait in a torch.distributed call. Its error does not mention the
    # process that has exited, and it unpickles what arrives. Checkpoints of every policy are written in place, so that
    # a kill leaves a partial file, and are read as pickles.
    with replaced(LoggingFileHandler.__init__, __defaults__=('a', 'utf-8', False)), \
            replaced(registry, _innest_error=False), \
            replaced(ding.envs.env_manager.base_env_manager, space_log_flag=False), \
            replaced(interaction_serial_evaluator, broadcast_object_list=broadcast_object_list), \
            replaced(learner_hook, save_file=_save_file, read_file=read_state):
        yield


@contextmanager
def checked_while_compiled(check: Callable[[Dict, Dict], None]) -> Iterator[None]:
    """Context of DI-engine's ``compile_config``, which crashes on a section that is not a dict, and silently accepts
    unknown keys. The first function that it calls with the user's config, ``compile_collector_config``, calls ``check``
    with the user's config and the policy's defaults. The compiled config is written in a form that can be imported,
    also with infinity, and without a second of formatting."""
    compile_collector = ding.config.config.compile_collector_config

    def check_and_compile(policy_cfg: Dict, user_cfg: Dict, *args) -> Dict:
        check(user_cfg, policy_cfg)
        return compile_collector(policy_cfg, user_cfg, *args)

    with replaced(ding.config.config, compile_collector_config=check_and_compile, save_config_py=save_config):
        yield


def save_config(config: Dict, path: str) -> None:
    with open(path, 'w', encoding='utf-8') as f:
        f.write("inf, nan = float('inf'), float('nan')\n\n")
        f.write(f'exp_config = {pformat(as_literals(plain(config)), width=120, sort_dicts=False)}\n')


def broadcast_object_list(objects: List[Any], src: int) -> None:
    objects[:] = parallel.broadcast_object(plain(objects))


def _save_file(path: str, data: Dict) -> None:
    save_file(path, data) if path.startswith('s3') else save_checkpoint(path, data)


def read_state(path: str) -> Dict:
    """A checkpoint of any policy, without running code that it contains."""
    return read_file(path) if path.startswith('s3') else read_checkpoint(path)
