"""The plan of a run, and its keys for this project, TRL and verl."""
import json
import os
import re
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from ding_common import read_config_file
from ding_grpo.entry import complete
from ding_grpo.model import CausalLM
from ding_grpo.preflight.command import main
from ding_grpo.preflight.plan import Plan, of_plan, plan_for, trl_arguments, verl_arguments
from ding_grpo.preflight.rate import Rate
from dizoo_llm.text.tokenizer import build_char_tokenizer
from tests.dizoo_llm.helper import write
from tests.preflight.test_command import LAST, REWARDS, ROWS, told
from tests.processes import ROOT

PEERS = os.path.join(ROOT, 'tests', 'preflight', 'peers.json')
ENV = dict(task=dict(type='file', path='train.parquet', reward='rewards.py:last'))


def test_groups_by_hand():
    """1 - 0.5^4 - 0.5^4 = 0.875; 1 - 0.2^8 - 0.8^8 = 0.83223; 1 - 0.01^64 - 0.99^64 = 0.47441, at most."""
    assert plan_for(0.5) == Plan(4, 10, 0.875)  # 8 / 0.875 = 9.14
    for success in (0.2, 0.8):
        assert plan_for(success)[:2] == (8, 10) and plan_for(success).share == pytest.approx(0.83223, abs=1e-5)
    assert plan_for(0.01)[:2] == (64, 17) and plan_for(0.01).share == pytest.approx(0.47441, abs=1e-5)


def test_a_rate_for_which_no_group_is_large_enough():
    part = of_plan(0.01, None, 100)
    assert [each['cause']
            for each in part.findings] == ['equal'] and '47 % of groups of 64' in part.findings[0]['message']
    assert part.lines[1] == 'an update samples 1,088 rows, at most 108,800 tokens'
    assert of_plan(0.2, None, 100).findings == []


def test_memory(tiny_config, tmp_path):
    """A model without its weights: 2 numbers of AdamW for each weight, and a gradient."""
    model = CausalLM(config=tiny_config)
    model.lm.config.save_pretrained(tmp_path)
    line = of_plan(0.2, str(tmp_path), 100).lines[2]
    mebi = sum(p.numel() for p in model.parameters()) * 4 / 2 ** 20
    assert line.startswith('memory by formula, with 8,192 tokens at a time: ') and f'optimizer {2 * mebi:,.0f}' in line


def test_the_rate_of_a_model(own_folder):
    """Of uniform tokens, a and b among others; the first one has to be the answer."""
    (own_folder / 'rewards.py').write_text('def first(completion, answer): return completion[:1] == answer', 'utf-8')
    rows = [dict(question='?' * i, answer='ab'[i % 2]) for i in range(1, 17)]
    write(own_folder / 'train.jsonl', rows)
    tokenizer = build_char_tokenizer('ab?')
    tokenizer.save_pretrained('model')
    model = CausalLM(
        config=dict(
            model_type='llama',
            hidden_size=8,
            num_attention_heads=1,
            num_hidden_layers=1,
            intermediate_size=8,
            vocab_size=len(tokenizer)
        )
    )
    model.lm.get_output_embeddings().weight.data.zero_()
    model.lm.save_pretrained('model')
    given = ['--data', 'train.jsonl', '--reward', 'rewards.py:first', '--no-trial', '--sample', '--model', 'model']
    text = CliRunner().invoke(main, given, catch_exceptions=False).output
    right = int(re.search(r'(\d+) of 128 sampled completions of 16 problems are right', text)[1])
    mean = 128 / len(tokenizer)
    assert abs(right - mean) < 4 * (mean * (1 - 1 / len(tokenizer))) ** 0.5
    assert f'with a success rate of {right / 128:g}: ' in text
    assert 40 <= int(re.search(r'and (\d+) % of groups of 8 have unequal rewards', text)[1]) < 100
    assert (Rate(0, 128, 0.).success, Rate(128, 128, 0.).success) == (0.5 / 128, 127.5 / 128)


def test_the_files(own_folder):
    (own_folder / 'rewards.py').write_text(REWARDS, encoding='utf-8')
    write(own_folder / 'train.jsonl', ROWS)
    given = ['--data', 'train.jsonl', *LAST, '--success', '0.2']
    assert 'written: preflight_trl.json, preflight_verl.txt\n' in told(*given)
    os.remove('preflight_trl.json')
    CausalLM(config=dict(model_type='llama', hidden_size=8, num_attention_heads=1)).lm.config.save_pretrained('model')
    build_char_tokenizer('abcdefghilmnrstuW ?0123456789').save_pretrained('model')
    assert 'preflight_config.py' in told(*given, '--model', 'model')
    made, create = read_config_file('preflight_config.py', [])
    complete(made, create)
    assert (made.policy.group_size, made.policy.collect.groups, made.policy.learn.batch_groups) == (8, 10, 10)
    assert made.env.task.reward == 'rewards.py:last' and made.policy.model.pretrained == 'model'
    told_again = told(*given)  # without the model, and so without a config
    assert '\n  preflight_config.py: of an earlier plan, left as found.' in told_again
    with open('preflight.html', encoding='utf-8') as f:
        assert 'preflight_config.py: of an earlier plan' in f.read()
    assert 'earlier' not in told(*given, '--model', 'model') and 'earlier' not in told(*given[:-2], '--out', 'a.html')
    with open('preflight_trl.json', encoding='utf-8') as f:
        assert json.load(f) == trl_arguments(plan_for(0.2), 256, [])
    with open('preflight_verl.txt', encoding='utf-8') as f:
        assert 'actor_rollout_ref.rollout.n=8\n' in f.read()


def test_names_that_peers_have():
    """Of TRL 1.16.0 and verl 0.9.1, as recorded from their own parsers."""
    with open(PEERS, encoding='utf-8') as f:
        peers = json.load(f)
    assert set(trl_arguments(plan_for(0.2), 64, [1.0, 2.0])) <= set(peers['trl'])
    names = [each.partition('=')[0] for each in verl_arguments(plan_for(0.2), ENV, 'model', 64)]
    assert len(names) == 11 and set(names) <= set(peers['verl'])


@pytest.mark.algotest
@pytest.mark.skipif('PEERS_PYTHON' not in os.environ, reason='PEERS_PYTHON: Python with TRL 1.16.0 and verl 0.9.1')
def test_the_parsers_of_peers(own_folder):
    """They read the values, and have the names that are recorded."""
    with open('trl.json', 'w', encoding='utf-8') as f:
        json.dump(trl_arguments(plan_for(0.2), 64, [1.0, 2.0]), f)
    with open('verl.txt', 'w', encoding='utf-8') as f:
        f.write('\n'.join(verl_arguments(plan_for(0.2), ENV, 'model', 64)))
    shutil.copy(os.path.join(ROOT, 'tests', 'preflight', 'peers.py'), 'peers.py')
    env = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
    subprocess.run([os.environ['PEERS_PYTHON'], 'peers.py', 'trl.json', 'verl.txt'], check=True, env=env)
    with open('peers.json', encoding='utf-8') as f, open(PEERS, encoding='utf-8') as g:
        assert json.load(f) == json.load(g)
