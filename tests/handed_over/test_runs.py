"""Folders of runs, and their checkpoints."""
import os
import pickle
import random
import zipfile
from functools import partial
from unittest import mock

import click
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict

from ding_grpo.replay.command import main as replay
from ding_grpo.report.command import main as report
from ding_grpo.run.checkpoint import prune, read_checkpoint
from dizoo_llm.tasks import ThinkAnswerTask
from tests.cases import long
from tests.handed_over.helper import Case, DEEP, check, code_ran, compress, lead_outside, name_of, of, pipe, write
from tests.shipped import small

pytestmark = [pytest.mark.envtest, pytest.mark.filterwarnings('ignore')]
CHECKPOINT = os.path.join('ckpt', 'iteration_2.pth.tar')
CONFIG, LOG = 'total_config.py', 'log/learner/metrics.jsonl'


def config(old, new):
    return of('run', lambda folder: write(CONFIG, (folder / CONFIG).read_text().replace(old, new))(folder))


def whole_config(text):
    return of('run', write(CONFIG, f'exp_config = {text}'))


def see(folder):
    report.main([str(folder)], standalone_mode=False)


def repeat(folder, *options):
    replay.main([str(folder / CHECKPOINT), *options], standalone_mode=False)


def go_on(folder):
    main, create = small('think_answer_grpo')
    main.exp_name, main.policy.learn.resume_training = os.path.relpath(folder), True
    serial_pipeline_onpolicy((main, create), max_train_iter=3)


importing = config("['ding_grpo']", "['ding_grpo', 'evil']")
python_task = config("'type': 'think_answer'", "'type': 'file', 'path': 'evil.py'")
calling, deep = whole_config('__import__("evil")'), whole_config(DEEP)
PLAIN, OUTSIDE = 'contains more than plain values', 'outside the folder'
RUNS = [
    Case('a report about a config that imports', importing, see, ''),
    Case('a replay of it', importing, repeat, "env.import_names = 'evil'"),
    Case('a replay of a task in a Python file', python_task, repeat, "env.task.path = 'evil.py'"),
    Case('a report about a config that calls', calling, see, ''),
    Case('a replay of it', calling, repeat, PLAIN),
    Case('a report about a deep config', deep, see, ''),
    Case('a replay of it', deep, repeat, PLAIN),
    Case('a replay of a config that is a number', whole_config('3'), repeat, PLAIN),
    Case('a report about a config of numbers', whole_config('{"env": 3, "policy": 4}'), see, ''),
    Case('a report about a huge number', whole_config(f'{{"env": 0x{"f" * 9999}}}'), see, ''),
    Case('a log that leads outside', of('run', lead_outside(LOG)), see, OUTSIDE),
    Case('a log that is a pipe', of('run', pipe(LOG)), see, 'is neither a file nor a folder'),
    Case('a config that is a pipe', of('run', pipe(CONFIG)), repeat, 'is not a file'),
    Case('a run that goes on', of('run'), go_on, ''),
    Case('a run whose log is outside', of('run', lead_outside(LOG)), go_on, OUTSIDE),
    Case('a run whose lock is outside', of('run', lead_outside('.lock')), go_on, OUTSIDE),
    Case('a run whose config is outside', of('run', lead_outside(CONFIG)), go_on, OUTSIDE),
]

# --------------------------------------------------------------------------------------------------------- checkpoints


def state(harm):
    """A run whose checkpoint has other content, or is what ``harm`` returns."""

    def apply(folder):
        state = torch.load(folder / CHECKPOINT, weights_only=True)
        changed = harm(state)
        torch.save(state if changed is None else changed, folder / CHECKPOINT)

    return of('run', apply)


def top(**values):
    return state(lambda s: s.update(values))


def run(**values):
    return state(lambda s: s['run'].update(values))


def rate(value):
    return state(lambda s: s['optimizer']['param_groups'][0].update(lr=value))


def moments(convert):
    return state(lambda s: s['optimizer']['state'][0].update(exp_avg=convert(s['optimizer']['state'][0]['exp_avg'])))


def shards(folder, name):
    return top(shards=dict(folder=folder, sums={name: 1}))


def overlap(folder):
    """An archive whose records are the same bytes."""
    with zipfile.ZipFile(folder / CHECKPOINT, 'w') as archive:
        archive.writestr('a/data/0', bytes(10_000))
        for i in range(1000):
            record = pickle.loads(pickle.dumps(archive.filelist[0]))
            record.filename = f'a/data/{i + 1}'
            archive.filelist.append(record)


def compress_checkpoint(folder):
    compress(folder / CHECKPOINT)


def resume(folder, **learn):
    main, create = small('think_answer_grpo')
    main.policy.learn.update(learn, resume_training=True)
    main.policy.learn.learner = EasyDict(hook=dict(load_ckpt_before_run=str(folder / CHECKPOINT)))
    serial_pipeline_onpolicy((main, create), max_train_iter=3)


