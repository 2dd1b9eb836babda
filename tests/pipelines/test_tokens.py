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
from ding.entry import serial_pipeline_onpolicy
from tensorboard.backend.event_processing.event_accumulator import \
    EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from ding_common import ConfigError, TaskError, read_json_lines
from dizoo_llm.tasks import ThinkAnswerTask
from tests.cases import long
from tests.processes import Process, call, run_ding
from tests.shipped import path_of, small, write

CONFIG = path_of('think_answer_grpo')
DING = os.path.join(os.path.dirname(sys.executable), 'ding')


def write_config(folder, code=''):
    return write(folder / 'own_config.py', small('think_answer_grpo', env=dict(stop_value=1.0)), code)


@pytest.mark.envtest
class TestRun:

    @pytest.fixture
    def run(self, think_answer, tmp_path):
        """Five updates with an evaluation at 0, 2, 4 and the end; returns the policy. The folder is ``run``."""
        main, create = think_answer
        main.policy.eval.evaluator.eval_freq = 2
        main.policy.learn.update(beta=0.05, learning_rate=3e-3)
        return serial_pipeline_onpolicy((main, create), seed=1, max_train_iter=5)

    def test_signals_are_given_back(self, run):
        # in a process begun in the background this is SIG_IGN, which is no function
        assert getattr(signal.getsignal(signal.SIGINT), '__name__', '') != '_note'

    @pytest.mark.curves
    def test_what_lies_in_the_folder(self, run):
        metrics = read_json_lines('run/log/learner/metrics.jsonl')
        assert [m['train_iter'] for m in metrics] == [0, 1, 2, 3, 4]
        steps = [m['envstep'] for m in metrics]
        assert steps == sorted(set(steps))
        assert [e['train_iter'] for e in read_json_lines('run/log/evaluator/evaluations.jsonl')] == [0, 2, 4, 5]
        for name in ('ckpt/ckpt_best.pth.tar', 'ckpt/iteration_5.pth.tar', 'result.pkl', 'total_config.py'):
            assert os.path.exists(f'run/{name}'), name
        assert open('run/curve.png', 'rb').read(8) == b'\x89PNG\r\n\x1a\n'

    def test_every_metric_of_every_update_in_tensorboard(self, run):
        events = EventAccumulator(os.path.dirname(glob.glob('run/log/serial/events*')[0]), dict(scalars=0)).Reload()
        recorded = read_json_lines('run/log/learner/metrics.jsonl')
        names = set().union(*recorded) - {'train_iter', 'envstep', 'seconds'}
        assert names >= {
            'reward_mean', 'reward_std', 'reward_answer_mean', 'reward_answer_std', 'reward_format_mean',
            'reward_format_std', 'equal_groups', 'completion_length_mean', 'completion_length_min',
            'completion_length_max', 'truncated', 'entropy', 'kl', 'ratio_mean', 'ratio_max', 'clipfrac_low',
            'clipfrac_high', 'grad_norm', 'cur_lr', 'tokens_per_second', 'seconds_sampling', 'seconds_scoring',
            'seconds_updating'
        }
        for name in names:
            scalars = events.Scalars(f'learner_iter/{name}')
            having = [m for m in recorded if name in m]
            assert len(having) == 5 or name == 'noise/table/scale'  # absent where the signal is negative
            assert [s.step for s in scalars] == [m['train_iter'] for m in having]
            assert [s.value for s in scalars] == pytest.approx([m[name] for m in having], rel=1e-5, abs=1e-7)
        documented = open(os.path.join(os.path.dirname(CONFIG), '..', 'docs', 'reference', 'metrics.md')).read()
        for name in names:
            name = re.sub('reward_(answer|format|solved)', 'reward_PART', name)
            assert f'`{name}`' in documented, f'docs/reference/metrics.md does not explain {name}'
        assert 'collector_iter/reward_mean' in events.Tags()['scalars']
        evaluated = read_json_lines('run/log/evaluator/evaluations.jsonl')
        returns = [s.value for s in events.Scalars('evaluator_iter/reward_mean')]  # the return, not the reward
        assert returns == pytest.approx([e['eval_episode_return'] for e in evaluated])

    @pytest.mark.parametrize('which', ['last', 'best'])
    def test_generate_reproduces_the_evaluated_answers(self, run, which):
        evaluations = read_json_lines('run/log/evaluator/evaluations.jsonl')
        if which == 'last':
            state = torch.load('run/ckpt/iteration_5.pth.tar', weights_only=True)
            assert all(torch.equal(a, b) for a, b in zip(state['model'].values(), run._model.state_dict().values()))
            evaluation = evaluations[-1]
        else:
            evaluation = max(evaluations, key=lambda e: e['eval_episode_return'])  # the first of equal ones
        completions = {c['prompt']: c['completion'] for c in evaluation['completions']}
        assert len(completions) == 4
        model = AutoModelForCausalLM.from_pretrained(f'run/model/{which}')
        tokenizer = AutoTokenizer.from_pretrained(f'run/model/{which}')
        for prompt, completion in completions.items():
            ids = tokenizer(prompt, return_tensors='pt').input_ids
            out = model.generate(ids, attention_mask=torch.ones_like(ids))[0, ids.shape[1]:].tolist()
            out = out[:-1] if out[-1] == tokenizer.eos_token_id else out
            assert tokenizer.decode(out) == completion

    def test_play_prompts_the_trained_model(self, run):
        from click.testing import CliRunner

        from dizoo_llm.play import main
        completion = next(iter(evaluate(run).items()))
        shown = CliRunner().invoke(main, ['run/model/last', completion[0]])
        assert shown.exit_code == 0 and shown.stdout == completion[1] + '\n'
        table = CliRunner().invoke(main, ['run/model/last', '--task', 'think_answer']).stdout
        assert len(table.splitlines()) == 7 and all(c in table for c in evaluate(run).values())
        value = read_json_lines('run/log/evaluator/evaluations.jsonl')[-1]['eval_episode_return']
        assert table.splitlines()[-1] == f"mean of 'solved': {value:.3f} in 4 problems"
        same = CliRunner().invoke(main, ['run/model/last', '--config', CONFIG]).stdout
        assert all(c in same for c in evaluate(run).values())
        with open('lines.py', 'w') as f:
            f.write(
                "def problems(): return [dict(prompt='1\\n2', answer='a\\nb')]\ndef score(problem, text): return 1.0"
            )
        with open('lines_config.py', 'w') as f:
            f.write("main_config = dict(env=dict(task=dict(type='python', file='lines.py'), max_new_tokens=2))")
        table = CliRunner().invoke(main, ['run/model/last', '--config', 'lines_config.py']).stdout
        assert len(table.splitlines()) == 4 and r'1\n2' in table and r'a\nb' in table
        assert table.endswith('mean of the return: 1.000 in 1 problems\n')
        both = CliRunner().invoke(main, ['run/model/last', '--task', 'think_answer', '--config', CONFIG])
        assert both.exit_code == 2 and 'give --task alone' in both.output
        typed = CliRunner().invoke(main, ['run/model/last'], input=f'{completion[0]}\n\n').stdout
        assert typed == completion[1] + '\n'

    def test_screen_shows_progress_and_not_the_log(self, think_answer, capfd):
        main, create = think_answer
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=2)
        out, err = capfd.readouterr()
        assert err == ''
        assert 'update 1 of 2  00:' in out and 'tokens/s' in out and 'evaluation  update 0  return' in out
        assert 'completions at update 0' in out and 'models: run/model' in out
        assert len(out.splitlines()) < 25 and '[EVALUATOR]' not in out and 'Training Iteration' not in out


