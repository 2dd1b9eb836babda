"""A run as one Python object."""
import importlib
import os
import runpy
import signal
import threading

import gymnasium
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from click.testing import CliRunner
from gymnasium.envs.classic_control import CartPoleEnv
from transformers import AutoConfig, AutoModelForCausalLM

from ding_common import ConfigError, read_config_file
from ding_grpo import GRPO
from ding_grpo.bonus import GRPOAgent
from ding_grpo.train import train
from ding_grpo.logs.hook import CallHook
from dizoo_llm.text.tokenizer import build_char_tokenizer
from tests.bonus.helper import CHARS, ROWS, TINY, right, small
from tests.dizoo_llm.helper import write
from tests.processes import Process, run_code, run_ding
from tests.runs import metrics, weights

pytestmark = [pytest.mark.envtest, pytest.mark.usefixtures('own_folder')]
FEW = dict(groups=1, group_size=2, n_evaluator_episode=1, exp_name='run')  # of environments of gymnasium


def varied(completion):
    return float(len(set(completion)))


def same(a, b):
    return all(torch.equal(value, b[name]) for name, value in a.items())


class TestTexts:

    def test_its_config_gives_the_same_run_from_the_command_line(self, capsys):
        run = small().train(updates=3)
        assert run.folder == 'run'
        told = capsys.readouterr().out
        assert 'random weights, where you set no other: learning_rate 0.0003' in told
        assert 'python -m ding_grpo -m serial_onpolicy -c run/config.py -s 0  # the same run again' in told
        assert told.count('columns: prompt') == 1 and 'problems are held out; their accuracy is uncertain' in told
        policy = serial_pipeline_onpolicy(read_config_file('run/config.py'), seed=0)
        assert same(weights(run.policy), weights(policy)) and len(metrics()) == 3

    def test_it_goes_on_as_if_it_had_not_ended(self):
        """By itself, after Ctrl-C, and by its folder."""

        def on_update(run, found):
            if found['update'] == 4:
                os.kill(os.getpid(), signal.SIGINT)

        whole = small(exp_name='whole').train(updates=6)
        parts = small(exp_name='parts', on_update=on_update).train(updates=2).train(updates=1)
        with pytest.raises(KeyboardInterrupt, match='saved after update 4; train'):
            parts.train(updates=3)
        loaded = GRPO.load('parts').train(updates=2)  # more than it has made, not than it was asked for
        assert same(weights(whole.policy), weights(loaded.policy)) and loaded.folder == parts.folder == 'parts'
        assert [m['reward_mean'] for m in metrics('whole')] == [m['reward_mean'] for m in metrics('parts')]

    def test_what_is_read_of_it(self):
        run = small()
        before = run.evaluate(samples=2)
        assert before['episodes'] == 2 and before['interval'][0] <= before['return'] <= before['interval'][1]
        assert {'mean', 'low', 'high'} == set(before['pass_at_2'])
        run.train(updates=2)
        text = run.generate('1+1=')
        assert set(text) <= set(CHARS) | set('<unk>') and run.generate(['1+1=', '2+2=']) == [text, run.generate('2+2=')]
        run.save('saved')
        saved = AutoModelForCausalLM.from_pretrained('saved')
        assert same(saved.state_dict(), run.model.state_dict()) and run.tokenizer.encode('1')
        loaded = GRPO.load('run')
        assert loaded.evaluate()['return'] == run.evaluate()['return'] and loaded.generate('1+1=') == text

    def test_a_model_of_transformers_with_its_tokenizer(self):
        tokenizer = build_char_tokenizer(CHARS)
        model = AutoModelForCausalLM.from_config(small()._build() or small().model.config)
        run = GRPO(model, tokenizer, data=ROWS, reward=right, max_new_tokens=2, group_size=4, groups=2)
        assert run.main_config.policy.learn.learning_rate == 1e-5  # pretrained weights
        assert same(model.state_dict(), run.model.state_dict())
        run.train(updates=1)
        assert run.folder.startswith('runs/') and run.tokenizer.get_vocab() == tokenizer.get_vocab()

    def test_adapters_of_peft_are_trained_further(self):
        peft = pytest.importorskip('peft')
        small().model.save_pretrained('base')
        base, config = AutoModelForCausalLM.from_pretrained('base'), peft.LoraConfig(r=2, target_modules=['q_proj'])
        adapted = peft.get_peft_model(base, config)
        with torch.no_grad():
            for name, p in adapted.named_parameters():
                if 'lora_B' in name:
                    p.normal_()
        run = GRPO(adapted, build_char_tokenizer(CHARS), data=ROWS, reward=varied, max_new_tokens=2, groups=2)
        assert run.main_config.policy.learn.learning_rate == 1e-4  # adapters
        before = peft.get_peft_model_state_dict(run.model)
        assert same(peft.get_peft_model_state_dict(adapted), before)
        before = {name: value.clone() for name, value in before.items()}
        run.train(updates=2)
        assert not same(before, peft.get_peft_model_state_dict(run.model))
        base.name_or_path = config.base_model_name_or_path = ''
        with pytest.raises(ConfigError, match='the base model of these adapters has no name'):
            GRPO(adapted, data=ROWS, reward=right)

    def test_functions_are_called_and_an_error_of_theirs_saves_the_run(self):
        seen, paths = [], []

        def on_update(run, found):
            seen.append((found['update'], round(found['reward_mean'], 3)))
            if found['update'] == 3:
                raise RuntimeError('enough')

        run = small(
            on_update=on_update,
            on_evaluation=lambda run, found: seen.append(found['train_iter']),
            on_checkpoint=lambda run, path: paths.append(os.path.basename(path)),
            eval_freq=2,
            save_ckpt_after_iter=2
        )
        with pytest.raises(RuntimeError, match='enough'):
            run.train(updates=9)
        told = [round(m['reward_mean'], 3) for m in metrics()]
        assert seen == [0, (1, told[0]), (2, told[1]), 2, (3, told[2])]
        assert paths[0] == 'ckpt_best.pth.tar' and 'iteration_2.pth.tar' in paths

    def test_an_error_of_on_checkpoint_is_not_one_of_saving(self, capsys):

        def on_evaluation(run, found):
            assert found['train_iter'] < 2, 'enough'

        def on_checkpoint(run, path):
            assert 'iteration' not in path

        with pytest.raises(AssertionError, match='enough'):
            small(on_evaluation=on_evaluation, on_checkpoint=on_checkpoint, eval_freq=2).train(updates=3)
        out = capsys.readouterr().out
        assert 'saved after update 2' in out and 'could not be saved' not in out

    def test_what_its_instruments_show(self, capsys):
        run = small(save_ckpt_after_iter=1).train(updates=2)
        assert run.why().startswith('# Findings of run') and os.path.getsize(run.report()) > 10_000
        capsys.readouterr()
        run.replay(update=1, group=2, fork='0:1')
        assert 'row 0 until token 1' in capsys.readouterr().out
        run.replay(update=1, group=2, rows=[0])
        out = capsys.readouterr().out
        assert 'group 2' in out and 'row 0' in out
        with pytest.raises(ConfigError, match='GRPO.replay..: the run has not begun.'):
            small(exp_name='other').replay(1)

    def test_one_pass_over_the_data_where_nothing_else_ends_the_run(self, capsys):
        run = small(groups=8).train()
        assert len(metrics()) == 3 and 'train(): 3 updates, one pass over 23 problems' in capsys.readouterr().out
        assert run.main_config.policy.run.num_updates == 3

    def test_in_a_thread_and_with_a_hook_of_ding_engine(self):
        seen = []
        hook = CallHook('count', 0, position='after_iter', function=lambda engine: seen.append(engine.train_iter))
        thread = threading.Thread(target=lambda: small(on_update=hook).train(updates=2))
        thread.start()
        thread.join()
        assert seen == [0, 1] and len(metrics()) == 2

    def test_a_shipped_task_and_a_shipped_config(self):
        run = GRPO(
            task='guess', max_turns=2, group_size=4, groups=2, max_new_tokens=2, exp_name='game'
        ).train(updates=1)
        assert len(metrics('game')) == 1 and run.main_config.env.task == dict(type='guess')
        run = GRPO.from_config('think_answer_grpo', group_size=4, groups=2, exp_name='shipped').train(updates=1)
        total = runpy.run_path('shipped/total_config.py')['exp_config']
        assert total['env']['collector_env_num'] == 8 and len(metrics('shipped')) == 1


