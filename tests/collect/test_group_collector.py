import copy
import re
import time
from functools import partial

import numpy as np
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from ding.envs import create_env_manager, get_env_manager_cls, get_vec_env_setting
from easydict import EasyDict
from tensorboardX import SummaryWriter

from ding_common import ConfigError, TaskError, read_json_lines
from ding_grpo.collect import GroupCollector
from dizoo_llm.envs import DingTokenEnv
from tests.cases import long
from tests.policy.helper import make_policy
from tests.shipped import small


class SlowResetEnv(DingTokenEnv):
    """Environments that take different times to reset, so that they become ready in another order."""

    def reset(self, **start):
        time.sleep(np.random.default_rng().uniform(0, 0.02))
        return super().reset(**start)


class AbnormalEnv(DingTokenEnv):
    """The first step of each environment ends abnormally."""
    broken = 0

    def step(self, action):
        step = super().step(action)
        if AbnormalEnv.broken > 0:
            AbnormalEnv.broken -= 1
            step.info['abnormal'] = True
        return step


class DynamicSeedEnv(DingTokenEnv):
    """As DI-engine's wrapper of gym: unless told otherwise, a random number is added to the seed."""

    def seed(self, seed, dynamic_seed=True):
        super().seed(seed + 100 * np.random.default_rng().integers(100) if dynamic_seed else seed)


def make_collector(
    main,
    create,
    tmp_path,
    manager='base',
    env_num=8,
    env_cls=DingTokenEnv,
    seed=0,
    policy=None,
    step_timeout=None,
    **collector
):
    policy = policy or make_policy(main, create, seed=seed)
    cfg = EasyDict(copy.deepcopy(main.env), type='token_env', import_names=[], collector_env_num=env_num)
    _, cfgs, _ = get_vec_env_setting(cfg, eval_=False)
    manager_cfg = get_env_manager_cls(EasyDict(type=manager)).default_config()
    manager_cfg.update(type=manager, step_timeout=step_timeout)
    envs = create_env_manager(manager_cfg, [partial(env_cls, cfg=c) for c in cfgs])
    torch.manual_seed(seed)
    config = EasyDict({**GroupCollector.config, **collector, 'type': 'group'})
    return GroupCollector(config, envs, policy.collect_mode, SummaryWriter(str(tmp_path / 'tb')), exp_name='exp')


def prompts(samples):
    return [str(s['prompt'].tolist()) for s in samples]


def summary(samples):
    return [(s['group_id'], s['prompt'].tolist(), s['action'].tolist(), s['reward'].tolist()) for s in samples]


