"""Smoke cases of the programs in benchmarks/, and of the command that runs them. None takes a measurement."""
import json
import os
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from ding.utils import POLICY_REGISTRY

from benchmarks.beside_trl.operations import Profile
from benchmarks.beside_trl.products import Recorder, Replay
from benchmarks.comparison import loop
from benchmarks.comparison import page as comparison_page
from benchmarks.comparison.runs import Outcome, Work, choose
from benchmarks.comparison.tasks import TASKS
from benchmarks.demos import llm
from benchmarks.health.soak import Growth
from benchmarks.programs import programs
from benchmarks.seeds import presets
from benchmarks.shared.paths import ROOT
from ding_grpo.rl_utils import LOSS_PRESETS
from tests.shipped import load


def bench(*arguments):
    return subprocess.run([sys.executable, '-m', 'benchmarks', *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.unittest
class TestCommand:

    def test_alone_it_prints_every_name(self):
        assert [line.split()[0] for line in bench().stdout.splitlines()] == list(programs())

    def test_it_runs_the_program_with_options(self):
        done = bench('kl', '--help')
        assert done.returncode == 0 and 'write docs/results/kl.md' in done.stdout

    def test_a_wrong_name_ends_in_one_line(self):
        done = bench('kk')
        assert done.returncode == 2 and done.stderr.startswith('NAME = kk: must be one of speed, ')


@pytest.mark.unittest
def test_products_of_a_linear_layer_are_recorded_and_made_again():
    weight, x = torch.randn(3, 64, requires_grad=True), torch.randn(5, 64, requires_grad=True)
    with Recorder({weight.data_ptr()}) as found, Profile() as profile:
        torch.nn.functional.linear(x, weight).sum().backward()
    assert [call['part'] for call in found.calls] == ['learning'] * 3  # forward, and twice backward
    assert Replay(found.calls).operations() == 3 * 2 * 5 * 3 * 64
    assert profile.found['products'] > 0


@pytest.mark.unittest
class TestComparison:

    def test_most_seeds_then_fewest_steps_in_the_mean(self):
        never = float('inf')

        def chosen(*tried):
            return choose([[Outcome(steps, 1.0, 0.0) for steps in seeds] for seeds in tried], 1000)

        assert chosen((100, never), (999, 999)) == 1
        assert chosen((500, 700), (900, 200), (560, 560)) == 1  # 600, 550, 560
        assert chosen((300, never), (never, 290)) == 1  # 650, 645: the budget counts where a seed is not solved

    def test_every_key_of_a_try_exists(self):
        """DI-engine ignores a misspelt key, and a try would be the shipped setting."""
        for name, side, tries in ((name, *item) for name, task in TASKS.items() for item in task.tries.items()):
            defaults = POLICY_REGISTRY.get('ppo' if side == 'ppo' else 'grpo').default_config()
            for keys in tries:
                main, _ = load(f'{name}_{side}')
                for path in keys:
                    *sections, last = path.split('.')
                    known = [main if sections[:1] == ['env'] else main.policy, defaults]
                    for section in sections:
                        known = [found.get(section) or {} for found in known]
                    assert any(last in found for found in known), f'{name} {side}: {path}'
                loop.set_keys(main, keys)

    def test_the_page_of_a_record(self):

        def a_run(side, seed, solved):
            evaluations = [[0, 1.0, 0.0], [solved or 1000, 6.0 if solved else 3.0, 9.0]]
            made = dict(side=side, attempt=0, seed=seed, keys={}, conditions=0, evaluations=evaluations)
            return dict(made, samples=500, wall=1.0)

        runs = [a_run(side, seed, 400) for side in ('grpo', 'ppo') for seed in (100, 101)]
        runs += [a_run('ppo', seed, 500) for seed in range(10)] + [a_run('grpo', seed, None) for seed in range(10)]
        conditions = [dict(machine='AMD EPYC, 1 thread', commit='abc1234', versions='torch 2.12.1')]
        entry = dict(bar=5, budget=1000, interval=100, tuning_seeds=[100, 101], conditions=conditions, runs=runs)
        text = comparison_page.page(dict(acrobot=entry))
        assert '| GRPO | 0 of 10 |' in text and '| PPO | 10 of 10 |' in text and 'Not run yet: CartPole-v1' in text


@pytest.mark.envtest
def test_ppo_trains_in_a_process_without_the_plugin(tmp_path):
    """The process itself checks what it has imported, at its end."""
    job = Work('cartpole', 'ppo', 0, 100).job
    keys = {'env.collector_env_num': 4, 'collect.n_sample': 128, 'learn.epoch_per_collect': 1}
    job.update(keys=keys, budget=300, interval=100, folder='run', result='result.json')
    (tmp_path / 'job.json').write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, '-m', 'benchmarks.comparison.ppo', 'job.json'],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=ROOT),
        capture_output=True,
        text=True,
        timeout=100
    )
    assert done.returncode == 0, done.stderr
    steps = [step for step, _, _ in json.loads((tmp_path / 'result.json').read_text())['evaluations']]
    assert steps[0] == 0 and 128 <= steps[1] < 300 <= steps[-1]


@pytest.mark.unittest
def test_the_shipped_record_of_demo_llm_makes_its_page(tmp_path, monkeypatch):
    """Runs that the record has are not made again, unless their settings changed."""
    with open(llm.RECORD) as f:
        record = json.load(f)
    monkeypatch.setattr(llm, 'ROOT', str(tmp_path))
    monkeypatch.setattr(llm, 'RECORD', str(tmp_path / 'record.json'))
    monkeypatch.setattr(llm, 'load_config', lambda name: name)
    (tmp_path / 'docs' / 'results').mkdir(parents=True)
    runs = [dict(run, settings=repr(('smollm2_grpo', llm.WAYS[run['way']]))) for run in record['runs']]
    (tmp_path / 'record.json').write_text(json.dumps(dict(record, runs=runs)))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(llm.main, ['--write', '--add'], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    text = (tmp_path / 'docs' / 'results' / 'demo_llm.md').read_text()
    assert 'make bench NAME=demo_llm_all' in text and (tmp_path / 'docs' / 'results' / 'demo_llm.png').exists()


@pytest.mark.unittest
@pytest.mark.parametrize(
    'memory, held', [
        (lambda i: 300 if i < 20 else 400, True),
        (lambda i: 400 * (1 + 0.04 * i / 100), False),
    ],
    ids=['the start', 'a slow leak']
)
def test_soak_notices_a_slow_leak(memory, held):
    assert Growth.of([dict(update=25 * i, memory=memory(i), files=20) for i in range(100)]).held == held


@pytest.mark.unittest
def test_every_preset_is_measured():
    default, = (option.default for option in presets.main.params if option.name == 'presets')
    assert default.split(',') == list(LOSS_PRESETS)
