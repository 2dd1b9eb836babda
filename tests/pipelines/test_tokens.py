"""The whole way: from a config through DI-engine's pipeline to a model on disk."""
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from click.testing import CliRunner
from ding.entry import serial_pipeline_onpolicy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ding_grpo.model import CausalLM
from dizoo_llm.play import main as play
from dizoo_llm.tasks import ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.cases import long
from tests.pipelines import plain
from tests.pipelines.plain import completed
from tests.processes import ROOT, Process, python, run_code, run_ding
from tests.runs import evaluated, evaluations, metrics, state, train, weights
from tests.same import same
from tests.shipped import path_of, small, write

CONFIG = path_of('think_answer_grpo')
DING = os.path.join(os.path.dirname(sys.executable), 'ding')
pytestmark = pytest.mark.envtest


class TestRun:

    @pytest.fixture(scope='class')
    def finished(self, tmp_path_factory):
        """Five updates with an evaluation at 0, 2, 4 and the end, with their curve: (folder, weights, screen)."""
        folder = tmp_path_factory.mktemp('tokens')
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            main, create = small('think_answer_grpo')
            main.policy.eval.evaluator.eval_freq = 2
            policy = train((main, create), 5, 1, learning_rate=3e-3, kl=dict(beta=0.05))
        return folder, weights(policy)

    @pytest.fixture
    def run(self, finished, monkeypatch):
        """The weights at the end of the run, in its folder."""
        monkeypatch.chdir(finished[0])
        return finished[1]

    def test_what_lies_in_the_folder(self, run):
        assert [m['train_iter'] for m in metrics()] == [0, 1, 2, 3, 4] and evaluated() == [0, 2, 4, 5]
        steps = [m['envstep'] for m in metrics()]
        assert steps == sorted(set(steps))
        for name in ('ckpt/ckpt_best.pth.tar', 'ckpt/iteration_5.pth.tar', 'result.pkl', 'total_config.py'):
            assert os.path.exists(f'run/{name}'), name
        assert open('run/curve.png', 'rb').read(8) == b'\x89PNG\r\n\x1a\n'
        same(state(5)['model'], run)

    def test_every_metric_of_every_update_in_tensorboard(self, run):
        events = EventAccumulator(os.path.dirname(glob.glob('run/log/serial/events*')[0]), dict(scalars=0)).Reload()
        recorded = metrics()
        names = set().union(*recorded) - {'train_iter', 'envstep', 'seconds'}
        assert names >= {
            'reward_mean', 'reward_format_std', 'equal_groups', 'completion_length_max', 'truncated', 'entropy', 'kl',
            'ratio_max', 'clipfrac_low', 'grad_norm', 'cur_lr', 'tokens_per_second', 'seconds_scoring'
        }
        with open(os.path.join(ROOT, 'docs', 'reference', 'metrics.md')) as f:
            documented = f.read()
        for name in names:
            scalars = events.Scalars(f'learner_iter/{name}')
            having = [m for m in recorded if name in m]
            assert len(having) == 5 or name == 'noise/table/scale'  # absent where the signal is negative
            assert [s.step for s in scalars] == [m['train_iter'] for m in having]
            assert [s.value for s in scalars] == pytest.approx([m[name] for m in having], rel=1e-5, abs=1e-7)
            name = re.sub('reward_(answer|format|solved)', 'reward_PART', name)
            assert f'`{name}`' in documented, f'docs/reference/metrics.md does not explain {name}'
        assert 'collector_iter/reward_mean' in events.Tags()['scalars']
        returns = [s.value for s in events.Scalars('evaluator_iter/reward_mean')]  # the return, not the reward
        assert returns == pytest.approx([e['eval_episode_return'] for e in evaluations()])

    def test_generate_reproduces_the_evaluated_answers(self, run):
        best = max(evaluations(), key=lambda e: e['eval_episode_return'])  # the first of equal ones
        last, best = ({c['prompt']: c['completion'] for c in e['completions']} for e in (evaluations()[-1], best))
        assert len(last) == len(best) == 4
        assert {prompt: completed('run/model/last', prompt) for prompt in last} == last
        assert {prompt: completed('run/model/best', prompt) for prompt in best} == best

    @pytest.mark.algotest
    def test_a_process_that_knows_nothing_of_this_project_reproduces_them(self, run):
        last = {c['prompt']: c['completion'] for c in evaluations()[-1]['completions']}
        alone = python(plain.__file__, 'run/model/last', *last)
        assert alone.stdout.splitlines() == list(last.values()), alone.stderr

    def test_play_prompts_the_trained_model(self, run, tmp_path):

        def shown(*options, **kwargs):
            return CliRunner().invoke(play, ['run/model/last', *options], **kwargs).stdout

        last = evaluations()[-1]
        prompt, completion = (last['completions'][0][key] for key in ('prompt', 'completion'))
        assert shown(prompt) == shown(input=f'{prompt}\n\n') == f'{completion}\n'
        table = shown('--task', 'think_answer')
        assert table.splitlines()[-1] == f"mean of 'solved': {last['eval_episode_return']:.3f} in 4 problems"
        for c in last['completions']:
            assert c['completion'] in table and c['completion'] in shown('--config', CONFIG)
        (tmp_path / 'lines.py').write_text(
            "def problems(): return [dict(prompt='1\\n2', answer='a\\nb')]\ndef score(problem, text): return 1.0"
        )
        task = dict(type='file', path=str(tmp_path / 'lines.py'))
        (tmp_path / 'c.py').write_text(f'main_config = dict(env=dict(task={task}, max_new_tokens=2))')
        table = shown('--config', str(tmp_path / 'c.py'))
        assert r'1\n2' in table and r'a\nb' in table and len(table.splitlines()) == 4
        assert table.endswith('mean of the return: 1.000 in 1 problems\n')
        both = CliRunner().invoke(play, ['run/model/last', '--task', 'think_answer', '--config', CONFIG])
        assert both.exit_code == 2 and 'give --task alone' in both.output