@pytest.mark.envtest
class TestGroupCollector:

    def test_sample_is_a_whole_group_of_one_start(self, think_answer, tmp_path):
        collector = make_collector(*think_answer, tmp_path)
        samples = collector.collect(n_sample=5, train_iter=7)
        assert [s['group_id'] for s in samples] == [0, 1, 2, 3, 4]
        for s in samples:
            assert s['action'].shape[0] == s['logp_old'].shape[0] == s['reward'].shape[0] == 4
            assert s['collect_iter'] == 7 and s['seconds_sampling'] > 0 and s['seconds_scoring'] > 0
            assert len({tuple(row) for row in s['action'].tolist()}) > 1  # the rows are samples, not copies
        assert collector.envstep == sum(int(s['weight'].sum()) for s in samples)

    def test_groups_go_on_from_collect_to_collect(self, think_answer, tmp_path):
        collector = make_collector(*think_answer, tmp_path)
        first, second = collector.collect(), collector.collect()
        assert [s['group_id'] for s in first + second] == [0, 1, 2, 3]
        assert first[0]['action'].tolist() != second[0]['action'].tolist()

    def test_resumed_at_an_update_meets_what_the_uninterrupted_run_met(self, think_answer, tmp_path):
        whole = make_collector(*think_answer, tmp_path)
        met, states = [], []
        for i in range(3):
            states.append(whole.state_dict())
            met.append(summary(whole.collect(train_iter=i)))
        resumed = make_collector(*think_answer, tmp_path)
        resumed.load_state_dict(states[2])
        assert summary(resumed.collect(train_iter=2)) == met[2] and met[2] != met[1] != met[0]

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    def test_problems_come_in_shuffled_epochs(self, think_answer, tmp_path, manager):
        collector = make_collector(*think_answer, tmp_path, manager)
        drawn = [prompts(collector.collect(n_sample=n, train_iter=i)) for i, n in enumerate((3, 3, 6, 4))]
        collector.close()
        drawn = sum(drawn, [])
        assert all(len(set(drawn[i:i + 4])) == 4 for i in range(0, 16, 4))
        assert len({tuple(drawn[i:i + 4]) for i in range(0, 16, 4)}) > 1

    def test_problems_with_replacement(self, think_answer, tmp_path):
        main, create = think_answer
        main.policy.collect.problem_order = 'random'
        collector = make_collector(main, create, tmp_path)
        drawn = [prompts(collector.collect(n_sample=4, train_iter=i)) for i in range(6)]
        assert any(len(set(epoch)) < 4 for epoch in drawn)

    def test_result_depends_neither_on_processes_nor_on_their_order(self, think_answer, tmp_path):
        found = []
        for manager, env_num, env_cls in [('base', 8, DingTokenEnv), ('base', 4, DingTokenEnv),
                                          ('subprocess', 8, SlowResetEnv), ('subprocess', 12, SlowResetEnv)]:
            collector = make_collector(*think_answer, tmp_path, manager, env_num, env_cls)
            found.append(summary(collector.collect(n_sample=6)) + summary(collector.collect(n_sample=3)))
            collector.close()
        assert all(f == found[0] for f in found)

    def test_environments_that_change_their_seed_start_alike(self, think_answer, tmp_path):
        expected = summary(make_collector(*think_answer, tmp_path).collect(n_sample=4))
        found = summary(make_collector(*think_answer, tmp_path, env_cls=DynamicSeedEnv).collect(n_sample=4))
        assert found == expected

    def test_another_seed_is_another_result(self, think_answer, tmp_path):
        a, b = (summary(make_collector(*think_answer, tmp_path, seed=s).collect(n_sample=4)) for s in (0, 1))
        assert a != b

    def test_abnormal_end_begins_the_group_anew_and_does_not_repeat_its_seed(self, think_answer, tmp_path):
        """With the seed of before, an environment that fails at a start would fail again until the run ends."""
        expected = summary(make_collector(*think_answer, tmp_path).collect(n_sample=6))
        again = []
        for _ in range(2):
            AbnormalEnv.broken = 1
            collector = make_collector(*think_answer, tmp_path, env_cls=AbnormalEnv, env_num=4)
            found = collector.collect(n_sample=6)
            assert AbnormalEnv.broken == 0 and all(len(s['action']) == 4 for s in found)
            again.append(summary(found))
        assert again[0] == again[1] and again[0][0] != expected[0] and again[0][1:] == expected[1:]

    def test_endless_abnormal_ends_stop_the_run(self, think_answer, tmp_path):
        AbnormalEnv.broken = 10 ** 6
        collector = make_collector(*think_answer, tmp_path, env_cls=AbnormalEnv)
        try:
            with pytest.raises(RuntimeError, match='max_restarts = 3'):
                collector.collect()
        finally:
            AbnormalEnv.broken = 0

    def test_number_of_environments_must_divide_into_groups(self, think_answer, tmp_path):
        with pytest.raises(ConfigError, match='env.collector_env_num = 6: must be a multiple of policy.group_size = 4'):
            make_collector(*think_answer, tmp_path, env_num=6)

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    def test_failing_task_stops_with_the_problems_text(self, think_answer, tmp_path, manager, monkeypatch):
        from dizoo_llm.tasks import ThinkAnswerTask
        monkeypatch.setattr(ThinkAnswerTask, 'score', lambda *args: dict(answer=1 / 0, format=0, solved=0))
        collector = make_collector(*think_answer, tmp_path, manager)
        with pytest.raises(TaskError) as caught:
            collector.collect()
        assert re.fullmatch(
            r"8 of 8 completions could not be scored, more than policy.collect.collector.max_failed = 0.1; the first: "
            r"ThinkAnswerTask raised ZeroDivisionError: division by zero \(test_group_collector.py:\d+\); "
            r"problem: '<think> 2 3 4 </think>.*'; completion: '[^\n]*'", caught.value.message
        )

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    def test_task_that_gives_no_problem_stops_and_does_not_hang(self, think_answer, tmp_path, manager, monkeypatch):
        from dizoo_llm.tasks import ThinkAnswerTask
        main, create = think_answer
        main.env.max_prompt_length = 19
        policy = make_policy(main, create)
        monkeypatch.setattr(ThinkAnswerTask, 'problem', lambda self, index: {}['gone'])
        collector = make_collector(main, create, tmp_path, manager, policy=policy)
        with pytest.raises(TaskError, match=r"KeyError: 'gone' .* for problem \d"):
            collector.collect()

    def test_tables_of_completions_on_screen_and_in_the_file(self, think_answer, tmp_path, capsys):
        collector = make_collector(*think_answer, tmp_path)
        capsys.readouterr()
        for update in (0, 1, 50):
            collector.collect(train_iter=update)
        shown = capsys.readouterr().out
        written = (tmp_path / 'exp' / 'log' / 'collector' / 'completions.txt').read_text()
        for text in (shown, written):
            assert 'completions at update 0\n' in text and 'completions at update 50\n' in text
            assert 'completions at update 1\n' not in text and 'format' in text

    def test_policy_that_does_not_learn_from_groups(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        main, create = small('cartpole_ppo')
        create.collector = EasyDict(type='group')
        with pytest.raises(ConfigError, match="collector.type = 'group'.*does not learn from groups"):
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)