def resume_with_a_kept_normal(folder):
    """``random.gauss`` draws two numbers and keeps one: here when the run starts again, not when it was saved."""

    def evaluation(task):
        random.setstate((*random.getstate()[:2], 0.5))
        return task

    with mock.patch.object(ThinkAnswerTask, 'evaluation', evaluation):
        resume(folder)


def integers(state):
    state['model'] = {name: weight.long() for name, weight in state['model'].items()}


def count_a_text(state):
    state['run']['collector']['episodes'] = 'x'


CONTENT = 'does not have the content of a run like this'
SHAPE = 'must be floating-point numbers with shape'
CHECKPOINTS = [
    Case('a checkpoint', of('run'), resume, ''),
    Case('a checkpoint, by a config with other types', of('run'), partial(resume, weight_decay=0), ''),
    Case('a checkpoint, to other random numbers', of('run'), resume_with_a_kept_normal, ''),
    Case('a compressed checkpoint', of('run', compress_checkpoint), resume, 'is compressed'),
    Case('records that overlap', of('run', overlap), resume, 'its records overlap'),
    Case('a checkpoint that is a pipe', of('run', pipe(CHECKPOINT)), resume, 'is not a file'),
    Case('a list', state(lambda s: [1]), resume, '[1], must be a dict'),
    Case('updates that are a text', top(last_iter='x'), resume, "last_iter = 'x', must be"),
    Case('updates below 0', top(last_iter=-5), resume, 'last_iter = -5, must be'),
    Case('steps that are a bool', top(last_step=True), resume, 'last_step = True, must be'),
    Case('learned updates of a text', top(updates='x'), resume, "updates = 'x', must be"),
    Case('weights of integers', state(integers), resume, 'torch.int64, must be torch.float32'),
    Case('no groups of weights', state(lambda s: s['optimizer'].update(param_groups=[])), resume, CONTENT),
    Case('a rate of a text', rate('x'), resume, "param_groups.0.lr = 'x', must be a number"),
    Case('a rate of 400 digits', rate(10 ** 400), resume, 'param_groups.0.lr = 1000'),
    Case('moments of another shape', moments(lambda t: t[:1]), resume, SHAPE),
    Case('moments of integers', moments(torch.Tensor.long), resume, SHAPE),
    Case('no moments', moments(lambda t: None), resume, CONTENT),
    Case('a collector that lacks its counters', run(collector={}), resume, CONTENT),
    Case('a counter of a text', state(count_a_text), resume, "collector.episodes = 'x', must be"),
    Case('random numbers of a text', run(random='x'), resume, CONTENT),
    Case('the same, for a replay', run(random='x'), repeat, CONTENT),
    Case('no sizes of logs', state(lambda s: s['run'].__delitem__('logs')), resume, CONTENT),
    Case('no seed', state(lambda s: s['run'].__delitem__('seed')), resume, 'has seed None'),
    Case('shards that are a number', top(shards=5), resume, 'shards = 5, must be a dict'),
    Case('shards without a name', top(shards={}), resume, CONTENT),
    Case('shards outside', shards('a.shards', '../../outside/secret.jsonl'), resume, 'are not the names of a folder'),
    Case('shards in no folder', shards('..', 'secret.jsonl'), resume, 'are not the names of a folder'),
]
# Of the kind of another case: of the long checks.
ALIKE = (
    'a report about a huge number', 'a report about a config of numbers', 'a run whose lock is outside',
    'updates below 0', 'steps that are a bool', 'learned updates of a text', 'no groups of weights',
    'a rate of 400 digits', 'moments of integers', 'a counter of a text', 'no sizes of logs', 'no seed',
    'shards without a name', 'shards in no folder'
)


@pytest.mark.parametrize('case', [long(c) if c.name in ALIKE else c for c in RUNS + CHECKPOINTS], ids=name_of)
def test_what_is_handed_over(case, handed):
    check(case, handed)


def test_a_folder_with_a_compressed_checkpoint_is_not_pruned(handed):
    """Its folders of shards are kept, as if it could not be read."""
    of('run', compress_checkpoint)(handed)
    (handed / 'ckpt' / 'a.shards').mkdir()
    prune(str(handed / 'ckpt'), 9)
    assert (handed / 'ckpt' / 'a.shards').is_dir()


def test_trust_runs_what_a_replay_names(handed):
    """So that the other tests can fail."""
    importing(handed)
    with pytest.raises(click.ClickException, match='--trust'):
        repeat(handed)
    repeat(handed, '--trust')
    assert code_ran(handed)


def test_a_checkpoint_of_another_policy_is_read(tmp_path):
    torch.save(dict(model=dict(a=torch.zeros(2)), last_iter=3, last_step=5), tmp_path / 'a.pth.tar')
    assert read_checkpoint(str(tmp_path / 'a.pth.tar'))['last_iter'] == 3
