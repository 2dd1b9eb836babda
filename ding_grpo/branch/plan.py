"""Where branches begin, what each of them changes, and where its files are."""
import copy
import json
import os
import shutil
import zipfile
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from easydict import EasyDict

from ding_common import ConfigError, read_json_lines
from ding_common.config.settings import change, parsed, set_key, sweep
from ding_grpo.run.checkpoint import number_of, numbered
from ding_grpo.sharing.config_file import Saved

OWN = 'own'  # name of the branch with the setting of the run
NEVER = 1e10  # a return that no evaluation reaches, as DI-engine's default
IDENTITY = 'branch.json'
# Keys that the command sets: the folder, the end and the beginning of a branch.
_SET = {
    'exp_name': '--out names the folder',
    'env.stop_value': 'branches are compared after equally many updates',
    'policy.run.num_updates': '--updates is the number of updates',
    'policy.learn.resume_training': 'a branch resumes from the checkpoint of --at',
    'policy.learn.learner.hook.load_ckpt_before_run': 'a branch resumes from the checkpoint of --at',
}


class Start(NamedTuple):
    """The checkpoint from which all branches of a run go on, and the update at which they end."""
    checkpoint: str
    update: int
    end: int


class Branch(NamedTuple):
    """A run that goes on from a checkpoint with other settings."""
    name: str
    settings: List[str]
    folder: str

    def configs(self, saved: Saved, start: Start) -> Tuple[EasyDict, EasyDict]:
        """Those of the run in ``self.folder``."""
        main, create = copy.deepcopy((saved.main_config, saved.create_config))
        change(main, create, self.settings)
        places = {
            'exp_name': self.folder,
            'env.stop_value': NEVER,
            'policy.run.num_updates': start.end,
            'policy.learn.resume_training': True,
            'policy.learn.learner.hook.load_ckpt_before_run': start.checkpoint,
        }
        for key, value in places.items():
            set_key(main, create, key, value)
        return main, create

    def done(self, start: Start) -> bool:
        """Whether it has been evaluated after its last update."""
        records = read_json_lines(os.path.join(self.folder, 'log', 'evaluator', 'evaluations.jsonl'))
        ended = os.path.exists(os.path.join(self.folder, 'result.pkl'))
        return ended and bool(records) and records[-1]['train_iter'] >= start.end

    def begin(self, saved: Saved, start: Start) -> None:
        """Make its folder, or check that the one that exists is of this branch. Files of one without a checkpoint are
        deleted, because it begins again."""
        path, own = os.path.join(self.folder, IDENTITY), self._identity(saved, start)
        if os.path.exists(self.folder):
            before = None
            if os.path.exists(path):
                with open(path, encoding='utf-8') as f:
                    before = json.load(f)
            if before != own:
                raise ConfigError(
                    f'{self.folder}: is not of this branch, but of another checkpoint, config or run. Delete it, or '
                    'choose another --out.'
                )
            if numbered(os.path.join(self.folder, 'ckpt')):
                return
            shutil.rmtree(self.folder)
        os.makedirs(self.folder)
        with open(path, 'w', encoding='utf-8') as f:
            json.dump(own, f)

    def _identity(self, saved: Saved, start: Start) -> Dict[str, Any]:
        """What determines a branch, but for its end: checksums of the checkpoint, the config of its run, settings."""
        with zipfile.ZipFile(start.checkpoint) as archive:
            sums = [[entry.filename.partition('/')[2], entry.CRC] for entry in archive.infolist()]
        main = {key: value for key, value in saved.main_config.items() if key != 'exp_name'}
        config = repr((main, saved.create_config, saved.seed))
        return dict(checkpoint=sorted(sums), config=config, settings=self.settings)


def start_of(run: str, at: Optional[int], updates: int) -> Start:
    """The newest checkpoint of a run of at most ``at`` updates; None for the newest of all."""
    found = {number_of(path): path for path in reversed(numbered(os.path.join(run, 'ckpt')))}
    if not found:
        raise ConfigError(
            f'RUN = {run!r}: has no checkpoint of a number of updates in ckpt/. Set '
            'policy.learn.learner.hook.save_ckpt_after_iter for the run, and policy.run.keep_ckpt to keep more of them.'
        )
    fitting = [number for number in found if at is None or number <= at]
    if not fitting:
        raise ConfigError(f'--at {at}: the run has no checkpoint of at most {at} updates, only of {listed(found)}.')
    return Start(found[fitting[-1]], fitting[-1], fitting[-1] + updates)


def listed(numbers: Sequence[int]) -> str:
    return ', '.join(map(str, numbers))


def branches_of(settings: Sequence[str], out: str, own: bool) -> List[Branch]:
    """
    One branch for each combination of values, ``KEY=VALUE,VALUE``. The setting of the run is the first if ``own``, or
    if there would be only one.
    """
    keys = [parsed(setting)[0] for setting in settings]
    for key, setting in zip(keys, settings):
        _check_key(key, setting)
        if keys.count(key) > 1:
            raise ConfigError(f'{setting}: the key is given twice. Give its values in one word, {key}=VALUE,VALUE.')
    found = [Branch(name or _name(chosen), chosen, '') for chosen, name in sweep(settings)]
    if own or len(found) == 1:
        found.insert(0, Branch(OWN, [], ''))
    found = [branch._replace(folder=os.path.join(out, branch.name.replace(os.sep, '_'))) for branch in found]
    folders = [branch.folder for branch in found]
    for branch in found:
        if folders.count(branch.folder) > 1:
            raise ConfigError(f'{branch.name}: the value is given twice.')
    return found


def _name(settings: List[str]) -> str:
    """Of the only branch with settings: the last part of each key, and its value."""
    return ' '.join(
        setting.partition('=')[0].rpartition('.')[2] + '=' + setting.partition('=')[2] for setting in settings
    )


def _check_key(key: str, setting: str) -> None:
    if key in _SET:
        raise ConfigError(f'{setting}: cannot be changed in a branch, because {_SET[key]}.')
    if key.partition('.')[0] == 'create_config':
        raise ConfigError(
            f'{setting}: cannot be changed in a branch, which has the parts of its run. Allowed are keys of policy and '
            'env.'
        )
