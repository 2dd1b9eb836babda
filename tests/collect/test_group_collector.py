import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
from easydict import EasyDict

from ding_common import ConfigError, TaskError
from ding_grpo.collect.group import Group
from dizoo_llm import TASK_REGISTRY
from dizoo_llm.envs import DingTokenEnv
from dizoo_llm.tasks import ThinkAnswerTask
from tests.collect.helper import AbnormalEnv, SlowResetEnv, summary
from tests.policies import make_policy
from tests.runs import completions, rescore, train
from tests.shipped import small


class DynamicSeedEnv(DingTokenEnv):
    """As DI-engine's wrapper of gym: unless told otherwise, a random number is added to the seed."""

    def seed(self, seed, dynamic_seed=True):
        super().seed(seed + 100 * np.random.default_rng().integers(100) if dynamic_seed else seed)


@TASK_REGISTRY.register('think_answer_without_problems')
class NoProblems(ThinkAnswerTask):

    def problem(self, index):
        return {}['gone']


def prompts(samples):
    return [str(s['prompt'].tolist()) for s in samples]


def test_of_an_info_only_plain_entries_are_kept():
    """The rest may be what neither a checkpoint nor another process can take."""
    group = Group(0, [4, 5])
    for i in (4, 5):
        group.last_info[i] = dict(kind='a', eval_episode_return=np.array([1.5]), engine=lambda: 0, seen={1, 2})
    policy = SimpleNamespace(get_train_sample=lambda episodes: [{}])
    assert group.fold(policy, 3).infos == [{'kind': 'a', 'return': 1.5}] * 2


@pytest.mark.envtest
class TestGroupCollector:

    def test_sample_is_a_whole_group_of_one_start(self, collector):
        made = collector()
        samples = made.collect(n_sample=5, train_iter=7)
        assert [s['group_id'] for s in samples] == [0, 1, 2, 3, 4]
        for s in samples:
            assert s['action'].shape[0] == s['logp_old'].shape[0] == s['reward'].shape[0] == 4
            assert s['collect_iter'] == 7 and s['seconds_sampling'] > 0 and s['seconds_scoring'] > 0
            assert len({tuple(row) for row in s['action'].tolist()}) > 1  # the rows are samples, not copies
        assert made.envstep == sum(int(s['weight'].sum()) for s in samples)
        again = made.collect(n_sample=2, train_iter=7)  # goes on
        assert [s['group_id'] for s in again] == [5, 6] and summary(again)[0][2] != summary(samples)[0][2]

    def test_resets_are_time_of_the_environments(self, collector, monkeypatch):
        reset = DingTokenEnv.reset
        monkeypatch.setattr(DingTokenEnv, 'reset', lambda env, **start: time.sleep(0.05) or reset(env, **start))
        samples = collector().collect(n_sample=3)
        assert sum(s['seconds_scoring'] for s in samples) >= 0.05 * 3 * 4  # four rows a group

    def test_problems_come_in_shuffled_epochs(self, collector):
        made = collector('subprocess')
        drawn = sum((prompts(made.collect(n_sample=n, train_iter=i)) for i, n in enumerate((3, 3, 6, 4))), [])
        epochs = [drawn[i:i + 4] for i in range(0, 16, 4)]
        assert all(len(set(epoch)) == 4 for epoch in epochs) and len(set(map(tuple, epochs))) > 1

    def test_problems_with_replacement(self, think_answer, collector):
        think_answer[0].policy.collect.problem_order = 'random'
        made = collector()
        assert any(len(set(prompts(made.collect(n_sample=4, train_iter=i)))) < 4 for i in range(6))

    def test_result_depends_neither_on_environments_nor_on_processes_nor_on_their_order(self, collector):
        found = []
        for manager, env_num, env_cls in [('base', 8, DingTokenEnv), ('base', 4, DynamicSeedEnv),
                                          ('subprocess', 12, SlowResetEnv)]:
            made = collector(manager, env_num, env_cls)
            found.append(summary(made.collect(n_sample=6)) + summary(made.collect(n_sample=3)))
        assert found[0] == found[1] == found[2]

    def test_abnormal_end_begins_the_group_anew_and_does_not_repeat_its_seed(self, collector):
        """With the seed of before, an environment that fails at a start would fail again until the run ends."""
        expected = summary(collector().collect(n_sample=6))
        again = []
        for _ in range(2):
            AbnormalEnv.broken = 1
            again.append(summary(collector(env_cls=AbnormalEnv, env_num=4).collect(n_sample=6)))
            assert AbnormalEnv.broken == 0 and all(len(actions) == 4 for _, _, actions, _ in again[-1])
        assert again[0] == again[1] and again[0][0] != expected[0] and again[0][1:] == expected[1:]

    def test_endless_abnormal_ends_stop_the_run(self, collector):
        AbnormalEnv.broken = 10 ** 6
        with pytest.raises(RuntimeError, match='max_restarts = 3'):
            collector(env_cls=AbnormalEnv).collect()

    def test_failing_task_stops_with_the_problems_text(self, collector, monkeypatch):
        rescore(monkeypatch, lambda *_: 1 / 0)
        with pytest.raises(TaskError) as caught:
            collector('subprocess').collect()
        assert re.fullmatch(
            r'8 of 8 completions could not be scored, more than policy.collect.collector.max_failed = 0.1; the first: '
            r'ThinkAnswerTask raised ZeroDivisionError: division by zero \(test_group_collector.py:\d+\); '
            r"problem: '<think> 2 3 4 </think>.*'; completion: '[^\n]*'", caught.value.message
        )

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    def test_task_that_gives_no_problem_stops_and_does_not_hang(self, think_answer, collector, manager):
        think_answer[0].env.max_prompt_length = 19
        policy = make_policy(*think_answer)
        think_answer[0].env.task.type = 'think_answer_without_problems'
        with pytest.raises(TaskError, match=r"KeyError: 'gone' .* for problem \d"):
            collector(manager, policy=policy).collect()

    def test_tables_of_completions_on_screen_and_in_the_file(self, collector, tmp_path, capsys):
        made = collector(table_rows=1)
        capsys.readouterr()
        for update in (0, 1, 50):
            made.collect(train_iter=update)
        for text in (capsys.readouterr().out, (tmp_path / 'exp/log/collector/completions.txt').read_text()):
            assert 'completions at update 0\n' in text and 'completions at update 50\n' in text
            assert 'completions at update 1\n' not in text and 'format' in text

    def test_policy_that_does_not_learn_from_groups(self, own_folder):
        main, create = small('cartpole_ppo')
        create.collector = EasyDict(type='group')
        with pytest.raises(ConfigError, match="collector.type = 'group'.*does not learn from groups"):
            train((main, create), 1)


