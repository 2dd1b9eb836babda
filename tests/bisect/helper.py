"""Small runs with a chain of digests, and what a command says of them."""
import json
import os
import shutil
from functools import reduce
from operator import getitem

import torch
from click.testing import CliRunner
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict

from ding_grpo.bisect.command import main as bisect  # noqa: F401
from ding_grpo.verify import main as verify  # noqa: F401
from tests.shipped import small

LINES = 'log/learner/digests.jsonl'
# A program for processes of their own
RUN = '''
import sys, torch
torch.set_num_threads({threads})
from ding_grpo.entry.pipeline import serial_pipeline_onpolicy
from tests.bisect.helper import configs
main, create = configs()
main.policy.model.config.update(hidden_size=256, intermediate_size=512)
main.policy.group_size, main.env.collector_env_num = 16, 32
main.exp_name, main.policy.multi_gpu = {name!r}, {several}
serial_pipeline_onpolicy((main, create), seed=3, max_train_iter=3)
'''


def configs(name='think_answer_grpo', **changes):
    """Of a run that saves after every second update."""
    main, create = small(name, **changes)
    learn = main.policy.setdefault('learn', EasyDict())
    learn.update(learning_rate=1e-3, learner=dict(hook=dict(save_ckpt_after_iter=2)))
    main.policy.run = dict(keep_ckpt=9)
    return main, create


def train(folder, made=None, updates=4, seed=3, **learn):
    made = made or configs()
    made[0].exp_name = folder
    made[0].policy.learn.update(learn)
    serial_pipeline_onpolicy(made, seed=seed, max_train_iter=updates)
    return folder


def asked(command, *words):
    """The exit status, and what a command prints."""
    found = CliRunner().invoke(command, list(map(str, words)))
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exc_info
    return found.exit_code, found.output


def parts(a, b, *words):
    """What ``bisect`` says of two runs that differ; without making updates again."""
    status, out = asked(bisect, a, b, '--no-again', *words)
    assert status == 1, out
    return out


def first_of(out):
    """The line of the first difference."""
    return out.split('First difference:\n')[1].splitlines()[0].strip()


def lines(run):
    with open(os.path.join(run, LINES), encoding='utf-8') as f:
        return [json.loads(line) for line in f]


def rewrite(run, found, copied=None):
    if copied is not None:
        shutil.copytree(copied, run)
    with open(os.path.join(run, LINES), 'w', encoding='utf-8') as f:
        f.writelines(json.dumps(line) + '\n' for line in found)


def flip(path, *place):
    """Change the last bit of one number of a tensor of a checkpoint, whose checksums are right again."""
    state = torch.load(path, weights_only=True)
    reduce(getitem, place, state).view(torch.int32).flatten()[3] ^= 1
    torch.save(state, path)


def replaced(path, text, by):
    """Replace a text of a file."""
    with open(path, encoding='utf-8') as f:
        before = f.read()
    assert text in before
    with open(path, 'w', encoding='utf-8') as f:
        f.write(before.replace(text, by))


def stopped_after(run, copy, update):
    """A copy of a finished run as it is after a kill: with its checkpoint of an update, and lines of all updates."""
    shutil.copytree(run, copy)
    for name in os.listdir(os.path.join(copy, 'ckpt')):
        if name != f'iteration_{update}.pth.tar':
            os.remove(os.path.join(copy, 'ckpt', name))
    os.remove(os.path.join(copy, 'result.pkl'))
