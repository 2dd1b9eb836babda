"""Smoke cases of the programs in benchmarks/, and of the command that runs them. None takes a measurement."""
import json
import os
import pickle
import pickletools
from types import SimpleNamespace

import click
import pytest
import torch
from ding.utils import POLICY_REGISTRY

from benchmarks import tables
from benchmarks.__main__ import main
from benchmarks.beside_trl import update
from benchmarks.classic.evidence import chosen, digest, merged, not_run, table
from benchmarks.comparison import loop
from benchmarks.comparison.ppo import PLUGIN
from benchmarks.comparison.runs import Work
from benchmarks.comparison.tasks import EVERY, SIDES
from benchmarks.demos.four_ways import TOKENS, Cost
from benchmarks.programs import programs
from benchmarks.shared.records import PATH
from tests.processes import python
from tests.project.documents import ROOT, read
from tests.shipped import load


def test_the_command(capsys):
    assert main([]) == 0 and capsys.readouterr().out.startswith(next(iter(programs())))
    assert main(['--needs', 'speed']) == 0 and capsys.readouterr().out.split() == programs()['speed'].needs
    assert main(['kk']) == 2 and 'NAME = kk: must be one of speed, ' in capsys.readouterr().err


@pytest.mark.parametrize('program', programs().values(), ids=programs())
def test_each_row_has_a_program_a_page_and_what_it_needs(program):
    assert os.path.exists(os.path.join(ROOT, program.page))
    assert set(program.needs) <= {line[6:].split()[0] for line in read('Makefile').splitlines() if 'NEEDS_' == line[:6]}
    module = program.command.partition('python -m ')[2].split()[0]
    assert os.path.exists(os.path.join(ROOT, module.replace('.', os.sep) + '.py'))


def test_every_key_that_the_comparison_tries_exists():
    """DI-engine ignores a misspelt key, and a try would be the shipped setting."""
    for name, side, tries in ((task.config or name, *item) for name, task in EVERY.items()
                              for item in task.tries.items()):
        defaults = POLICY_REGISTRY.get('ppo' if side == 'ppo' else 'grpo').default_config()
        for keys in tries:
            config, _ = load(f'{name}_{side}')
            for path in keys:
                *sections, last = path.split('.')
                known = [config if sections[:1] == ['env'] else config.policy, defaults]
                for section in sections:
                    known = [found.get(section) or {} for found in known]
                assert any(last in found for found in known), f'{name} {side}: {path}'
            loop.set_keys(config, keys)


@pytest.mark.parametrize('side', SIDES)
def test_the_config_of_a_run_is_read_without_this_project(side):
    for task in (name for name, task in EVERY.items() if side in task.tries):
        given = pickle.dumps(Work(task, side, 0, 0).config, protocol=2)
        named = [name for code, name, _ in pickletools.genops(given) if code.name == 'GLOBAL']
        assert named and not [name for name in named if name.startswith(PLUGIN)], task


@pytest.mark.envtest
def test_ppo_of_the_comparison_runs_without_this_project(tmp_path):
    """The file of its config imports this project; the process fails at its end if it has done so."""
    work, path = Work('acrobot', 'ppo', 0, 0), tmp_path / 'job'
    files = dict(result=str(tmp_path / 'result'), config=str(tmp_path / 'config'))
    job = dict(work.job, budget=1, episodes=1, folder=os.path.relpath(tmp_path / 'run', ROOT), **files)
    path.write_text(json.dumps(job))
    (tmp_path / 'config').write_bytes(pickle.dumps(work.config))
    assert work.program == 'comparison.ppo'
    done = python('-m', f'benchmarks.{work.program}', str(path), folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads((tmp_path / 'result').read_text())['evaluations']) == 2


def test_a_work_that_does_not_exist_is_refused():
    words = ['--peer-python', os.devnull, '--only', 'L19_T16_G8']
    with pytest.raises(click.BadParameter, match="'L19_T16_G8': must be of update_L16_T256_G8, .*, choices"):
        update.main(words, standalone_mode=False)


@pytest.mark.envtest
@pytest.mark.algotest
def test_an_update_is_measured():
    """The programs of whole updates, here and beside TRL, replace functions of this package by timed ones."""
    options = ('--threads', '1', '--only', 'L19_T16_G8', '--rounds', '1', '--no-write')
    done = python('-m', 'benchmarks.costs.limit', *options, folder=ROOT)
    assert done.returncode == 0 and '| L19_T16_G8 |' in done.stdout, done.stderr


@pytest.mark.envtest
def test_a_shipped_config_is_measured_with_its_own_number_of_tokens():
    """As ``limit`` does; that of SmolLM2 ended in a KeyError."""
    work = dict(config='config/smollm2_grpo_config.py', groups=16, group_size=8)
    script = f'from benchmarks.beside_trl.update_ours import configs; print(configs("", {work})[0].env.max_new_tokens)'
    done = python('-c', script, folder=ROOT)
    assert done.stdout.split()[-1] == str(load('smollm2_grpo')[0].env.max_new_tokens), done.stderr