class TestGymnasium:

    def test_an_environment_with_a_shipped_config(self, capsys):
        run = GRPO(env='CartPole-v1', stop_value=20, n_evaluator_episode=4).train(step=3000)
        assert 'those of the config cartpole_grpo' in capsys.readouterr().out
        with open(f'{run.folder}/config.py') as f:
            assert '-s 0 --env-step 3000\n' in f.read()
        found = run.evaluate()
        low, high = found['interval']
        assert found['episodes'] == 4 and low <= found['return'] <= high and GRPOAgent is GRPO

    @pytest.mark.parametrize('env', ['MountainCarContinuous-v0', 'CliffWalking-v1'])
    def test_one_by_its_spaces(self, env):
        GRPO(env=env, env_kwargs=dict(max_episode_steps=20), **FEW).train(updates=1)
        assert len(metrics()) == 1

    def test_one_of_the_user(self, tmp_path, monkeypatch):
        (tmp_path / 'my_env.py').write_text(
            "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n\nclass MyEnv(CartPoleEnv):\n"
            "    pass\n\n\ngymnasium.register('My-v0', MyEnv, max_episode_steps=20)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        importlib.import_module('my_env')
        GRPO(env='My-v0', **FEW).train(updates=1)
        run_again()

    def test_one_that_the_script_registers_is_repeated_by_no_command(self, capsys):
        kind = type('MyEnv', (CartPoleEnv, ), dict(__module__='__main__'))
        gymnasium.register('OfScript-v0', kind, max_episode_steps=20)
        GRPO(env='OfScript-v0', **FEW).train(updates=1)
        told = capsys.readouterr().out
        assert 'config.py alone cannot repeat this run' in told and 'the same run again' not in told

    def test_a_module_as_its_model(self, capsys):
        made = GRPO(env='CartPole-v1')
        GRPO(made.model, env='CartPole-v1', **FEW).train(updates=1)
        assert len(metrics()) == 1 and 'the same run again' not in capsys.readouterr().out


@pytest.mark.parametrize(
    'arguments, message', [
        ({}, 'GRPO(...): needs one of data, task and env; it has none.'),
        (dict(data=ROWS, env='CartPole-v1'), 'needs one of data, task and env; it has data and env.'),
        (dict(data=ROWS), 'GRPO(data=...): needs a model, such as a folder or a name.'),
        (dict(env='CartPole-v1', reward=right), 'reward and eval_data need data.'),
        (dict(env=dict), 'must be an id of gymnasium. Register yours: gymnasium.register(ID, YourClass).'),
        (dict(env='CartPoll-v1'), "GRPO(env='CartPoll-v1'): cannot be created"),
        (dict(model=3, data=ROWS), 'GRPO(model=3): must be a name, a folder, a model, or a dict.'),
        (dict(env='CartPole-v1', group_sise=8), "GRPO(group_sise=...): did you mean 'group_size'? "),
        (dict(env='CartPole-v1', num_generations=8), 'a word of trl; here: policy.group_size.'),
        (dict(env='CartPole-v1', weight=8), 'GRPO(weight=...): several keys have this name: policy.learn.'),
        (dict(env='CartPole-v1', group_size='8'), "policy.group_size = '8': must be an integer of at least 1"),
        (dict(env='MountainCar-v0', stop_value=1e9), 'GRPO.train(): nothing would end this run.'),
    ]
)
def test_one_line_for_what_is_wrong(arguments, message):
    with pytest.raises(ConfigError) as error:
        GRPO(**arguments).train()
    assert message in error.value.message and '\n' not in error.value.message


def test_a_config_of_another_kind_is_not_run(tmp_path):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'config.py').write_text('raise SystemExit')
    with pytest.raises(ConfigError, match='run/config.py: is not the config of a run of GRPO'):
        GRPO.load('run')


