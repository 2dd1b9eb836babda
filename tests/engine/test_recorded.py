"""Updates of a run with an engine, made again from the rows that it recorded."""
import glob
import json
import os
from types import SimpleNamespace as Namespace

import pytest
import torch
from click.testing import CliRunner
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.act.sampler import ModelSampler, RowRequest
from ding_grpo.engine.recorded import RecordedSampler, RowRecord, from_record
from ding_grpo.model import CausalLM
from ding_grpo.replay.command import main as replay
from ding_grpo.rollout import Sampling
from ding_grpo.verify import main as verify
from tests.engine.conftest import SPEC, make_model
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
    assert 'differs from the run (run / again), first in sampled' in asked(verify, 'run', '--updates', '0')


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


def test_a_run_learns_what_its_record_says_and_ends_with_it(trained):
    trained(updates=3)
    configs = small('think_answer_grpo')
    configs[0].policy.collect.engine = dict(type='recorded', run='run')
    train(configs, updates=3, name='again', learning_rate=0.01)
    for before, after in zip(metrics('run'), metrics('again')):
        for name in ('total_loss', 'reward_mean', 'grad_norm', 'entropy'):
            assert before[name] == after[name]
    with pytest.raises(ConfigError, match='the record has no collect after 3 updates'):
        train(configs, updates=4, name='longer', learning_rate=0.01)


# Rows of collect 4: two turns with a reply (9, 9) between them, and two texts of one episode.
SAMPLE = dict(
    group_id=2,
    collect_iter=4,
    prompts=[torch.tensor(ids) for ids in ([3], [3], [4, 4])],
    episode=torch.tensor([0, 1, 1]),
    length=torch.tensor([5, 1, 2]),
    action=torch.tensor([[5, 6, 9, 9, 7], [8, 0, 0, 0, 0], [10, 11, 0, 0, 0]]),
    weight=torch.tensor([[1., 1, 0, 0, 1], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]),
    turn=torch.tensor([[0, 0, 0, 0, 1], [0, -1, -1, -1, -1], [0, 0, -1, -1, -1]]),
    logp_old=torch.tensor([[-.1, -.2, 0, 0, -.3], [-.4, 0, 0, 0, 0], [-.5, -.6, 0, 0, 0]]),
    sampled_after=torch.tensor([[20, 21, -1, -1, 22], [20, -1, -1, -1, -1], [21, 21, -1, -1, -1]]),
    kept=torch.tensor([[[5, 1], [6, 2], [-1, -1], [-1, -1], [7, 3]], [[8, -1]] * 5, [[10, 4]] * 5]),
)


@pytest.fixture
def recorded():
    """The sampler of a record with ``SAMPLE``."""
    actor = Namespace(sampler=Namespace(exact=False))
    record = RowRecord(Namespace(actor=actor))
    record.begin(Namespace(exp_name='run'), None)
    record.sampled([Namespace(sample=SAMPLE)])
    policy = EasyDict(collect=dict(engine=dict(type='vllm', record=True), max_staleness=2, in_flight=True))
    from_record(policy, 'run')
    assert policy.collect.pop('engine') == dict(type='recorded', run=os.path.abspath('run'))
    assert dict(policy.collect) == dict(max_staleness=0, in_flight=False)
    model = make_model()
    sampler = RecordedSampler(EasyDict(collect=dict(engine=dict(type='recorded', run='run'), extra_rows=0)), model)
    sampler.bind(SPEC, Sampling(top_k=2))
    return sampler, model


def request(prompts, rows, **kwargs):
    keys = {i: (4, 2, row) for i, row in enumerate(rows)}
    uniform = torch.rand(len(rows), 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return RowRequest(list(range(len(rows))), [torch.tensor(ids) for ids in prompts], keys, uniform, **kwargs)


def test_each_request_gets_the_row_that_its_prompt_got(recorded):
    sampler, _ = recorded
    found = sampler.sample(request([[4, 4], [3], [3], [3, 5, 6, 9, 9]], rows=[1, 1, 0, 0]))
    assert not sampler.exact
    assert found.action.tolist() == [[10, 11], [8, -1], [5, 6], [7, -1]] and found.length.tolist() == [2, 1, 2, 1]
    assert torch.equal(found.logp, torch.tensor([[-.5, -.6], [-.4, 0], [-.1, -.2], [-.3, 0]]))
    assert found.sampled_after.tolist() == [[21, 21], [20, -1], [20, 21], [22, -1]]
    assert found.kept.tolist() == [[[10, 4]] * 2, [[8, -1], [-1, -1]], [[5, 1], [6, 2]], [[7, 3], [-1, -1]]]


def test_rows_beside_a_forced_one_are_those_of_the_record(recorded, capsys):
    sampler, model = recorded
    asked_for = request([[3], [3], [4, 4]], rows=[0, 1, 1], forced={(1, 0): 3}, limit=torch.tensor([6, 2, 6]))
    alone = ModelSampler(model)
    alone.bind(SPEC, Sampling(top_k=2))
    own = alone.sample(RowRequest([1], [torch.tensor([3])], {}, asked_for.uniform[1:2], torch.tensor([2]), {(0, 0): 3}))
    found = sampler.sample(asked_for)
    assert 'the model samples 1 of 3 rows' in capsys.readouterr().out
    assert found.action[1].tolist() == own.action[0].tolist() and found.action[1, 0] == 3
    assert torch.equal(found.logp[1], own.logp[0]) and torch.equal(found.kept[1], own.kept[0])
    assert found.action[0].tolist() == [5, 6] and found.action[2].tolist() == [10, 11]
    assert found.sampled_after.tolist() == [[20, 21], [21, 21], [21, 21]]


@pytest.mark.parametrize(
    'collect, told', [
        (dict(extra_rows=1), r'policy\.collect\.extra_rows = 1: not available'),
        (dict(engine=dict(type='recorded', run='.'), extra_rows=1), r'policy\.collect\.extra_rows = 1: not available'),
        (dict(engine=dict(type='recorded', run='none')), r"policy\.collect\.engine\.run = 'none': must be the folder"),
        (dict(engine=dict(type='recorded', of='x')), r"policy\.collect\.engine\.of = 'x': unknown key"),
        (dict(engine=dict(type='other')), "must be a dict with type='vllm' or type='recorded'"),
    ]
)
def test_what_cannot_be_is_told(collect, told):
    configs = small('think_answer_grpo', env=dict(collector_env_num=10))
    configs[0].policy.collect.engine = dict(type='vllm', url='http://127.0.0.1:1', record=True)
    configs[0].policy.collect.update(collect)
    os.makedirs('log/collector/rows')
    with pytest.raises(ConfigError, match=told):
        train(configs, updates=1)
