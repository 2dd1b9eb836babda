import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict

from ding_common.hub.language_model import build_causal_lm
from ding_grpo.model import CausalLM
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.handed_over.helper import CODE, SECRET
from tests.shipped import small

LIMIT = 300  # seconds until a test that hangs fails


@pytest.fixture(scope='session')
def good(tmp_path_factory):
    """What a case begins with, each in a folder: ``run``, ``model``, ``parts`` (the model in several files) and
    ``adapters`` of the model."""
    folder = tmp_path_factory.mktemp('good')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main, create = small('think_answer_grpo')
        main.policy.learn.learner = EasyDict(hook=dict(save_ckpt_after_iter=1))
        serial_pipeline_onpolicy((main, create), max_train_iter=2)
        for path in Path('run/ckpt').iterdir():
            if path.name != 'iteration_2.pth.tar':
                path.unlink()
        torch.manual_seed(0)
        tokenizer = build_word_tokenizer(['a', 'b'])
        CausalLM(config=dict(main.policy.model.config)).save_pretrained('model', tokenizer)
        build_causal_lm('model', None, None, None, 'key').save_pretrained('parts', max_shard_size='40KB')
        lora = CausalLM(pretrained='model', lora=dict(r=2, target_modules=['q_proj']))
        lora.save_pretrained('adapters', tokenizer)
    return folder


@pytest.fixture
def handed(good, tmp_path, monkeypatch):
    """An empty folder for the input. Beside it are the current folder, from which modules can be imported, ``outside``,
    which nobody may read, and ``good``."""
    for name in ('mine', 'handed', 'outside'):
        (tmp_path / name).mkdir()
    (tmp_path / 'good').symlink_to(good)
    (tmp_path / 'mine' / 'base').symlink_to(good / 'model')
    (tmp_path / 'mine' / 'evil.py').write_text(CODE.format(path=str(tmp_path / 'CODE_RAN')))
    (tmp_path / 'outside' / 'secret.jsonl').write_text(SECRET)
    shutil.copy(good / 'model' / 'model.safetensors', tmp_path / 'outside')
    monkeypatch.chdir(tmp_path / 'mine')
    monkeypatch.syspath_prepend(str(tmp_path / 'mine'))

    def too_late(*_):
        raise AssertionError('hangs')

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LIMIT)
    yield tmp_path / 'handed'
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    sys.modules.pop('evil', None)
