"""Findings of whole runs, and the check before a run."""
import os
import runpy

import pytest

from ding_common import ConfigError
from ding_grpo import check
from ding_grpo.__main__ import main as command
from ding_grpo.collect import GroupCollector
from tests.runs import evaluations, findings, pays, rescore, train
from tests.shipped import path_of, small, write


@pytest.mark.envtest
class TestRun:

    def test_what_lies_in_the_folder(self, think_answer, monkeypatch, capsys):
        rescore(monkeypatch, pays(1., 1., 1.), must_end=False)
        train(think_answer, 2)
        found, = findings()
        assert (found['update'], found['cause'], found['reward']) == (0, 'always_paid', 2)
        told = capsys.readouterr().out.splitlines()
        assert f"finding after update 0, always_paid: {found['message']}" in told
        assert f"findings: always_paid ({os.path.join('run', 'findings.md')})" in told
        assert found['message'] in open('run/findings.md').read()

    def test_a_scorer_that_only_returns_none(self, think_answer, monkeypatch):
        """The advice was to warm start."""
        rescore(monkeypatch, pays(None, None, None), demonstrates=False)
        train(think_answer, 14)
        found, = findings()
        assert (found['update'], found['cause'], found['samples']) == (13, 'no_part', 104)  # of 8 rows each
        assert "the scorer returned None for 'answer', 'format', 'solved' every time" in found['message']

    def test_a_resumed_run_has_the_findings_of_one_that_was_not_stopped(self, think_answer):
        train(think_answer, 5, learning_rate=1e-12, learner=dict(hook=dict(save_ckpt_after_iter=2)))
        whole = open('run/findings.jsonl').read()
        assert [f['cause'] for f in findings()] == ['step_small']
        for path in ('iteration_4.pth.tar', 'iteration_5.pth.tar', 'ckpt_best.pth.tar'):
            os.remove(f'run/ckpt/{path}')
        train(think_answer, 5, resume_training=True)  # from update 2, before the finding
        assert open('run/findings.jsonl').read() == whole

    @pytest.mark.parametrize('bar, all_reach_it', [(0.0, True), (0.25, False)])
    def test_a_run_that_is_solved_by_texts_that_do_not_end(self, think_answer, monkeypatch, capsys, bar, all_reach_it):
        """A bar that some of the completions reach may leave the others cut, and unpaid: no finding."""

        def score(self, problem, text):
            return dict(answer=0., format=0., solved=float(problem == self.problem(3)))

        rescore(monkeypatch, score, must_end=False, demonstrates=False)
        main, create = think_answer
        main.env.stop_value, main.env.max_new_tokens, main.policy.eval.evaluator.eval_freq = bar, 2, 1
        train((main, create), 5)
        last = evaluations()[-1]
        assert last['train_iter'] == 1 and last['truncated'] >= 0.5 and last['eval_episode_return'] == 0.25
        told = [(f['update'], f['cause'], f['share']) for f in findings()]
        assert told == ([(1, 'cut_paid', last['truncated'])] if all_reach_it else [])
        assert ('finding after update 1, cut_paid: ' in capsys.readouterr().out) == all_reach_it

    def test_other_environments(self, own_folder):
        train(small('pendulum_grpo'), 3)
        assert os.path.getsize('run/findings.jsonl') == 0  # looked for, and none found
        text = open('run/findings.md').read()
        assert '\nNone. ' in text and 'scorer' not in text


@pytest.mark.envtest
class TestCheck:

    @pytest.fixture
    def run(self, tmp_path, own_folder, capsys):
        """Exit code and output of the check of these configs."""

        def checked(configs, *options):
            with pytest.raises(SystemExit) as ended:
                command(['--check', *options, '-c', write(tmp_path / 'c.py', configs)])
            return ended.value.code, capsys.readouterr().out

        return checked

    def test_leaves_nothing(self, run):
        code, out = run(small('think_answer_grpo'), '-m', 'serial_onpolicy', '-s', '0')
        assert code == 0 and os.listdir('.') == ['c.py']
        for words in ('prompts of 4 problems: 19 tokens', 'demonstrations: 6 tokens; 0 of 4 are cut, 0 fail',
                      'an update takes ', 'peak memory ', 'of the second update: reward_mean ', 'findings: none'):
            assert words in out
        rows = [line.split()[:4] for line in out.splitlines()]
        assert ['demonstration', '4', '2', '1'] in rows and ['empty', '4', '0', '0'] in rows

    def test_junk_that_pays(self, run, monkeypatch):
        rescore(monkeypatch, lambda self, p, c: dict.fromkeys(self.weights, float(len(c.split()) > 4)))
        code, out = run(small('think_answer_grpo'))
        assert code == 1 and 'finding, junk_pays: junk pays: for problem 0' in out and 'findings: 1' in out

    def test_a_demonstration_that_does_not_fit(self, run):
        code, out = run(small('think_answer_grpo', env=dict(max_new_tokens=4)))
        assert code == 0 and 'none can be scored; 0 of 4 are cut, 4 fail' in out and 'env.max_new_tokens = 4' in out

    def test_environments_without_a_scorer(self, run):
        code, out = run(small('cartpole_grpo'))
        assert code == 0 and 'an update takes' in out and 'demonstration' not in out

    def test_other_policies_are_refused(self):
        loaded = runpy.run_path(path_of('cartpole_ppo'))
        with pytest.raises(ConfigError) as caught:
            check.examine(loaded['main_config'], loaded['create_config'], seed=0)
        assert caught.value.message == "--check: create_config.policy.type = 'ppo', must be grpo."


@pytest.mark.algotest
class TestBroken:
    """``make why`` measures more."""

    @pytest.fixture
    def broken(self, tmp_path, monkeypatch):
        from benchmarks.health import broken_runs
        monkeypatch.chdir(tmp_path)
        return broken_runs

    def test_each_is_named_by_its_cause(self, broken):
        found = {name: broken.findings_of(run, f'run{i}') for i, (name, run) in enumerate(broken.BROKEN.items())}
        assert len(found) == 13
        assert {name: of_run[0]['cause'] for name, of_run in found.items() if of_run} == \
            {name: run.cause for name, run in broken.BROKEN.items()}

    def test_in_the_run_where_no_demonstration_tells_before_it(self, broken, monkeypatch):
        monkeypatch.setattr(GroupCollector, 'probe', lambda self, problems: [])
        for cause in ('no_success', 'always_paid', 'no_end'):
            run, = (run for run in broken.BROKEN.values() if run.cause == cause)
            found = broken.findings_of(run, cause, updates=6)
            assert [(f['cause'], f['update']) for f in found] == [(cause, 5)]

    def test_whole_ones_have_no_cause(self, broken):
        assert [broken.findings_of(broken.Broken(''), f'run{seed}', seed) for seed in range(3)] == [[]] * 3
