"""
Every block of code of the README and the pages. Parts of configs have known keys, and the tasks that they name can be
created; what programs import exists. Programs that no other test has are executed.
"""
import ast
import inspect
import json
import os
import re
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from ding.entry import serial_pipeline_onpolicy
from ding.utils import ENV_REGISTRY, deep_merge_dicts
from easydict import EasyDict

from ding_common import check_arguments
from ding_common.config.env_config import check_env_config
from ding_common.config.settings import set_key
from ding_grpo import GRPO
from ding_grpo.entry.build import compiled
from ding_grpo.entry.pipeline import checked
from ding_grpo.model import CausalLM
from dizoo_llm.base.registry import task_class
from dizoo_llm.tasks import create_task
from tests.project.documents import blocks_of, is_shell, read
from tests.project.test_arrows import imports_of
from tests.project.test_commands import DOCUMENTS
from tests.project.test_programs import exists
from tests.shipped import small

pytestmark = pytest.mark.usefixtures('own_folder')
BLOCKS = [block for page in DOCUMENTS for block in blocks_of(page) if not is_shell(block) and block.language != 'text']
TEXTS = {block.name: block.text for block in BLOCKS}
NEXT_LETTER = TEXTS['own_task.md: from dizoo_llm import TASK_REGISTRY, Pro']
REWARDS = TEXTS['own_task.md: def correct(completion, answer):  # one']
TINY = dict(model_type='llama', hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
# Modules that the pages name.
MODULES = dict(
    my_agent=TEXTS['own_agent.md: import re'],
    my_counter=TEXTS['own_agent.md: class Counter:'],
    corridor=TEXTS['own_environment.md: import gymnasium'],
    my_face=TEXTS['own_task.md: class Lake:'],
    my_game=TEXTS['own_game.md: from dizoo_llm import TASK_REGISTRY, Mul'],
    my_grammar=TEXTS['options.md: def rule(prompt, tokens, tokenizer):'],
    my_scorer=TEXTS['own_task.md: import asyncio'],
    my_losses=TEXTS['losses.md: def spo(ratio, adv, logp_new, low, high)'],
    my_task=''.join(NEXT_LETTER.replace('next_letter', name) for name in ('next_letter', 'my_task', 'my_name')),
    my_tools=TEXTS['own_task.md: def look_up(word: str, most: int = 3) ->'],
)


def save(name, text):
    with open(name, 'w') as f:
        f.write(text)


@pytest.fixture(scope='module', autouse=True)
def modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp('modules')
    for name, text in MODULES.items():
        save(folder / f'{name}.py', text)
        sys.modules.pop(name, None)  # of another test
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def settings_of(text):
    """(key, value) of a part of a config: of sections, of keys of ``env``, or of dotted keys. No pair for others."""
    text = re.sub(r',?\s*\.\.\.(?=[,)\s])', '', textwrap.dedent(text))  # ``...`` is what it leaves out
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a picture, a formula, or what a program prints
        return []
    if not all(isinstance(node, ast.Assign) for node in tree.body):
        return []
    if re.match(r'[\w.]+ = ', text):
        return [(ast.unparse(node.targets[0]), eval(ast.unparse(node.value))) for node in tree.body]
    return [(key if key in ('env', 'policy') else f'env.{key}', value) for key, value in eval(f'dict({text})').items()]


PARTS = {block.name: settings for block in BLOCKS if (settings := settings_of(block.text))}


def changed(name, block):
    """A small shipped config with the settings of a block."""
    main, create = small(name)
    for key, value in PARTS[block]:
        if key in ('env', 'policy'):
            if 'task' in value:
                main.env.pop('task')
            main = EasyDict(deep_merge_dicts(main, {key: value}))
        else:
            set_key(main, create, key, value)
    return main, create


@pytest.fixture(scope='module')
def schema_server():
    """The address of a server that answers with the schema of actions, as OpenEnv's do."""
    schema = dict(properties=dict(message=dict(type='string')), required=['message'])

    class Handler(BaseHTTPRequestHandler):

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(dict(action=schema)).encode())

        def log_message(self, *args):
            pass

    with HTTPServer(('127.0.0.1', 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


@pytest.mark.parametrize('block', PARTS)
def test_a_part_of_a_config_has_known_keys_and_a_task(block, schema_server):
    steps = block.startswith(('own_environment.md', 'scaling.md: create_config'))
    main, create = changed('cartpole_grpo' if steps else 'think_answer_grpo', block)
    main.policy.cuda, task = False, main.env.get('task', {})
    if task.get('type') == 'textarena':
        pytest.importorskip('textarena')
    if task.get('type') == 'openenv':
        pytest.importorskip('openenv.core', reason="needs the extra: pip install '.[openenv]'")
        task.url = schema_server
    if task.get('type') == 'verifiers':  # its taskset is the reader's
        check_arguments({key: value for key, value in task.items() if key != 'type'}, task_class(task), 'env.task')
        task = main.env.task = EasyDict(type='think_answer')
    assert steps or len(create_task(task)) > 0
    kind = ENV_REGISTRY.get(create.env.type)
    check_env_config(main.env, kind.config, kind.rules)
    compiled(checked((main, create)), 0, save_cfg=False)


def test_what_programs_import_exists():
    programs = [block for block in BLOCKS if block.language == 'python' and block.name not in PARTS]
    names = {(block.name, *name) for block in programs for name in imports_of(textwrap.dedent(block.text))}
    own = [name for name in names if name[1].startswith(('ding_common', 'ding_grpo', 'dizoo_llm'))]
    assert len(own) > 10 and [name for name in own if not exists(*name[1:])] == []


@pytest.mark.parametrize(
    'block', ['from_ppo.md: from ding_grpo import GRPO', "first_run.md: run = GRPO(env='CartPole-v1').train()  #"]
)
def test_methods_of_a_run_have_these_arguments(block):
    """tests/bonus/ calls each."""
    for call in (node for node in ast.walk(ast.parse(TEXTS[block])) if isinstance(node, ast.Call)):
        of_object = isinstance(call.func, ast.Attribute)
        function = getattr(GRPO, call.func.attr) if of_object else dict(GRPO=GRPO, print=print)[call.func.id]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        inspect.signature(function).bind(*[None] * of_object, *call.args, **keywords)


@pytest.mark.parametrize(
    'block',
    ['from_ppo.md: output = policy.collect_mode.forward({0:', 'from_ppo.md: task.use(interaction_evaluator(cfg, poli']
)
def test_lines_of_an_example_are_in_it(block):
    examples = ''.join(read(f'examples/{name}.py') for name in ('middleware', 'plain_loop'))
    lines = [line.partition('  #')[0].strip() for line in TEXTS[block].splitlines()]
    assert [line for line in lines if line not in examples] == []


# ---------------------------------------------------------------------------------------------------- what is executed


@pytest.mark.envtest
def test_the_program_of_the_readme():
    text = TEXTS['README.md: import re']
    assert TEXTS['first_run.md: import re'] == text
    letters = ''.join(map(chr, range(32, 127)))
    keys = f"max_new_tokens=2, groups=2, **{{'env.tokenizer': {dict(chars=letters)!r}}}"
    text = text.replace("'smollm2-135m-instruct', ", f'dict(config={dict(TINY, max_position_embeddings=99)!r}), ')
    exec(text.replace('updates=30', 'updates=1').replace('max_new_tokens=16', keys), {})
    assert os.path.exists('my_model/config.json')


@pytest.mark.envtest
def test_the_pipeline_of_first_run():
    main, create = small('think_answer_grpo', policy=dict(run=dict(num_updates=1)))
    names = dict(main_config=main, create_config=create, my_model=CausalLM(config=dict(TINY, vocab_size=32)))
    exec(TEXTS['first_run.md: import ding_grpo  # before the import of'], names)
    assert names['policy'].learn_mode


@pytest.mark.envtest
def test_the_environment_of_own_environment():
    run = {}
    text = TEXTS['own_environment.md: import corridor  # registers the environ']
    exec(text.replace('updates=40', 'updates=1'), run)
    assert run['run'].evaluate()['episodes'] == 20


@pytest.mark.envtest
def test_the_face_of_own_task():
    main, create = changed('frozenlake_grpo', "own_task.md: task=dict(type='gym_text', id='FrozenLak")
    main.policy.model.config.vocab_size = 25
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)


@pytest.mark.envtest
def test_the_grammar_of_options_and_the_surrogate_of_losses():
    main, create = small('think_answer_grpo')
    main.policy.collect.processors = [dict(type='my_grammar:rule')]
    main.policy.learn.surrogate = 'my_losses:spo'
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)


def test_the_rewards_of_own_task():
    save('rewards.py', REWARDS)
    rows = [dict(prompt=f'{n} =', answer=str(n)) for n in range(4)]
    each = [f'rewards.py:{name}' for name in ('correct', 'brief', 'compute_score')]
    task = create_task(dict(type='file', path=rows, reward=each))
    assert task.checked_score(task.problem(1), '1') == dict(correct=1.0, brief=1.0, compute_score=1.0)
    assert task.checked_score(task.problem(1), 'long text') == dict(correct=0.0, brief=None, compute_score=0.0)


def test_every_kind_of_task_in_the_table_of_own_task():
    save('my_task.py', TEXTS['own_task.md: weights = dict(right=1.0, short=0.2)  #'])
    save('rewards.py', REWARDS)
    for name in ('train', 'test'):
        save(f'{name}.jsonl', f'{{"question": "{name} 1 + 1?", "answer": "It is 2. #### 2"}}\n')
    rows = re.findall(r'^\|[^|]*\| `(dict\(.*?\))`[,;. |]', read('docs/tutorials/own_task.md'), re.MULTILINE)
    assert len(rows) == 10
    for row in rows:
        task = create_task(eval(row))
        assert len(task) > 0 and task.problem(0).prompt, row
