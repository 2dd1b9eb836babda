"""Updates of a run with an engine, made again from the rows that it recorded."""
import glob
import json
import os

import pytest
import torch
from click.testing import CliRunner

from ding_common import ConfigError
from ding_grpo.model import CausalLM
from ding_grpo.replay.command import main as replay
from ding_grpo.verify import main as verify
from tests.runs import metrics, train
from tests.shipped import small

pytestmark = pytest.mark.usefixtures('own_folder')


@pytest.fixture
def trained(serve):
    """Trains by the rows of a server that record=True; its checkpoints are those of every second update."""

    def run(name='think_answer_grpo', record=True, updates=4, **collect):
        torch.manual_seed(5)
        configs = small(name)
        policy = configs[0].policy
        server = serve(CausalLM(config=dict(policy.model.config, vocab_size=collect.pop('words', 32))))
        policy.collect.update(
            engine=dict(type='vllm', folder=os.getcwd(), patience=60.0, url=server.url, record=record), **collect
        )
        policy.learn.update(learning_rate=0.01, learner=dict(hook=dict(save_ckpt_after_iter=2)))
        train(configs, updates=updates)

    return run


def asked(command, *words):
    found = CliRunner().invoke(command, list(words))
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exc_info
    return found.output


@pytest.mark.parametrize(
    'collect', [{}, dict(top_k=5), dict(max_staleness=2)], ids=['whole vocabulary', 'top_k', 'sampled ahead']
)
def test_updates_are_made_again_bit_for_bit(trained, collect):
    trained(**collect)
    out = asked(verify, 'run', '--updates', '0,1,2,3')
    assert out.count('bit for bit') == 4, out
    assert '4 of 4 updates are what the run says they were' in out


def test_turns_are_made_again_bit_for_bit(trained):
    trained('guess_grpo', words=14)
    assert 'bit for bit' in asked(verify, 'run', '--updates', '1')


def test_without_a_record_the_model_samples_other_rows(trained):
    trained(record=False, updates=1)
    assert not os.path.exists('run/log/collector/rows')
    assert 'not what the run says, from sampled on' in asked(verify, 'run', '--updates', '0')


def test_replayed_group_is_that_of_the_run(trained):
    trained()
    out = asked(replay, 'run/ckpt/iteration_2.pth.tar', '--group', '1')
    assert 'samples otherwise' not in out and 'not in the record' not in out
    with open('run/log/collector/rows/2.jsonl', encoding='utf-8') as f:
        rows = [row for row in map(json.loads, f) if row['group'] == 1]
    shown = asked(replay, 'run/ckpt/iteration_2.pth.tar', '--group', '1', '--row', '0', '--force', '0:0=3')
    assert len(rows) == 4 and 'the model samples 1 of 8 rows, which are not in the record' in shown


def test_row_of_another_prompt_is_the_models(trained, capsys):
    trained(updates=1)
    path, = glob.glob('run/log/collector/rows/*')
    with open(path, encoding='utf-8') as f:
        lines = [json.loads(line) for line in f]
    lines[5]['turns'][0]['before'] += 1
    with open(path, 'w', encoding='utf-8') as f:
        f.writelines(json.dumps(line) + '\n' for line in lines)
    configs = small('think_answer_grpo')
    configs[0].policy.collect.engine = dict(type='recorded', run='run')
    train(configs, updates=1, name='again')
    assert 'the model samples 1 of 8 rows, which are not in the record' in capsys.readouterr().out
    assert metrics('again')[0]['reward_mean'] == pytest.approx(metrics('run')[0]['reward_mean'], abs=0.2)


def test_a_run_learns_what_its_record_says(trained):
    trained(updates=3)
    configs = small('think_answer_grpo')
    configs[0].policy.collect.engine = dict(type='recorded', run='run')
    train(configs, updates=3, name='again', learning_rate=0.01)
    for before, after in zip(metrics('run'), metrics('again')):
        for name in ('total_loss', 'reward_mean', 'grad_norm', 'entropy'):
            assert before[name] == after[name]


@pytest.mark.parametrize(
    'collect, told', [
        (dict(extra_rows=1), r'policy\.collect\.extra_rows = 1: not available'),
        (dict(engine=dict(type='recorded', run='none')), r"policy\.collect\.engine\.run = 'none': must be the folder"),
        (dict(engine=dict(type='recorded', of='x')), r"policy\.collect\.engine\.of = 'x': unknown key"),
        (dict(engine=dict(type='other')), "must be a dict with type='vllm' or type='recorded'"),
    ]
)
def test_what_cannot_be_is_told(collect, told):
    configs = small('think_answer_grpo', env=dict(collector_env_num=10))
    configs[0].policy.collect.engine = dict(type='vllm', url='http://127.0.0.1:1', record=True)
    configs[0].policy.collect.update(collect)
    with pytest.raises(ConfigError, match=told):
        train(configs, updates=1)