def raises():
    raise KeyError('oh')


def hangs():
    time.sleep(60)


@pytest.mark.envtest
@pytest.mark.parametrize('manager, fail, told', [('base', raises, 'KeyError'), ('subprocess', hangs, 'TimeoutError')])
def test_a_scorer_that_fails_costs_its_own_row(collector, monkeypatch, manager, fail, told, capsys):

    def failing(self, problem, completion):
        if problem == self.problem(2):
            fail()
        return score(self, problem, completion)

    score = rescore(monkeypatch, failing)
    begun = time.monotonic()
    samples = collector(manager, max_failed=1.0, step_timeout=1).collect(n_sample=4)
    assert time.monotonic() - begun < 45
    bad = [s['prompt'].tolist()[8:10] == [3, 5] for s in samples]  # problem 2 begins with 3 5
    assert any(bad) and not all(bad)
    assert [s['failed'].tolist() for s in samples] == [[float(b)] * 4 for b in bad]
    out = capsys.readouterr().out
    assert f'{4 * sum(bad)} of 16 completions could not be scored and are dropped; the first: Think' in out
    assert told in out
    assert sum(record['failed'] is not None for record in completions('exp')) == 4 * sum(bad)


@pytest.mark.envtest
@pytest.mark.parametrize('most, number', [(3, 3), (100, None)])
def test_equal_groups_are_replaced_within_a_bound(collector, monkeypatch, most, number):
    """Groups of problems 0 and 1 are scored equal, those of the others by chance."""

    def score(self, problem, completion):
        easy = problem in (self.problem(0), self.problem(1))
        answer = 1.0 if easy else float(len(completion) % 2)
        return dict(answer=answer, format=len(completion) / 1000 * (not easy), solved=0.)

    rescore(monkeypatch, score)
    made = collector(max_replacements=most)
    samples = made.collect(n_sample=6)
    replaced = round(sum(s['replaced_groups'] for s in samples))
    numbers = [s['group_id'] for s in samples]
    assert len(samples) == 6 and sorted(numbers) == numbers
    assert made.envstep > sum(s['weight'].sum() for s in samples)  # what was thrown away counts
    if number is None:
        assert 0 < replaced < 100 and not any(s['equal'] for s in samples)
        assert summary(collector('subprocess', max_replacements=most).collect(n_sample=6)) == summary(samples)
    else:
        assert replaced == number and any(s['equal'] for s in samples)
