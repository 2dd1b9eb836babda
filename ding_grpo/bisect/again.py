"""Updates of a run again, by the loop's own parts: from a checkpoint, or from its start, in a temporary folder."""
import copy
import io
import os
from contextlib import contextmanager, redirect_stdout
from tempfile import TemporaryDirectory
from typing import Any, Dict, Iterator, List, Optional

import torch
from ding.utils import import_module
from easydict import EasyDict

from ding_common import read_total_config
from ding_grpo.data.capability import check_grpo
from ding_grpo.engine.recorded import from_record
from ding_grpo.entry.pipeline import running
from ding_grpo.run.checkpoint import number_of, numbered
from ding_grpo.run.parts import Limits
from ding_grpo.run.saver import Saver
from ding_grpo.sharing.portable import config_of, replays

from .chain import Chain, read_chain


def start_of(run: str, update: int) -> Optional[str]:
    """The last checkpoint of a run before an update, or that of another run from which it went on; None if its start
    is."""
    found = [path for path in numbered(os.path.join(run, 'ckpt')) if number_of(path) <= update]
    if found:
        return found[0]
    learn = read_total_config(run)['policy'].get('learn', {})
    before = learn.get('learner', {}).get('hook', {}).get('load_ckpt_before_run')
    return before if learn.get('resume_training') and before else None


def again(
        run: str,
        start: Optional[str],
        last: int,
        threads: Optional[int] = None,
        settings: Optional[Dict[str, Any]] = None
) -> Chain:
    """
    Overview:
        The chain of updates that are made again.
    Arguments:
        - run (:obj:`str`): The folder of the run whose config is used.
        - start (:obj:`Optional[str]`): The checkpoint from which they are made, also of another run; None: the start.
        - last (:obj:`int`): Number of the last update.
        - threads (:obj:`Optional[int]`): Number of threads; None: as many as now.
        - settings (:obj:`Optional[Dict[str, Any]]`): Other values of keys of the config.
    """
    total = read_total_config(run)
    import_module(total['policy'].get('import_names', []))
    check_grpo(run, total['policy']['type'])
    saved, settings = config_of(run), dict(settings or {})
    seed = settings.pop('seed', saved.seed)
    main_config = _prepared(copy.deepcopy(saved.main_config), run, start, settings)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, _threads(threads), redirect_stdout(io.StringIO()):
        main_config.exp_name = os.path.relpath(os.path.join(folder, 'run'))
        configs = main_config, saved.create_config
        with running(configs, seed, None, None, Limits(), replays=replays(total)) as parts:
            Saver(parts).begin(catches=False)  # nothing is saved: Ctrl-C ends this at once
            if start is None:
                parts.fill_buffer()
            while parts.learner.train_iter <= last:
                for batch in parts.batches(parts.collect()):
                    parts.learner.train(batch, parts.collector.envstep)
        return read_chain(main_config.exp_name)


def _prepared(main_config: EasyDict, run: str, start: Optional[str], settings: Dict[str, Any]) -> EasyDict:
    """A config for updates by one process without an engine, which are neither saved nor copied anywhere."""
    for key, value in settings.items():
        _set(main_config, key, value)
    policy = main_config.policy
    policy.update(multi_gpu=False, shard=False)
    _set(policy, 'run.num_updates', None)
    _set(policy, 'instruments.digests', True)
    _set(policy, 'instruments.digests_limit', 1e6)
    _set(policy, 'learn.resume_training', start is not None)
    from_record(policy, run)
    _set(policy, 'learn.learner.hook.report', dict(type='grpo_report', priority=90, position='before_run'))
    if start is not None:
        _set(policy, 'learn.learner.hook.load_ckpt_before_run', start)
    return main_config


def _set(config: EasyDict, key: str, value: Any) -> None:
    *path, name = key.split('.')
    for section in path:
        config = config.setdefault(section, EasyDict())
    config[name] = value


@contextmanager
def _threads(number: Optional[int]) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def by_start(run: str, updates: List[int]) -> Dict[Optional[str], List[int]]:
    """Updates of a run by the checkpoints from which they are made again."""
    found: Dict[Optional[str], List[int]] = {}
    for update in sorted(set(updates)):
        found.setdefault(start_of(run, update), []).append(update)
    return found
