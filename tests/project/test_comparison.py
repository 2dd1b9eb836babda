"""benchmarks/comparison.py: what is equal for all sides, the rule of choice, and the page that a record gives."""
import ast
import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from ding.utils import POLICY_REGISTRY

from ding_grpo.envs import GymnasiumEnv

from tests.shipped import load, names

BENCHMARKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'benchmarks')
NEVER = float('inf')


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def tasks(module):
    return module('comparison_tasks')


@pytest.mark.unittest
class TestRuleOfChoice:

    @pytest.fixture
    def chosen(self, module):
        runs = module('comparison_runs')

        def choose(*tried):
            return runs.choose([[runs.Outcome(steps, 1.0, 0.0) for steps in seeds] for seeds in tried], 1000)

        return choose

    def test_most_seeds_solved_come_first(self, chosen):
        assert chosen((100, NEVER), (999, 999)) == 1

    def test_then_the_fewest_steps_in_the_mean(self, chosen):
        assert chosen((500, 700), (900, 200), (560, 560)) == 1  # 600, 550, 560

    def test_an_unsolved_seed_counts_the_budget(self, chosen):
        assert chosen((300, NEVER), (NEVER, 290)) == 1  # 650, 645
        assert chosen((NEVER, NEVER), (NEVER, NEVER)) == 0

    def test_steps_beyond_the_budget_count_as_the_budget(self, chosen):
        assert chosen((1100, 500), (1000, 500)) == 0  # both 750: the first

    def test_the_first_of_equal_ones(self, chosen):
        assert chosen((700, 500), (500, 700)) == 0


@pytest.mark.unittest
class TestSidesAreEqual:

    def test_in_tries(self, tasks):
        for task in tasks.TASKS.values():
            for tries in task.tries.values():
                assert len(tries) == tasks.TRIES and tries[0] == {}
                assert len({json.dumps(keys, sort_keys=True) for keys in tries}) == tasks.TRIES

    def test_in_bar_budget_and_interval_of_evaluation(self, module, tasks):
        work = module('comparison_runs').Work
        for name, task in tasks.TASKS.items():
            jobs = [work(name, side, n, 0).job for side in task.tries for n in range(tasks.TRIES)]
            assert {(job['bar'], job['budget'], job['interval']) for job in jobs} == \
                {(task.bar, task.budget, task.interval)}
            assert task.budget % task.interval == 0

    def test_every_shipped_side_takes_part(self, tasks):
        assert len(tasks.TASKS) == 8
        for name, task in tasks.TASKS.items():
            assert list(task.tries) == [side for side in tasks.SIDES if f'{name}_{side}' in names()]

    def test_reported_seeds_are_not_those_of_the_tuning(self, tasks):
        assert len(tasks.REPORTED_SEEDS) == 10 and not set(tasks.REPORTED_SEEDS) & set(tasks.TUNING_SEEDS)

    def test_acrobot_has_the_ppo_setting_that_was_chosen_beforehand(self, tasks):
        setting = {'learn.learning_rate': 1e-3, 'learn.epoch_per_collect': 10, 'collect.n_sample': 1024}
        assert setting in tasks.TASKS['acrobot'].tries['ppo']

    def test_ppo_runs_without_the_plugin_where_it_can(self, module, tasks):
        work = module('comparison_runs').Work
        plain = {
            (name, side)
            for name, task in tasks.TASKS.items() for side in task.tries
            if work(name, side, 0, 0).program.endswith('comparison_ppo.py')
        }
        assert plain == {(name, 'ppo') for name in ('cartpole', 'acrobot', 'pendulum', 'lunarlander')}


@pytest.mark.unittest
def test_every_key_of_a_try_exists(module, tasks):
    """DI-engine ignores a misspelt key, and a try would be the shipped setting."""
    set_keys = module('comparison_loop').set_keys
    for name, task in tasks.TASKS.items():
        for side, tries in task.tries.items():
            defaults = POLICY_REGISTRY.get('ppo' if side == 'ppo' else 'grpo').default_config()
            for keys in tries:
                main, _ = load(f'{name}_{side}')
                for path in keys:
                    *sections, last = path.split('.')
                    known = [main if sections[:1] == ['env'] else main.policy, defaults]
                    for section in sections:
                        known = [found.get(section) or {} for found in known]
                    assert any(last in found for found in known), f'{name} {side}: {path}'
                set_keys(main, keys)
                envs, policy = main.env.collector_env_num, main.policy
                assert side == 'ppo' or envs == policy.collect.n_sample * policy.group_size or name in \
                    ('guess', 'key_and_door', 'think_answer', 'spell_backward')