@pytest.mark.envtest
class TestFailures:
    """A scorer that raises or hangs costs its own row, and stops the run when too many do."""

    @pytest.fixture
    def task(self, monkeypatch):
        """Every completion of problem 2 fails, by raising or by hanging."""
        from dizoo_llm.tasks import ThinkAnswerTask
        score = ThinkAnswerTask.score

        def patch(fail):

            def failing(self, problem, completion):
                if problem == self.problem(2):
                    fail()
                return score(self, problem, completion)

            monkeypatch.setattr(ThinkAnswerTask, 'score', failing)

        return patch

    @pytest.mark.parametrize(
        'manager, how', [
            ('base', 'raises'),
            ('subprocess', 'raises'),
            ('subprocess', 'hangs'),
            long('base', 'hangs'),
        ]
    )
    def test_costs_its_own_row(self, think_answer, tmp_path, task, manager, how, capsys):
        main, create = think_answer

        def fail():
            if how == 'raises':
                raise KeyError('oh')
            time.sleep(60)

        task(fail)
        collector = make_collector(main, create, tmp_path, manager, max_failed=1.0, step_timeout=1)
        begun = time.monotonic()
        samples = collector.collect(n_sample=4)
        assert time.monotonic() - begun < 45
        failed = [s['failed'].tolist() for s in samples]
        bad = [s['prompt'].tolist()[8:10] == [3, 5] for s in samples]  # problem 2 begins with 3 5
        assert any(bad) and not all(bad)
        assert failed == [[float(b)] * 4 for b in bad]
        told = capsys.readouterr().out
        assert f'{4 * sum(bad)} of 16 completions could not be scored and are dropped; the first: Think' in told
        assert ('KeyError' if how == 'raises' else 'TimeoutError') in told
        recorded = read_json_lines(str(tmp_path / 'exp' / 'log' / 'collector' / 'completions.jsonl'))
        assert sum(record['failed'] is not None for record in recorded) == 4 * sum(bad)  # each, with the reason
        collector.close()

    def test_too_many_stop_the_run(self, think_answer, tmp_path, task):
        task(lambda: 1 / 0)
        with pytest.raises(TaskError, match=r'of 32 completions could not be scored, more than .*max_failed = 0.1'):
            make_collector(*think_answer, tmp_path).collect(n_sample=8)


@pytest.mark.envtest
class TestDynamicSampling:

    @pytest.mark.parametrize('most, number', [(0, 0), (3, 3), (100, None)])
    def test_equal_groups_are_replaced_within_a_bound(self, think_answer, tmp_path, monkeypatch, most, number):
        """Groups of problems 0 and 1 are scored equal, those of the others by chance."""
        from dizoo_llm.tasks import ThinkAnswerTask

        def score(self, problem, completion):
            easy = problem in (self.problem(0), self.problem(1))
            answer = 1.0 if easy else float(len(completion) % 2)
            return dict(answer=answer, format=len(completion) / 1000 * (not easy), solved=0.)

        monkeypatch.setattr(ThinkAnswerTask, 'score', score)
        collector = make_collector(*think_answer, tmp_path, max_replacements=most)
        samples = collector.collect(n_sample=6)
        replaced = round(sum(s['replaced_groups'] for s in samples))
        assert len(samples) == 6 and sorted(s['group_id'] for s in samples) == [s['group_id'] for s in samples]
        assert collector.envstep > sum(
            s['weight'].sum() for s in samples
        ) or replaced == 0  # what was thrown away counts
        if number is None:
            assert 0 < replaced < 100 and not any(s['equal'] for s in samples)
        else:
            assert replaced == number and any(s['equal'] for s in samples)
        again = make_collector(*think_answer, tmp_path, 'subprocess', max_replacements=most)
        assert summary(again.collect(n_sample=6)) == summary(samples)
        again.close()