def test_one_line_of_a_shell(tmp_path):
    write(tmp_path / 'train.jsonl', ROWS)
    (tmp_path / 'rewards.py').write_text('def right(completion, answer):\n    return completion == answer\n')
    keys = ['max_new_tokens=2', 'group_size=4', 'groups=4', 'learning_rate=1e-2', f'env.tokenizer={dict(chars=CHARS)}']
    words = ['--data', 'train.jsonl', '--reward', 'rewards.py:right', '--updates', '3', '--exp-name', 'line', *keys]
    result = CliRunner().invoke(train, [*words, f'policy.model={dict(config=TINY)}', '--save', 'saved'])
    assert result.exit_code == 1 and 'GRPO(data=...): needs a model' in result.output
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY, vocab_size=16)).save_pretrained('tiny')
    result = CliRunner().invoke(train, ['--model', 'tiny', *words, '--save', 'saved'])
    assert result.exception is None and 'line/config.py -s 0  # the same run again' in result.output, result.output
    assert len(metrics('line')) == 3 and AutoModelForCausalLM.from_pretrained('saved').num_parameters() > 0


def run_again():
    """Run the config of the run in a process of its own, and compare."""
    code, told = Process(run_ding, '-m serial_onpolicy -c run/config.py -s 0 --exp-name again', os.getcwd()).end()
    assert code == 0, told
    assert [m['reward_mean'] for m in metrics('again')] == [m['reward_mean'] for m in metrics()] != []


def test_a_script_and_its_reward_function(tmp_path):
    """Neither trains again when the config runs: the function has a file of its own."""
    (tmp_path / 'script.py').write_text(
        f'from ding_grpo import GRPO\n\n\ndef right(completion, answer):\n    return float(completion == answer)\n\n\n'
        f'rows = {ROWS[:6]!r}\nGRPO(dict(config={TINY!r}), data=rows, reward=right, max_new_tokens=2, group_size=2, '
        f"groups=2, exp_name='run', eval_size=2, **{{'env.tokenizer': dict(chars={CHARS!r})}}).train(updates=2)\n"
    )
    program = "import runpy; runpy.run_path('script.py', run_name='__main__')"
    code, told = Process(run_code, program, tmp_path).end()
    assert code == 0 and len(metrics()) == 2, told
    run_again()