class TestFromPython:

    def test_a_model_made_in_memory_and_progress_on_the_screen_without_the_log(self, think_answer, tiny_model, capfd):
        before = tiny_model.lm.lm_head.weight.clone()
        policy = serial_pipeline_onpolicy(think_answer, model=tiny_model.lm, max_train_iter=2)
        assert policy.whole_model.lm is tiny_model.lm and not torch.equal(before, tiny_model.lm.lm_head.weight)
        out, err = capfd.readouterr()
        assert err == ''
        assert 'update 1 of 2  00:' in out and 'tokens/s' in out and 'evaluation  update 0  return' in out
        assert 'completions at update 0' in out and 'models: run/model' in out
        assert len(out.splitlines()) < 25 and '[EVALUATOR]' not in out and 'Training Iteration' not in out

    def test_model_folder_as_start_with_the_tokenizer_beside_it(self, think_answer, tiny_config):
        start = CausalLM(config=dict(tiny_config, vocab_size=40))  # the tokenizer has 32 tokens
        start.save_pretrained('start', build_word_tokenizer(ThinkAnswerTask.words))
        main, create = think_answer
        main.env.tokenizer = main.policy.model = dict(pretrained='start')
        train((main, create), 3, learning_rate=1e-3, kl=dict(beta=0.1))
        assert metrics()[0]['kl'] == pytest.approx(0, abs=1e-5)
        for c in evaluations()[-1]['completions']:
            # the folder of the start sets no length
            assert completed('run/model/last', c['prompt'], max_new_tokens=main.env.max_new_tokens) == c['completion']


class TestCommandLine:

    def test_a_python_file_takes_options(self, tmp_path):
        options = '--train-iter 1 -s 3 --exp-name mine policy.group_size=4 policy.collect.groups=2 ' \
            'policy.learn.batch_groups=2 policy.model.config.hidden_size=32'
        run = f"runpy.run_path({CONFIG!r}, None, '__main__')"
        program = f'import runpy, sys; sys.argv = {[CONFIG, *options.split()]}; {run}'
        code, out = Process(run_code, program, tmp_path).end()
        assert code == 0 and len(metrics(tmp_path / 'mine')) == 1, out
        assert os.path.exists(tmp_path / 'mine' / 'curve.png')

    @pytest.mark.parametrize('manager, number', [long('base', signal.SIGINT), ('subprocess', signal.SIGTERM)])
    def test_interrupt_saves_and_ends_without_a_traceback(self, tmp_path, manager, number):
        configs = small('think_answer_grpo')
        path = write(tmp_path / 'own_config.py', configs, f"create_config.env_manager.type = '{manager}'")
        process = Process(run_ding, f'-m serial_onpolicy -c {path}', tmp_path)
        run, deadline = tmp_path / 'run', time.time() + 120
        while time.time() < deadline and len(metrics(run)) <= 3:
            time.sleep(0.05)
        os.killpg(process.pid, number)  # as a terminal and torchrun do: to the environments' processes, too
        code, out = process.end()
        assert code == 128 + number and 'Traceback' not in out, out
        updates = len(metrics(run))
        assert f'{number.name}: saving after update {updates}' in out and state(updates, run)['last_iter'] == updates
        assert json.loads((run / 'model/last/config.json').read_text())['hidden_size'] == 32
        assert (run / 'curve.png').exists()


@pytest.mark.algotest
@pytest.mark.parametrize('seed', range(5))
def test_think_answer_is_solved(tmp_path, seed):
    command = [DING, *f'-m serial_onpolicy -c {CONFIG} -s {seed} --train-iter 600'.split()]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert evaluations(tmp_path / 'runs/think_answer_grpo')[-1]['eval_episode_return'] == 1
