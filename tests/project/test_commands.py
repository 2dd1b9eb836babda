"""
Every command of the README and the pages is understood: its program has the options, its configs and other files
exist, and the keys that it sets are known. Warm starts from the shipped configs, which no other test makes, are also
executed, small.
"""
import importlib
import os
import re
import shlex
from importlib.util import find_spec

import pytest
from ding.entry import serial_pipeline_onpolicy

from benchmarks.programs import programs
from ding_common.config.config_file import read_main_config
from ding_grpo.__main__ import command as ding
from ding_grpo.check import main as check
from ding_grpo.entry.build import compiled
from ding_grpo.entry.describe import describe
from ding_grpo.entry.pipeline import checked
from ding_grpo.train import train
from dizoo_llm import sft, train_reward_model
from tests.cases import long
from tests.project.documents import GENERATED, PAGES, ROOT, commands_of, read
from tests.shipped import load, path_of, small

DOCUMENTS = [page for page in PAGES if page != 'CHANGELOG.md' and not page.startswith(GENERATED)]
COMMANDS = list(dict.fromkeys(command for page in DOCUMENTS for command in commands_of(page)))
# Words of a command's form, and what they are here.
WORDS = dict(
    NAME='guess_gae',
    SEED='1',
    CONFIG='think_answer_grpo',
    FILE='acrobot_ppo_config.py',
    RUN='runs/think_answer_grpo',
    CHECKPOINT='runs/think_answer_grpo/ckpt/iteration_1.pth.tar',
    FOLDER='runs/think_answer_grpo/model/last',
)
OTHERS = (
    r'(\S*/)?(pip|uv|docker|git|openenv|cd|sed|python -m server\.app|python3\.11 -m venv|python -m pytest|'
    r'python llama\.cpp/\S+) .*'
)
TARGETS = re.search(r'^\.PHONY: (.*)$', read('Makefile'), re.MULTILINE)[1].split()


@pytest.fixture
def folder(own_folder, tmp_path, monkeypatch):
    """The current folder, with the shipped configs. The pipelines only check the config that they get."""
    for name in ('config', 'benchmarks'):
        (tmp_path / name).symlink_to(os.path.join(ROOT, name))

    def check_config(configs, *args, **kwargs):
        configs[0].policy.cuda = False
        compiled(checked(configs), 0, save_cfg=False)

    entries = 'serial_entry_onpolicy.serial_pipeline_onpolicy', 'serial_entry.serial_pipeline', 'application_entry.eval'
    for name in entries:
        monkeypatch.setattr(f'ding.entry.{name}', check_config)
    return tmp_path


def make(path):
    """A config, a checkpoint or a folder of a run that a reader of the pages has made before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == '.py':
        path.write_text(read('config/think_answer_grpo_config.py'))
    elif path.suffix == '.tar':
        path.touch()
    else:
        path.mkdir()


def read_arguments(name, *words):
    """As the program of ``python -m NAME`` reads them, up to what it does then."""
    if name != 'ding_grpo':
        module = importlib.import_module(name)
        program = (importlib.import_module(f'{name}.command') if hasattr(module, '__path__') else module).main
    elif words[0] == '--help':
        assert describe(words[1])
        return
    elif words[0] in ('train', '--check'):
        program, words = train if words[0] == 'train' else check, words[1:]
    else:
        program = ding()
        if {'-c', '-e'} & set(words):
            program(list(words), standalone_mode=False)
        return
    program.make_context(name, list(words))


@pytest.mark.parametrize('command', COMMANDS)
def test_a_command_is_understood(command, folder):
    for word, value in WORDS.items():
        command = re.sub(rf'(?<!\S){word}(?!\S)', value, command)
    if re.fullmatch(OTHERS, command):
        return
    program, *words = shlex.split(command)
    for word in words:
        if word.startswith(('my_', 'runs/')) and not os.path.exists(word):
            make(folder / word)
    if program == 'make':
        assert words[0] in TARGETS
        assert all(word[5:] in programs() for word in words if word.startswith('NAME=') and word != 'NAME=...')
    elif program == 'ditask':
        assert find_spec(words[words.index('--main') + 1].removesuffix('.main'))
    elif program in ('ding', 'torchrun') or words[:1] == ['-m']:
        name, *words = words[words.index('-m') + 1:] if program != 'ding' else ['ding_grpo', *words]
        assert find_spec(name)
        if words and name != 'benchmarks' and not name.startswith('benchmarks.'):
            read_arguments(name, *words)
    else:
        assert program == 'python' and os.path.exists(os.path.join(ROOT, words[0]))
        if re.fullmatch('tools/(faults|gpu_counts|memory_table).py', words[0]):
            importlib.import_module(words[0][:-3].replace('/', '.')).main.make_context(program, words[1:])


DISTILLED = dict(think_answer='think_answer_distill', think_answer_reader='think_answer_self_distill')


def warm_start(name):
    """The folder of a model that is trained by a shipped config which does as little as it can."""
    main = read_main_config(path_of(name), None)
    least = dict(examples=8, max_steps=1, eval_problems=2, number=64, held_out=16, epochs=1)
    main['train'].update((key, value) for key, value in least.items() if main['train'].get(key) is not None)
    if 'eval_size' in main['env']['task']:
        main['env']['task']['eval_size'] = 8
    return (train_reward_model if 'reward_model' in name else sft).train(main, 0)[0]


@pytest.mark.envtest
@pytest.mark.parametrize('name', [long('spell_backward'), 'chain_sum', 'calculator', 'rearrange', *DISTILLED])
def test_a_warm_start_writes_the_model_that_the_next_config_reads(name, folder):
    if name in ('spell_backward', 'chain_sum'):
        pytest.importorskip('reasoning_gym')
    made, following = warm_start(f'{name}_sft'), DISTILLED.get(name, f'{name}_grpo')
    written, _ = load(following)
    assert made in (written.policy.model.get('pretrained'), written.policy.get('teacher', {}).get('pretrained'))
    if name in ('calculator', 'rearrange', *DISTILLED):  # of the others tests/pipelines/test_text_configs.py runs more
        kept = ('tokenizer', 'max_new_tokens', 'max_reply_tokens')
        env = dict({key: written.env[key] for key in kept if key in written.env}, max_prompt_length=None)
        main, create = small(following, env=env, policy=dict(model=written.policy.model))
        assert serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)


@pytest.mark.envtest
def test_the_reward_model_of_own_task(folder):
    assert os.listdir(warm_start('think_answer_reward_model'))
