"""Updates of a run again, by the loop's own parts: from a checkpoint, or from its start, in a temporary folder."""
import copy
import io
import os
from contextlib import contextmanager, redirect_stdout
from tempfile import TemporaryDirectory
from typing import Any, Dict, Iterator, Optional

import torch

from ding_common import read_total_config
from ding_common.config.settings import set_key
from ding_grpo.engine.recorded import from_record
from ding_grpo.entry.pipeline import running
from ding_grpo.run.checkpoint import number_of, numbered
from ding_grpo.run.parts import Limits
from ding_grpo.run.saver import Saver
from ding_grpo.sharing.portable import config_of, replays

from .chain import Chain, read_chain

LOADED = 'policy.learn.learner.hook.load_ckpt_before_run'
# Of one process without an engine, whose updates are neither saved nor copied anywhere.
_ALONE = {
    'policy.multi_gpu': False,
    'policy.shard': False,
    'policy.run.num_updates': None,
    'policy.instruments.digests': True,
    'policy.instruments.digests_limit': 1e6,
    'policy.learn.learner.hook.report': dict(type='grpo_report', priority=90, position='before_run'),
}


def start_of(run: str, update: int) -> Optional[str]:
    """The last checkpoint of a run before an update, or that of another run from which it went on; None if its start
    is."""
    found = [path for path in numbered(os.path.join(run, 'ckpt')) if number_of(path) <= update]
    if found:
        return found[0]
    learn = read_total_config(run)['policy']['learn']
    return learn['learner']['hook']['load_ckpt_before_run'] or None if learn['resume_training'] else None


def again(
        run: str,
        start: Optional[str],
        last: int,
        threads: Optional[int] = None,
        settings: Optional[Dict[str, Any]] = None
) -> Chain:
    """The chain of updates, up to number ``last``, that are made again by the config of a run: from a checkpoint, also
    of another run, or from the start if it is None; with this number of threads (None: as many as now), and with other
    values of keys of the config."""
    saved = config_of(run)
    main_config, create_config = copy.deepcopy((saved.main_config, saved.create_config))
    settings = dict(settings or {})
    seed = settings.pop('seed', saved.seed)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, _threads(threads), redirect_stdout(io.StringIO()):
        places = {'exp_name': os.path.relpath(os.path.join(folder, 'run')), 'policy.learn.resume_training': False}
        if start is not None:
            places.update({'policy.learn.resume_training': True, LOADED: start})
        for key, value in {**settings, **_ALONE, **places}.items():
            set_key(main_config, create_config, key, value)
        from_record(main_config.policy, run)
        configs = main_config, create_config
        with running(configs, seed, None, None, Limits(), replays=replays(read_total_config(run))) as parts:
            Saver(parts).begin(catches=False)  # nothing is saved: Ctrl-C ends this at once
            if start is None:
                parts.fill_buffer()
            while parts.learner.train_iter <= last:
                for batch in parts.batches(parts.collect()):
                    parts.learner.train(batch, parts.collector.envstep)
        return read_chain(main_config.exp_name)


@contextmanager
def _threads(number: Optional[int]) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