def evaluate(policy):
    """Prompt to greedy completion, for the four questions, through the environment."""
    from dizoo_llm.envs import TokenEnv
    env = TokenEnv(max_new_tokens=policy._actor.spec.max_new_tokens)
    found = {}
    for index in range(4):
        obs, _ = env.reset(options=dict(index=index))
        *_, info = env.step(policy.eval_mode.forward({0: obs})[0]['action'].numpy())
        found[info['prompt']] = info['completion']
    return found


@pytest.mark.envtest
class TestFromPython:

    def test_model_made_in_memory(self, think_answer, tiny_model):
        main, create = think_answer
        before = tiny_model.lm.lm_head.weight.clone()
        policy = serial_pipeline_onpolicy((main, create), model=tiny_model.lm, max_train_iter=2)
        assert policy._model.lm is tiny_model.lm and not torch.equal(before, tiny_model.lm.lm_head.weight)

    @pytest.mark.parametrize('vocab_size', [32, 40])
    def test_model_folder_as_start_with_the_tokenizer_beside_it(self, think_answer, tiny_config, vocab_size):
        from ding_grpo.model import CausalLM
        from dizoo_llm.tasks import ThinkAnswerTask
        from dizoo_llm.text.tokenizer import build_word_tokenizer
        CausalLM(config={
            **tiny_config, 'vocab_size': vocab_size
        }).save_pretrained('start', build_word_tokenizer(ThinkAnswerTask.words))
        main, create = think_answer
        main.env.tokenizer = dict(pretrained='start')
        main.policy.model = dict(pretrained='start')
        main.policy.learn.update(beta=0.1, learning_rate=1e-3)
        policy = serial_pipeline_onpolicy((main, create), max_train_iter=3)
        assert read_json_lines('run/log/learner/metrics.jsonl')[0]['kl'] == pytest.approx(0, abs=1e-5)
        model = AutoModelForCausalLM.from_pretrained('run/model/last')
        tokenizer = AutoTokenizer.from_pretrained('run/model/last')
        for prompt, completion in evaluate(policy).items():
            ids = tokenizer(prompt, return_tensors='pt').input_ids
            longest = dict(max_new_tokens=main.env.max_new_tokens)  # the folder of the start sets none
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **longest)[0, ids.shape[1]:].tolist()
            out = out[:-1] if out[-1] == tokenizer.eos_token_id else out
            assert tokenizer.decode(out) == completion

    def test_processes_give_the_same_run(self, think_answer):
        main, create = think_answer
        weights = []
        for manager in ('base', 'subprocess'):
            main.exp_name = create.env_manager.type = manager
            policy = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=3)
            weights.append(torch.cat([p.detach().flatten() for p in policy._model.parameters()]))
        assert torch.equal(*weights)

    def test_same_seed_same_run(self, think_answer):
        main, create = think_answer
        rewards = []
        for name, seed in (('a', 3), ('b', 3), ('c', 4)):
            main.exp_name = name
            policy = serial_pipeline_onpolicy((main, create), seed=seed, max_train_iter=3)
            weights = torch.cat([p.detach().flatten() for p in policy._model.parameters()])
            rewards.append((weights, [m['reward_mean'] for m in read_json_lines(f'{name}/log/learner/metrics.jsonl')]))
        assert torch.equal(rewards[0][0], rewards[1][0]) and rewards[0][1] == rewards[1][1]
        assert not torch.equal(rewards[0][0], rewards[2][0])

    def test_notebooks_own_setting(self, think_answer):
        """G=3, ten epochs over each collect, beta 0.01, two prompts. Its learning rate of 1e-6 teaches nothing: AdamW
        moves a weight by about the rate a step, so that ten steps move weights of size 0.02 by a 2,000th; nor does
        its clipping ever act. With 1e-3 the same setting learns."""
        main, create = think_answer
        main.policy.group_size = 3
        main.env.collector_env_num = 6
        main.policy.collect.n_sample = 2
        main.policy.learn.update(epoch_per_collect=10, batch_size=2, beta=0.01, adv_method='grpo', entropy_weight=0.0)
        moved, clipped = {}, {}
        for rate in (1e-6, 1e-3):
            main.exp_name = f'rate_{rate}'
            main.policy.learn.learning_rate = rate
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=3)
            metrics = read_json_lines(f'rate_{rate}/log/learner/metrics.jsonl')
            moved[rate] = max(m['kl'] for m in metrics)
            clipped[rate] = max(m['clipfrac'] for m in metrics)
            assert len(metrics) == 3 and all(m['completion_length_mean'] > 0 for m in metrics)
        assert moved[1e-6] < 1e-4 and clipped[1e-6] == 0
        assert moved[1e-3] > 100 * moved[1e-6] and clipped[1e-3] > 0.05

    def test_failing_task_keeps_the_last_checkpoint(self, think_answer, monkeypatch):
        from dizoo_llm.tasks import ThinkAnswerTask
        main, create = think_answer
        main.policy.learn.learner = dict(hook=dict(save_ckpt_after_iter=1))
        score, calls = ThinkAnswerTask.score, []

        def fail_later(self, problem, completion):
            calls.append(completion)
            parts = score(self, problem, completion)
            return parts if len(calls) < 30 else dict(parts, answer=float('nan'))

        monkeypatch.setattr(ThinkAnswerTask, 'score', fail_later)
        with pytest.raises(TaskError, match='answer = nan.*<think> 2 3 4'):
            serial_pipeline_onpolicy((main, create), seed=0)
        newest = max(glob.glob('run/ckpt/iteration_*'), key=os.path.getmtime)
        assert torch.load(newest, weights_only=True)['last_iter'] >= 1

    @pytest.mark.parametrize(
        'section, key, value, message', [
            ('policy', 'lern', {}, "policy.lern = {}: unknown key; did you mean 'learn'"),
            ('policy', 'collect', 5, 'policy.collect = 5: must be a dict'),
            ('policy', 'group_sise', 4, "policy.group_sise = 4: unknown key; did you mean 'group_size'"),
            ('env', 'max_new_token', 4, "env.max_new_token = 4: unknown key; did you mean 'max_new_tokens'"),
            ('env', 'collector_env_num', 6, 'env.collector_env_num = 6: must be a multiple'),
            ('env', 'max_new_tokens', 60, 'env.max_new_tokens = 60: 79 tokens are more than the 64 positions'),
            (
                'env', 'tokenizer', dict(words=[*ThinkAnswerTask.words, *'abcdefghijk']
                                         ), 'its vocabulary of 43 tokens does not'
            ),
        ]
    )
    def test_wrong_config_stops_before_training(self, think_answer, section, key, value, message):
        main, create = think_answer
        main[section][key] = value
        with pytest.raises(ConfigError, match=message):
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
        assert not os.path.exists('run/log/learner/metrics.jsonl')


