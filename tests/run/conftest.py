import shutil

import pytest

from tests.run.configs import tokens
from tests.runs import train


def saving():
    """An evaluation after each fourth update, a checkpoint after each second."""
    main, create = tokens(dict(learner=dict(hook=dict(save_ckpt_after_iter=2))))
    main.policy.eval.evaluator.eval_freq = 4
    return main, create


@pytest.fixture(scope='session')
def finished(tmp_path_factory):
    """The folder of a run of ``saving`` with six updates and seed 3."""
    folder = tmp_path_factory.mktemp('finished')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(saving(), 6, seed=3)
    return str(folder / 'run')


@pytest.fixture
def stopped(finished, tmp_path, monkeypatch):
    """The configs that resume that run, in a copy of its folder."""
    shutil.copytree(finished, tmp_path / 'run')
    for events in (tmp_path / 'run/log/serial').glob('events*'):
        events.rename(events.with_stem(f'{events.stem}.before'))  # a run that begins in the same second has its name
    monkeypatch.chdir(tmp_path)
    main, create = saving()
    main.policy.learn.resume_training = True
    return main, create