@pytest.mark.unittest
class TestPlainDriver:

    def test_imports_nothing_of_this_project(self):
        for name in ('comparison_ppo', 'comparison_loop'):
            with open(os.path.join(BENCHMARKS, f'{name}.py')) as f:
                tree = ast.parse(f.read())
            found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            found |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
            assert 'ding.policy' in found
            assert not [n for n in found if n.split('.')[0] in ('ding_grpo', 'ding_common', 'dizoo_llm', 'runs')]

    def test_a_process_with_the_plugin_fails(self, module):
        with pytest.raises(AssertionError, match='imported: .*ding_grpo'):
            module('comparison_ppo').check_untouched()

    def test_a_replaced_method_fails(self, module, monkeypatch):
        """The plugin has replaced _init_learn in this process."""
        driver = module('comparison_ppo')
        monkeypatch.setattr(driver, 'PLUGIN', ())
        with pytest.raises(AssertionError, match=r"replaced: \['_init_learn'\]"):
            driver.check_untouched()


@pytest.mark.envtest
def test_ppo_trains_in_a_process_without_the_plugin(module, tmp_path):
    """The process itself checks what it has imported, at its end."""
    job = module('comparison_runs').Work('cartpole', 'ppo', 0, 100).job
    keys = {'env.collector_env_num': 4, 'collect.n_sample': 128, 'learn.epoch_per_collect': 1}
    job.update(keys=keys, budget=300, interval=100, folder='run', result='result.json')
    (tmp_path / 'job.json').write_text(json.dumps(job))
    program = os.path.join(BENCHMARKS, 'comparison_ppo.py')
    done = subprocess.run(
        [sys.executable, program, 'job.json'], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / 'result.json').read_text())
    steps = [step for step, _, _ in result['evaluations']]
    assert steps[0] == 0 and 128 <= steps[1] < 300 <= steps[-1] and result['samples'] % 128 == 0
    assert not list((tmp_path / 'run').rglob('iteration_[1-9]*'))


@pytest.mark.unittest
@pytest.mark.parametrize('name', ['cartpole', 'acrobot', 'pendulum'])
def test_both_sides_play_the_same_game(module, name):
    cfg = load(f'{name}_ppo')[0].env
    envs = [module('comparison_loop').gymnasium_env(cfg), GymnasiumEnv(cfg)]
    for env in envs:
        env.seed(7, dynamic_seed=False)
    assert np.array_equal(*(env.reset() for env in envs))
    rng, done, length = np.random.default_rng(0), False, 0
    while not done:
        action = rng.uniform(-1, 1, 1).astype(np.float32) if name == 'pendulum' else rng.integers(2, size=1)
        steps = [env.step(action) for env in envs]
        assert np.array_equal(steps[0].obs, steps[1].obs) and np.array_equal(steps[0].reward, steps[1].reward)
        assert steps[0].done == steps[1].done
        done, length = steps[0].done, length + 1
    assert length == dict(acrobot=500, pendulum=200).get(name, length) and length > 8