@pytest.mark.envtest
class TestCommandLine:

    def test_ding(self, tmp_path):
        path = write_config(tmp_path)
        code, out, err = call([DING, *f'-m serial_onpolicy -c {path} -s 1 --train-iter 2'.split()], tmp_path)
        assert code == 0, err
        assert 'Traceback' not in err and os.path.exists(tmp_path / 'run' / 'model' / 'best' / 'model.safetensors')

    def test_python_file_is_quiet_and_takes_options(self, tmp_path):
        code, out, err = call([sys.executable, CONFIG, *'--train-iter 1 -s 3 --exp-name mine'.split()], tmp_path)
        assert (code, err) == (0, ''), err
        assert os.path.exists(tmp_path / 'mine' / 'curve.png') and 'Gym has been unmaintained' not in out

    def test_one_line_for_a_wrong_config(self, tmp_path):
        path = write_config(tmp_path, 'main_config.policy.learn.lerning_rate = 1e-3')
        code, out, err = call([sys.executable, '-m', 'ding_grpo', '-m', 'serial_onpolicy', '-c', path], tmp_path)
        assert code == 1 and out == ''
        assert len(err.splitlines()) == 1 and err.startswith('Error: policy.learn.lerning_rate = 0.001: unknown key')

    def test_one_line_for_a_failing_task(self, tmp_path):
        code = (
            "from dizoo_llm.tasks import ThinkAnswerTask\n"
            "def score(self, problem, completion):\n    return dict(answer=1 / 0, format=0, solved=0)\n"
            "ThinkAnswerTask.score = score"
        )
        code, out = Process(run_ding, f'-m serial_onpolicy -c {write_config(tmp_path, code)}', tmp_path).end()
        assert code == 1 and 'Traceback' not in out
        last = out.splitlines()[-1]  # before it DI-engine logs that an environment has failed
        assert last.startswith(
            'Error: 4 of 4 completions could not be scored, more than policy.eval.evaluator.max_failed'
        )
        assert 'ThinkAnswerTask raised ZeroDivisionError' in last and '<think> 2 3 4' in last
        assert len(out.splitlines()) <= 5

    @pytest.mark.parametrize('manager, number', [('base', signal.SIGINT), long('subprocess', signal.SIGTERM)])
    def test_interrupt_saves_and_ends_without_a_traceback(self, tmp_path, manager, number):
        path = write_config(tmp_path, f"main_config.env.stop_value = 9.0\ncreate_config.env_manager.type = '{manager}'")
        process = subprocess.Popen(
            [DING, '-m', 'serial_onpolicy', '-c', path],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        metrics = tmp_path / 'run' / 'log' / 'learner' / 'metrics.jsonl'
        deadline = time.time() + 120
        while time.time() < deadline and not (metrics.exists() and len(read_json_lines(str(metrics))) > 3):
            time.sleep(0.05)
        os.killpg(process.pid, number)  # as a terminal and torchrun do: to the environments' processes, too
        out, err = process.communicate(timeout=120)
        assert process.returncode == 128 + number and 'Traceback' not in err, err
        updates = len(read_json_lines(str(metrics)))
        assert f'{number.name}: saving after update {updates}' in out
        state = torch.load(tmp_path / 'run' / 'ckpt' / f'iteration_{updates}.pth.tar', weights_only=True)
        assert state['last_iter'] == updates
        assert json.load(open(tmp_path / 'run' / 'model' / 'last' / 'config.json'))['hidden_size'] == 32


@pytest.mark.algotest
@pytest.mark.parametrize('seed', range(5))
def test_think_answer_is_solved(tmp_path, seed):
    code, out, err = call([DING, *f'-m serial_onpolicy -c {CONFIG} -s {seed} --train-iter 600'.split()], tmp_path)
    assert code == 0, err
    folder = tmp_path / 'runs' / 'think_answer_grpo'
    assert read_json_lines(str(folder / 'log' / 'evaluator' / 'evaluations.jsonl'))[-1]['eval_episode_return'] == 1