@pytest.mark.unittest
def test_records_of_a_third_processor_take_no_row_from_the_table():
    with open(PATH, encoding='utf-8') as f:
        own = json.load(f)
    usual = max((r['processor'] for r in own), key=[r['processor'] for r in own].count)
    rows = [dict(r, processor='AMD EPYC, family 1, model 1') for r in own if r['processor'] == usual][:12]
    found = tables.table(own + rows)
    assert found == tables.table(own) and '| ratio, Intel ' in found and 'until solved, Intel' in found
    alone = [r for r in own if r['processor'] == usual]
    assert 'ratio, ' in tables.table(alone)


@pytest.mark.unittest
def test_seeds_of_an_earlier_call_stay_in_the_record_while_their_settings_are_the_same():

    def entry(*seeds, known=True):
        runs = [
            dict(
                side=side, attempt=0, keys={}, seed=seed, conditions=0, evaluations=[[0, 0.1, 0.0], [5000, 0.95, 3.0]]
            ) for seed in seeds for side in ('grpo', 'gae', 'ppo')
        ]
        for run in runs:
            run['digest'] = digest(Work('minigrid_doorkey', run['side'], 0, run['seed'])) if known else 'other'
        return dict(bar=0.9, budget=300_000, conditions=[str(seeds)], runs=runs)

    found = merged('minigrid_doorkey', entry(0, 1), entry(1, 2))
    of_runs = [(run['seed'], found['conditions'][run['conditions']]) for run in found['runs'] if run['side'] == 'ppo']
    assert of_runs == [(0, '(0, 1)'), (1, '(1, 2)'), (2, '(1, 2)')]
    assert table(dict(minigrid_doorkey=found)).count('| 3 of 3 | 5,000 (5,000 to 5,000) | 3.0 (3.0 to 3.0) |') == 3
    found = merged('minigrid_doorkey', entry(0, known=False), entry(1))
    assert {run['seed'] for run in found['runs']} == {1} and found['conditions'] == ['(1,)']


@pytest.mark.unittest
def test_an_ablation_is_a_row_of_its_own_beside_the_shipped_config():

    def entry(attempt, seed, steps):
        work = Work('halfcheetah', 'gae', attempt, seed)
        run = dict(side='gae', attempt=attempt, seed=seed, conditions=0, digest=digest(work))
        run.update(evaluations=[[0, 0.1, 0.0], [steps, 1001., 3.0]])
        run['keys'] = EVERY['halfcheetah'].tries['gae'][attempt]
        grpo = dict(run, side='grpo', attempt=0, evaluations=[[0, 0.1, 0.0]])
        grpo['digest'] = digest(Work('halfcheetah', 'grpo', 0, seed))
        return dict(bar=1000, budget=300_000, conditions=['here'], runs=[run, grpo])

    found = merged('halfcheetah', entry(0, 1, 5000), entry(1, 1, 7000))
    assert sorted((run['side'], run['attempt']) for run in found['runs']) == [('gae', 0), ('gae', 1), ('grpo', 0)]
    assert 'HalfCheetah-v5 (PPO)' in not_run(dict(halfcheetah=found)) and 'Hopper-v5' in not_run({})
    lines = table(dict(halfcheetah=found)).splitlines()
    assert any('| critic | 1 of 1 | 5,000 ' in line for line in lines)
    assert any('| critic, `gae_lambda=1.0` | 1 of 1 | 7,000 ' in line for line in lines)
    assert chosen('halfcheetah', 'gae1') == dict(grpo=[], gae=[1], ppo=[])
    assert chosen('halfcheetah', '') == dict(grpo=[0, 1], gae=[0, 1], ppo=[0])
    with pytest.raises(click.BadParameter, match="'gae2': must be of gae0, gae1, grpo0, grpo1, ppo0"):
        chosen('halfcheetah', 'grpo0,gae2')


@pytest.mark.unittest
def test_tokens_that_rows_of_a_tree_share_count_once():
    """Rows 0 and 1 share three tokens, the second of which is a reply. Rows 2 and 3 are of other groups."""
    weight = torch.tensor([[1., 0., 1., 0.], [1., 0., 1., 1.], [1., 1., 0., 0.], [1., 1., 0., 0.]])
    leader = torch.tensor([[0, 0, 0, -1], [0, 0, 0, 1], [0, 0, -1, -1], [0, 0, -1, -1]])
    new, cost = SimpleNamespace(weight=weight, leader=leader, group=torch.tensor([5, 5, 6, 7])), Cost(None)
    for leaders, tokens in ((leader, 3 + 2 + 2), (None, 2 + 3 + 2 + 2)):
        new.leader, metrics = leaders, {}
        cost.after(new, None, metrics)
        assert metrics[TOKENS] == tokens
