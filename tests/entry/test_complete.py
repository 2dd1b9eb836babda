"""What a config may leave out: each derived value is derived when left out, and untouched when written."""
import copy
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from ding.config import compile_config
from easydict import EasyDict

from ding_common import ConfigError, read_config_file, shipped_config
from ding_grpo import check
from ding_grpo.__main__ import command
from ding_grpo.entry import complete
from tests.runs import train
from tests.shipped import names, path_of, small, write

TOKENS = dict(env=dict(type='token_env'), policy=dict(type='grpo'))
STEPS = dict(env=dict(type='gymnasium_env'), policy=dict(type='grpo'))
LLAMA = dict(model_type='llama', hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
TASK = dict(type='think_answer')


def completed(create=TOKENS, policy={}, **env):
    """(env, policy, create_config) of a config that has only these keys."""
    env = env or dict(task=TASK)
    main, create = EasyDict(env=copy.deepcopy(env), policy=copy.deepcopy(policy)), EasyDict(copy.deepcopy(create))
    assert complete(main, create) is create
    return main.env, main.policy, create


class TestNames:

    def test_of_the_plugin_unless_they_are_written(self):
        assert completed()[2] == dict(
            env=dict(type='token_env', import_names=['ding_grpo']),
            env_manager=dict(type='base'),
            policy=dict(type='grpo'),
            collector=dict(type='group')
        )
        written = dict(
            env=dict(type='token_env', import_names=['ding_grpo', 'dizoo_llm']),
            env_manager=dict(type='subprocess'),
            policy=dict(type='grpo'),
            collector=dict(type='sample'),
            evaluator=dict(type='group')
        )
        assert completed(written)[2] == written
        of_steps = completed(dict(TOKENS, policy=dict(type='ppo')))[2]
        assert 'collector' not in of_steps and of_steps.env_manager.type == 'base'

    @pytest.mark.parametrize(
        'create, env, message', [
            (dict(env_manager=5), {}, 'create_config.env_manager = 5: must be a dict'),
            ({}, dict(task=dict(type='thnk_answer')), "env.task.type = 'thnk_answer': unknown task; did you mean"),
            ({}, dict(task=5), "env.task = 5: must be a dict with the key 'type'"),
            ({}, dict(max_new_tokens=5), 'env.task.type = None: unknown task'),
            ({}, dict(task=TASK, max_new_token=5), 'env.max_new_token = 5: unknown key; did you mean'),
        ],
        ids=str
    )
    def test_one_line_for_others(self, create, env, message):
        with pytest.raises(ConfigError, match=message):
            completed(dict(TOKENS, **create), **env)


class TestNumbers:

    @pytest.mark.parametrize(
        'policy, number',
        [
            ({}, 8 * 8),  # the defaults of collect.groups and group_size
            (dict(group_size=4, collect=dict(groups=3)), 12),
            (dict(group_size=4, collect=dict(groups=3, extra_rows=1)), 15),
            (dict(group_size=16, collect=dict(groups=10 ** 5)), 1024),
            (dict(group_size=24, collect=dict(groups=10 ** 5)), 1008),  # whole groups
            (dict(group_size=2000), 2000),
            # values that the run refuses derive nothing
            (dict(group_size='4'), None),
            (dict(collect=5), None),
        ],
        ids=str
    )
    def test_collector_environments(self, policy, number):
        assert completed(policy=policy)[0].get('collector_env_num') == number
        assert completed(policy=policy, task=TASK, collector_env_num=7)[0].collector_env_num == 7

    @pytest.mark.parametrize(
        'create, env, episodes, environments',
        [
            (TOKENS, dict(task=TASK), 4, 4),
            (TOKENS, dict(task=dict(type='products')), 200, 128),
            (TOKENS, dict(task=dict(type='arithmetic', operations='+-', low=1, high=99, eval_size=1000)), 512, 128),
            (TOKENS, dict(task=dict(type='products'), n_evaluator_episode=3), 3, 3),
            (TOKENS, dict(task=dict(type='products'), evaluator_env_num=2), 200, 2),
            (STEPS, dict(env_id='CartPole-v1'), None, None),  # has no number of problems
            (STEPS, dict(env_id='CartPole-v1', n_evaluator_episode=100), 100, 100),
        ]
    )
    def test_evaluation(self, create, env, episodes, environments):
        found = completed(create, **env)[0]
        assert (found.get('n_evaluator_episode'), found.get('evaluator_env_num')) == (episodes, environments)

    def test_evaluation_of_the_problems_that_are_not_dropped(self, tmp_path):
        rows = [dict(question=text, answer='a') for text in ('a', 'b b b b', 'c', 'd')]
        (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, rows)))
        task = dict(type='file', path=str(tmp_path / 'a.jsonl'))
        env = dict(task=task, tokenizer=dict(words=list('abcd')), max_prompt_length=2)
        assert completed(overlong_prompts='drop', **env)[0].n_evaluator_episode == 3
        assert completed(**env)[0].n_evaluator_episode == 4  # the run ends with an error about the second one

    @pytest.mark.parametrize(
        'config, env, size', [
            (LLAMA, {}, 32),
            (dict(LLAMA, vocab_size=40), {}, 40),
            (LLAMA, dict(task=TASK, tokenizer=dict(chars='ab')), 5),
        ]
    )
    def test_vocabulary(self, config, env, size):
        assert completed(policy=dict(model=dict(config=config)), **env)[1].model.config == dict(LLAMA, vocab_size=size)

    @pytest.mark.parametrize('model', [dict(pretrained='a/b'), dict(pretrained='a/b', gguf_file='c.gguf')], ids=str)
    def test_tokenizer(self, model):
        assert completed(policy=dict(model=dict(model, dtype='float32')))[0].tokenizer == model
        for written in (dict(pretrained='c/d'), None):
            assert completed(policy=dict(model=model), task=TASK, tokenizer=written)[0].tokenizer == written
        assert 'tokenizer' not in completed(policy=dict(model=dict(config=LLAMA)))[0]

    def test_tokenizer_of_a_folder_that_may_have_none(self, tmp_path):
        policy = dict(model=dict(pretrained=str(tmp_path)))
        assert 'tokenizer' not in completed(policy=policy)[0]  # the task has words
        (tmp_path / 'tokenizer.json').write_text('{}')
        assert completed(policy=policy)[0].tokenizer.pretrained == str(tmp_path)