@pytest.mark.unittest
class TestEvaluation:

    def test_is_of_fixed_starts(self, module):
        loop = module('comparison_loop')
        left = SimpleNamespace(reset=lambda: None, forward=lambda obs: {i: dict(action=torch.tensor(0)) for i in obs})
        starts = loop.Starts('CartPole-v1', False, left)
        env = gymnasium.make('CartPole-v1')
        expected = []
        for number in range(100):
            env.reset(seed=loop.FIRST_START + number)
            expected.append(next(n for n in range(1, 500) if env.step(0)[2]))
        assert starts(0) == starts(10) == np.mean(expected)

    @pytest.mark.parametrize('bar, expected', [(9, [0, 1200, 2100, 3000]), (2.5, [0, 1200, 2100])])
    def test_is_due_when_the_steps_pass_a_multiple(self, module, monkeypatch, bar, expected):
        """300 steps in a collect, the interval 1,000: due after 1,200, 2,100 and 3,000 steps."""
        loop = module('comparison_loop')
        monkeypatch.setattr(loop, 'BaseSerialCommander', lambda *_: SimpleNamespace(step=lambda: {}))
        collector = SimpleNamespace(envstep=0)

        def collect(**_):
            collector.envstep += 300
            return [None] * 4

        collector.collect = collect
        learner = SimpleNamespace(train_iter=0, train=lambda data, envstep: None)
        cfg = SimpleNamespace(policy=SimpleNamespace(other=SimpleNamespace(commander=None)))
        parts = loop.Parts(cfg, SimpleNamespace(command_mode=None), learner, collector, None, None)
        found = loop.train(dict(budget=3000, interval=1000, bar=bar), parts, lambda step: 1 + step // 1000)
        assert [step for step, _, _ in found['evaluations']] == expected
        assert found['samples'] == 4 * expected[-1] / 300


def a_run(side, attempt, seed, solved, budget=1000):
    """Reaches the bar of 5 after so many steps, or never."""
    end = [budget, 3.0, 9.0] if solved is None else [solved, 6.0, solved / 100]
    return dict(
        side=side, attempt=attempt, seed=seed, keys={'learn.learning_rate': 0.5} if attempt else {}, conditions=0,
        evaluations=[[0, 1.0, 0.0], end], samples=end[0] // 2, wall=1.0
    )  # yapf: disable


def an_entry(**steps):
    """Of each side the steps of ten seeds; its second try is better on the tuning seeds."""
    runs = [a_run(side, n, seed, 400 - 100 * n) for side in steps for n in (0, 1) for seed in (100, 101)]
    runs += [a_run(side, 1, seed, solved) for side, found in steps.items() for seed, solved in enumerate(found)]
    conditions = [dict(machine='AMD EPYC, 1 thread', commit='abc1234', versions='torch 2.12.1')]
    return dict(bar=5, budget=1000, interval=100, tuning_seeds=[100, 101], conditions=conditions, runs=runs)


@pytest.mark.unittest
class TestPage:

    @pytest.fixture
    def record(self):
        slow, fast = list(range(500, 600, 10)), list(range(200, 300, 10))
        return dict(
            cartpole=an_entry(grpo=fast, gae=fast[:-1] + [None], ppo=slow),
            acrobot=an_entry(grpo=slow, ppo=fast),
            pendulum=an_entry(grpo=slow, ppo=slow),
            guess=an_entry(grpo=[None] * 6 + [900] * 4, ppo=fast),
        )

    def row(self, text, *begin):
        found = [line for line in text.splitlines() if line.startswith('| ' + ' | '.join(begin) + ' |')]
        return [cell.strip() for cell in found[0].strip('|').split('|')]

    def test_says_who_needs_fewer_steps(self, module, record):
        text = module('comparison_page').page(record)
        assert self.row(text, 'CartPole-v1')[1:4] == ['GRPO', '1.00 (1.00 to 1.00)', 'GRPO']
        assert self.row(text, 'Acrobot-v1')[1:4] == ['PPO', '0.00 (0.00 to 0.00)', 'PPO']
        steps, probability = self.row(text, 'Pendulum-v1')[1:3]
        assert steps == 'no difference' and probability.startswith('0.50 (')

    def test_has_median_range_and_never(self, module, record):
        text = module('comparison_page').page(record)
        of_guess = text.partition('## guess')[2]
        assert self.row(of_guess, 'GRPO', '4 of 10')[2:4] == ['never (900 to never)', '']
        assert self.row(of_guess, 'PPO', '10 of 10')[2] == '245 (200 to 290)'
        # the middle six of 200, 210, ... 290
        assert self.row(of_guess, 'PPO', '10 of 10')[3].startswith('245 (')
        assert self.row(text.partition('## CartPole')[2], 'critic', '9 of 10')[2] == '245 (200 to never)'

    def test_has_tries_and_the_chosen_ones(self, module, record):
        text = module('comparison_page').page(record)
        assert '| GRPO | shipped | 400 | 400 |' in text
        assert '| **GRPO**, chosen | `learning_rate=0.5` | 300 | 300 |' in text
        assert '- PPO: `learning_rate=0.5`' in text and 'Commit abc1234; torch 2.12.1.' in text
        assert 'PPO learns from 50% of the steps' in text

    def test_has_finished_tasks_only(self, module, record):
        text = module('comparison_page').page(record)
        assert 'Not run yet: LunarLander-v3, key_and_door, think_answer, spell_backward.' in text
        assert '## LunarLander' not in text and '![guess](comparison_guess.png)' in text

    def test_picture(self, module, record, tmp_path):
        for task in ('cartpole', 'guess'):
            module('comparison_page').draw(record[task], str(tmp_path / 'picture.png'))
            assert (tmp_path / 'picture.png').read_bytes()[1:4] == b'PNG'

    def test_a_record_is_read_as_it_was_written(self, module, record, monkeypatch, tmp_path):
        program = module('comparison')
        monkeypatch.setattr(program, 'RECORD', str(tmp_path / 'record.json'))
        program.write_record(record)
        assert program.read_record() == record
        assert len((tmp_path / 'record.json').read_text().splitlines()) > 60  # a line for each run


@pytest.mark.unittest
class TestKept:

    def test_a_finished_run_is_not_repeated_until_its_settings_change(self, module, monkeypatch, tmp_path):
        runs = module('comparison_runs')
        monkeypatch.setattr(runs, 'OUT', str(tmp_path))
        started = []
        monkeypatch.setattr(runs, '_start', lambda work: started.append(work) or a_run('ppo', 0, 0, 300))
        work = runs.Work('acrobot', 'ppo', 0, 0)
        about = dict(machine='m', commit='c', versions='v')
        first = runs.run(work, about)
        assert runs.run(work, dict(about, commit='d')) == first and first['commit'] == 'c' and len(started) == 1
        changed = runs.TASKS['acrobot']._replace(interval=1_000)
        monkeypatch.setitem(runs.TASKS, 'acrobot', changed)
        runs.run(work, about)
        assert len(started) == 2

    def test_a_failed_run_ends_the_others_last(self, module, monkeypatch):
        runs = module('comparison_runs')
        works = [runs.Work('acrobot', 'ppo', 0, seed) for seed in range(3)]

        def run(work, about):
            if work.seed == 0:
                raise RuntimeError('log.txt')
            return a_run('ppo', 0, work.seed, 300)

        monkeypatch.setattr(runs, 'run', run)
        with pytest.raises(runs.click.ClickException, match='failed: log.txt'):
            runs.run_all(works, 1, 'tuning', {})