class TestShipped:

    def test_a_shipped_config_has_what_its_file_writes(self, tmp_path):
        main, create = shipped_config('think_answer_grpo')
        assert set(main.env) == {'task', 'max_new_tokens', 'stop_value'} and set(create) == {'env', 'policy'}
        main.policy.group_size = 4
        complete(main, create)
        assert main.env.collector_env_num == 4 * main.policy.collect.groups
        assert shipped_config('think_answer_grpo')[0].policy.group_size == 16
        # one that starts from another, and one that is written from a shipped one
        assert 'collector_env_num' not in shipped_config('think_answer_gae')[0].env
        assert read_config_file(path_of('think_answer_gae'))[0].env.collector_env_num == 256
        main, create = read_config_file(write(tmp_path / 'c.py', shipped_config('guess_grpo')))
        assert 'collector_env_num' not in main.env and 'env_manager' not in create

    def test_another_folder_and_the_environment_and_the_model_of_another(self):
        main, create = shipped_config('think_answer_ppo', 'runs/mine', env_of='guess_grpo')
        guess, ppo = shipped_config('guess_grpo')[0], shipped_config('think_answer_ppo')[0]
        assert main.env == dict(guess.env, collector_env_num=256) and main.exp_name == 'runs/mine'
        assert main.policy == dict(ppo.policy, model=dict(guess.policy.model, type='causal_lm_vac'))
        assert create.policy.type == 'ppo' and guess.exp_name == 'runs/guess_grpo'

    @pytest.mark.parametrize('arguments', [dict(name='think_answer'), dict(name='guess_gae', env_of='think_answer')])
    def test_an_unknown_name(self, arguments):
        with pytest.raises(ConfigError, match=r"shipped_config\('think_answer'\): there is no such config; did you me"):
            shipped_config(**arguments)

    @pytest.mark.parametrize('name', names())
    def test_each_is_short_and_compiles(self, name):
        with open(path_of(name)) as f:
            assert len(f.readlines()) <= 30
        if any(word in name for word in ('_grpo', '_ppo')) or name.endswith('_gae'):
            main, create = read_config_file(path_of(name))
            main.policy.cuda = False
            create.policy.type += '_command'
            cfg = compile_config(main, seed=0, auto=True, create_cfg=create, save_cfg=False)
            assert cfg.policy.eval.evaluator.n_episode == cfg.env.n_evaluator_episode >= cfg.env.evaluator_env_num


SHORT = '''
from easydict import EasyDict
llama = dict(model_type='llama', hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
main_config = EasyDict(
    exp_name='run',
    env=dict(task=dict(type='think_answer'), stop_value=9),
    policy=dict(
        group_size=2,
        model=dict(config=llama),
        learn=dict(batch_groups=2),
        run=dict(num_updates=1),
        collect=dict(groups=2),
    ),
)
create_config = EasyDict(env=dict(type='token_env'), policy=dict(type='grpo'))
'''


@pytest.mark.envtest
class TestWaysIn:

    def test_commands(self, tmp_path, own_folder):
        (tmp_path / 'short.py').write_text(SHORT)
        for options in ('-m serial_onpolicy', '-m eval --load-path run/ckpt/ckpt_best.pth.tar'):
            result = CliRunner().invoke(command(), ['-c', 'short.py', *options.split()])
            assert result.exception is None, result.output
        assert 'Eval is over!' in result.output
        assert 'findings: ' in CliRunner().invoke(check.main, ['-c', 'short.py']).output

    def test_from_python_the_configs_of_the_caller_stay(self, own_folder):
        main, create = small('think_answer_grpo', policy=dict(run=dict(num_updates=1)))
        for key in ('collector_env_num', 'evaluator_env_num', 'n_evaluator_episode'):
            main.env.pop(key)
        create.pop('env_manager')
        before = copy.deepcopy((main, create))
        train((main, create))
        assert (main, create) == before

    @pytest.mark.parametrize(
        'name, keys',
        [
            ('think_answer_ppo', ['collector_env_num']),  # n_sample counts steps
            ('cartpole_grpo', ['evaluator_env_num', 'n_evaluator_episode']),
        ]
    )
    def test_one_line_where_a_number_cannot_be_derived(self, own_folder, name, keys):
        main, create = small(name)
        for key in keys:
            main.env.pop(key)
        with pytest.raises(ConfigError, match=f'env.{keys[0]}: missing; must be an integer of at least 1'):
            train((main, create))

    def test_one_line_without_an_environment(self, own_folder):
        main, create = small('think_answer_grpo')
        create.pop('env')
        with pytest.raises(ConfigError, match='^create_config.env.type: missing; must be a registered environment'):
            train((main, create))
        assert os.listdir() == []

    def test_ppo_needs_no_part_of_this_plugin_to_read_its_config(self):
        program = (
            "import runpy, sys\n"
            f"runpy.run_path({path_of('cartpole_ppo')!r})\n"
            "assert not {'ding_grpo', 'ding_common', 'ding'} & set(sys.modules)"
        )
        assert subprocess.run([sys.executable, '-c', program]).returncode == 0
