"""A run that is stopped and resumed is the run that was not stopped, bit for bit."""
import glob
import os
import shutil
import subprocess
import sys
import time

import ding.entry
import gymnasium
import pytest
import torch
from ding.entry import serial_pipeline, serial_pipeline_onpolicy
from ding.utils import MODEL_REGISTRY
from easydict import EasyDict
from gymnasium.envs.classic_control import CartPoleEnv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dizoo_llm.tasks import ThinkAnswerTask
from ding_common import CheckpointError, ConfigError, NumericError, read_json_lines
from ding_grpo.model import CausalLM
from ding_grpo.policy import GRPOPolicy

from tests.cases import brief
from tests.same import same
from tests.shipped import small


def tokens(think_answer):
    main, create = think_answer
    main.policy.learn.lr_scheduler = EasyDict(type='linear', num_training_steps=30)
    main.policy.learn.update(epoch_per_collect=2, batch_size=1, learning_rate=1e-3)
    return serial_pipeline_onpolicy, main, create


def reference(think_answer):
    pipeline, main, create = tokens(think_answer)
    main.policy.learn.update(beta=1, ref_sync_freq=3, ref_sync_mixup=0.5)
    main.policy.learn.update(kl_target=1e-4, kl_horizon=20, entropy_weight=0, entropy_target=9.0)
    return pipeline, main, create


def dynamic(think_answer):
    pipeline, main, create = tokens(think_answer)
    main.policy.learn.tokens_freq = 2
    main.policy.collect.collector = EasyDict(max_replacements=3)
    main.policy.eval.evaluator.samples_per_start = 2
    return pipeline, main, create


def curriculum(think_answer):
    pipeline, main, create = tokens(think_answer)
    main.policy.learn.adv_method = 'remax'
    main.policy.collect.update(
        problem_order='pools',
        pools=EasyDict(success_from=0.1, hard_to=0.2, hard_share=0.3),
        collector=EasyDict(max_replacements=1, reward_range=(0.0, 0.9)),
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.2,
        logit_bias=[(3, 0.5)],
        extra_rows=4
    )
    return pipeline, main, create


def lora(think_answer):
    pipeline, main, create = tokens(think_answer)
    torch.manual_seed(0)
    CausalLM(config=dict(main.policy.model.config)).save_pretrained('base')
    main.policy.model = EasyDict(
        pretrained='base', lora=dict(r=2, lora_alpha=4, target_modules=['q_proj', 'v_proj'], lora_dropout=0.0)
    )
    return pipeline, main, create


def critic(think_answer):
    pipeline, main, create = lora(think_answer)
    own = dict(config=dict(small('think_answer_grpo')[0].policy.model.config))
    main.policy.learn.update(advantage='gae', adv_method=None, critic=own, value_warmup=5, value_clip=0.2)
    return pipeline, main, create


def teacher(think_answer):
    pipeline, main, create = lora(think_answer)
    main.policy.teacher = dict(pretrained='base')
    main.policy.learn.update(advantage='none', adv_method=None, distillation=dict(divergence='jsd'))
    main.policy.learn.demonstrations = dict(share=0.5)
    return pipeline, main, create


def value_head(think_answer):
    pipeline, main, create = steps(think_answer)
    main.policy.learn.update(advantage='gae', extend_truncated=False, value_norm=True)
    return pipeline, main, create


def hybrid(think_answer):
    pipeline, main, create = tokens(think_answer)
    main.policy.model.config.update(model_type='lfm2', num_key_value_heads=2, layer_types=['conv', 'full_attention'])
    return pipeline, main, create


def buffer(think_answer):
    _, main, create = tokens(think_answer)
    main.policy.learn.update(update_per_collect=2, batch_size=2)
    main.policy.other = EasyDict(replay_buffer=dict(replay_buffer_size=8, max_use=3, max_staleness=6))
    main.policy.update(random_collect_size=2, transition_with_policy_data=True)
    return serial_pipeline, main, create


def stale(think_answer):
    pipeline, main, create = dynamic(think_answer)
    main.policy.collect.stale = 1
    main.policy.learn.sampler_correction = 'token'
    return pipeline, main, create


def turns(think_answer):
    main, create = small('key_and_door_grpo')
    main.policy.learn.update(advantage='anchor', epoch_per_collect=2, batch_size=1, learning_rate=1e-3)
    main.policy.eval.evaluator.samples_per_start = 2
    return serial_pipeline_onpolicy, main, create


def steps(think_answer):
    main, create = small('cartpole_grpo')
    main.env.update(evaluator_env_num=3, n_evaluator_episode=7, env_kwargs=dict(max_episode_steps=25))
    return serial_pipeline_onpolicy, main, create


class SeedsTorch(CartPoleEnv):
    """As one that builds a model or a renderer; the run's seed was then taken to be this one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        torch.manual_seed(7)


def noisy(think_answer):
    """Batch norm, whose statistics are part of the weights, and dropout."""
    gymnasium.register(id='SeedsTorch-v1', entry_point=SeedsTorch)
    MODEL_REGISTRY.register('noisy', Noisy, force_overwrite=True)
    pipeline, main, create = steps(think_answer)
    main.env.env_id, main.policy.model = 'SeedsTorch-v1', EasyDict(type='noisy')
    main.policy.learn.update(beta=0.1, ref_sync_freq=2, ref_sync_mixup=0.5)
    return pipeline, main, create


class Noisy(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Dropout(0.1),
            torch.nn.Linear(16, 2)
        )

    def forward(self, x):
        return dict(logit=self.layers(x))


RUNS = dict(
    tokens=tokens,
    reference=reference,
    dynamic_sampling=dynamic,
    curriculum=curriculum,
    lora=lora,
    hybrid=hybrid,
    replay_buffer=buffer,
    turns=turns,
    stale=stale,
    cartpole=steps,
    critic=critic,
    teacher=teacher,
    value_head=value_head,
    noisy=noisy,
)
ALWAYS = ('tokens', 'replay_buffer', 'turns', 'stale', 'cartpole', 'critic', 'noisy')
STOPS = dict(tokens=[2, 4, 6], reference=[2, 4, 6], replay_buffer=[2, 4, 6])  # resumed after it was resumed


def state(number, run='run'):
    return torch.load(f'{run}/ckpt/iteration_{number}.pth.tar', weights_only=True)


def timeless(path):
    measured = ('seconds', 'per_second', 'memory_mib')
    return [{k: v for k, v in r.items() if not any(m in k for m in measured)} for r in read_json_lines(path)]


def board(run):
    """Step and value of every scalar of TensorBoard but those of clock and memory; what was written twice, once."""
    found = {}
    for file in sorted(glob.glob(f'{run}/log/serial/events*')):
        events = EventAccumulator(file, size_guidance=dict(scalars=0)).Reload()
        for tag in events.Tags()['scalars']:
            if not any(word in tag for word in ('second', '_avg', 'time', 'per_sec', 'buffer', 'memory_mib')):
                found.setdefault(tag, {}).update({e.step: e.value for e in events.Scalars(tag)})
    return found


@pytest.mark.envtest
class TestResume:

    @pytest.mark.parametrize('name', brief(RUNS, ALWAYS))
    def test_stopped_and_resumed_is_not_stopped(self, think_answer, name):
        pipeline, main, create = RUNS[name](think_answer)
        main.policy.eval.evaluator.eval_freq = 2
        main.env.stop_value = 1e9
        for exp_name, stops in (('whole', [6]), ('run', STOPS.get(name, [4, 6]))):
            main.exp_name = exp_name
            for i, stop in enumerate(stops):
                main.policy.learn.resume_training = i > 0
                pipeline((main, create), seed=3, max_train_iter=stop)
        same(state(6, 'whole'), state(6))
        assert len(state(6)['run']) >= 5 and state(6)['last_iter'] == 6 and state(6)['run']['seed'] == 3
        logs = 'learner/metrics', 'learner/tokens', 'evaluator/evaluations', 'collector/completions'
        for log in logs:
            assert timeless(f'whole/log/{log}.jsonl') == timeless(f'run/log/{log}.jsonl'), log
        assert len(timeless('run/log/learner/metrics.jsonl')) == 6
        assert not glob.glob('run_*')  # it goes on in its folder

    def test_a_second_run_in_the_folder_ends_in_one_line(self, think_answer):
        """Both wrote into the logs: 131 lines of metrics for 120 updates."""
        pipeline, main, create = tokens(think_answer)
        main.policy.learn.resume_training = True
        os.makedirs('run')
        hold = "import fcntl, sys; f = open('run/.lock', 'a'); fcntl.lockf(f, fcntl.LOCK_EX); " \
            "f.write('process 5 on here'); f.flush(); print(flush=True); sys.stdin.read()"
        other = subprocess.Popen([sys.executable, '-c', hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            other.stdout.readline()
            with pytest.raises(CheckpointError, match=r"exp_name = '.*run': another run \(process 5 on here\) writes"):
                pipeline((main, create), seed=3, max_train_iter=1)
            assert not os.path.exists('run/log/learner/metrics.jsonl') and not os.path.exists('run/ckpt')
        finally:
            other.communicate(b'')
        pipeline((main, create), seed=3, max_train_iter=1)  # the lock ends with its process

    def test_tensorboard(self, think_answer):
        pipeline, main, create = tokens(think_answer)
        for exp_name, stops in (('whole', [8]), ('run', [5, 8])):
            main.exp_name = exp_name
            for i, stop in enumerate(stops):
                main.policy.learn.resume_training = i > 0
                pipeline((main, create), seed=3, max_train_iter=stop)
                time.sleep(1.1)  # tensorboardX names files by the second
        found = board('run')
        assert sorted(found['learner_iter/entropy']) == list(range(8)) and len(found) > 40
        assert found == board('whole')

    def test_from_a_periodic_checkpoint(self, think_answer):
        """What was written behind the checkpoint is written once; the run goes on from where it was saved."""
        pipeline, main, create = tokens(think_answer)
        main.policy.learn.learner = EasyDict(hook=dict(save_ckpt_after_iter=5))
        pipeline((main, create), seed=3, max_train_iter=12)
        shutil.copytree('run', 'whole')
        for name in ('iteration_12', 'ckpt_best'):
            os.remove(f'run/ckpt/{name}.pth.tar')
        main.policy.learn.resume_training = True
        pipeline((main, create), seed=3, max_train_iter=12)
        same(state(12, 'whole'), state(12))
        assert [r['train_iter'] for r in read_json_lines('run/log/learner/metrics.jsonl')] == list(range(12))
        assert timeless('whole/log/evaluator/evaluations.jsonl') == timeless('run/log/evaluator/evaluations.jsonl')

    def test_best_so_far_is_not_lost(self, think_answer):
        """DI-engine's first evaluation after a resume overwrites ckpt_best even when it is worse."""
        pipeline, main, create = tokens(think_answer)
        pipeline((main, create), seed=3, max_train_iter=3)
        saved = state(3)
        saved['run']['evaluator']['best'] = 0.9
        torch.save(saved, 'run/ckpt/iteration_3.pth.tar')
        before = os.stat('run/ckpt/ckpt_best.pth.tar').st_mtime_ns
        main.policy.learn.resume_training = True
        main.policy.eval.evaluator.eval_freq = 1
        pipeline((main, create), seed=3, max_train_iter=5)
        assert max(r['eval_episode_return'] for r in read_json_lines('run/log/evaluator/evaluations.jsonl')) < 0.9
        assert os.stat('run/ckpt/ckpt_best.pth.tar').st_mtime_ns == before

    def test_a_finished_run_ends_without_another_update(self, think_answer):
        pipeline, main, create = tokens(think_answer)
        pipeline((main, create), seed=3, max_train_iter=3)
        whole = state(3)
        main.policy.learn.resume_training = True
        pipeline((main, create), seed=3, max_train_iter=3)
        same(whole, state(3))
        assert len(read_json_lines('run/log/learner/metrics.jsonl')) == 3 and os.path.exists('run/result.pkl')

    def test_a_finished_run_that_goes_on_after_all_misses_no_evaluation(self, think_answer):
        pipeline, main, create = tokens(think_answer)
        main.policy.eval.evaluator.eval_freq = 4
        for exp_name, stops in (('whole', [8]), ('run', [4, 4, 8])):
            main.exp_name = exp_name
            for i, stop in enumerate(stops):
                main.policy.learn.resume_training = i > 0
                pipeline((main, create), seed=3, max_train_iter=stop)
        same(state(8, 'whole'), state(8))
        assert [r['train_iter'] for r in read_json_lines('run/log/evaluator/evaluations.jsonl')] == [0, 4, 8]
        assert timeless('whole/log/evaluator/evaluations.jsonl') == timeless('run/log/evaluator/evaluations.jsonl')

    def test_from_an_older_checkpoint_of_its_own(self, think_answer):
        """What was saved behind it is set aside, and neither taken up nor a reason to delete what is saved now."""
        pipeline, main, create = tokens(think_answer)
        main.policy.learn.learner = EasyDict(hook=dict(save_ckpt_after_iter=2))
        pipeline((main, create), seed=3, max_train_iter=6)
        main.policy.learn.resume_training = True
        main.policy.learn.learner.hook.load_ckpt_before_run = 'run/ckpt/iteration_2.pth.tar'
        pipeline((main, create), seed=3, max_train_iter=3)
        assert sorted(name for name in os.listdir('run/ckpt') if name.startswith('iteration')) == [
            'iteration_2.pth.tar', 'iteration_3.pth.tar', 'iteration_4.pth.tar.left', 'iteration_6.pth.tar.left'
        ]
        assert len(read_json_lines('run/log/learner/metrics.jsonl')) == 3

    def test_begun_from_another_run_it_goes_on_from_its_own(self, think_answer):
        pipeline, main, create = tokens(think_answer)
        pipeline((main, create), seed=3, max_train_iter=2)
        main.exp_name = 'other'
        main.policy.learn.resume_training = True
        main.policy.learn.learner = EasyDict(hook=dict(load_ckpt_before_run='run/ckpt/iteration_2.pth.tar'))
        for stop in (4, 6):
            pipeline((main, create), seed=3, max_train_iter=stop)
        assert [r['train_iter'] for r in read_json_lines('other/log/learner/metrics.jsonl')] == [2, 3, 4, 5]

    def test_without_a_checkpoint_it_begins(self, think_answer, capfd):
        pipeline, main, create = tokens(think_answer)
        main.policy.learn.resume_training = True
        pipeline((main, create), seed=3, max_train_iter=2)
        assert 'no checkpoint in run/ckpt. Starting a new run' in capfd.readouterr().out
        assert os.path.exists('run/ckpt/iteration_2.pth.tar')

    def test_the_last_few_are_kept(self, think_answer, capfd):
        pipeline, main, create = tokens(think_answer)
        main.policy.learn.learner = EasyDict(hook=dict(save_ckpt_after_iter=2))
        main.policy.learn.keep_ckpt = 2
        pipeline((main, create), seed=3, max_train_iter=9)
        assert sorted(os.listdir('run/ckpt')) == ['ckpt_best.pth.tar', 'iteration_8.pth.tar', 'iteration_9.pth.tar']
        said = capfd.readouterr().out
        assert 'policy.learn.keep_ckpt = 2: iteration_2.pth.tar was deleted, and others will be' in said
        assert said.count('was deleted') == 1

    @pytest.mark.parametrize('rate, said', [(1e-3, False), (5e-3, True)])
    def test_another_learning_rate_is_told(self, think_answer, capfd, rate, said):
        pipeline, main, create = tokens(think_answer)
        pipeline((main, create), seed=3, max_train_iter=3)
        main.policy.learn.update(resume_training=True, learning_rate=rate)
        pipeline((main, create), seed=3, max_train_iter=4)
        line = 'policy.learn.learning_rate = 0.005: the last update of the checkpoint had the rate 0.000933, and ' \
            'would have 0.00467 with this config. The run continues with 0.0045\n'
        assert (line in capfd.readouterr().out) == said

    def test_another_seed(self, think_answer):
        pipeline, main, create = tokens(think_answer)
        pipeline((main, create), seed=3, max_train_iter=1)
        main.policy.learn.resume_training = True
        with pytest.raises(ConfigError, match='seed = 4: the run of .* has seed 3'):
            pipeline((main, create), seed=4, max_train_iter=2)

    @pytest.mark.parametrize('resumes', [True, False])
    def test_another_order_of_the_tokens_is_refused(self, think_answer, resumes):
        """Every token would mean something else. Checkpoints of older versions do not say which tokens theirs are."""
        pipeline, main, create = tokens(think_answer)
        pipeline((main, create), seed=3, max_train_iter=2)
        path = 'run/ckpt/iteration_2.pth.tar'
        main.policy.learn.resume_training = resumes
        main.policy.learn.learner = EasyDict(hook=dict(load_ckpt_before_run='' if resumes else path))
        main.env.tokenizer = dict(words=ThinkAnswerTask.words[::-1])
        with pytest.raises(ConfigError, match='env.tokenizer: its 32 tokens are not those of the checkpoint'):
            pipeline((main, create), seed=3, max_train_iter=3)
        with pytest.raises(ConfigError, match='env.tokenizer: its 32 tokens are not those of the checkpoint'):
            ding.entry.eval((main, create), seed=3, load_path=path)  # loads it before it has an environment
        state = torch.load(path, weights_only=True)
        assert len(state.pop('vocabulary')) == 64
        torch.save(state, path)
        pipeline((main, create), seed=3, max_train_iter=3)

    def test_a_checkpoint_that_is_asked_for(self, think_answer):
        """``load_ckpt_before_run`` without ``resume_training`` is DI-engine's: weights and counts, another run."""
        pipeline, main, create = tokens(think_answer)
        pipeline((main, create), seed=3, max_train_iter=3)
        main.policy.learn.learner = EasyDict(hook=dict(load_ckpt_before_run='run/ckpt/iteration_3.pth.tar'))
        main.exp_name = 'other'
        pipeline((main, create), seed=4, max_train_iter=5)
        assert [r['train_iter'] for r in read_json_lines('other/log/learner/metrics.jsonl')] == [3, 4]
        main.policy.learn.learner.hook.load_ckpt_before_run = 'run/ckpt/iteration_7.pth.tar'
        with pytest.raises(ConfigError, match="load_ckpt_before_run = 'run/ckpt/iteration_7.*there is no such file"):
            pipeline((main, create), seed=4, max_train_iter=5)


@pytest.mark.envtest
class TestDamage:

    def run_twice(self, think_answer, damage):
        pipeline, main, create = tokens(think_answer)
        main.policy.learn.learner = EasyDict(hook=dict(save_ckpt_after_iter=2))
        pipeline((main, create), seed=3, max_train_iter=5)
        whole = state(5)
        damage('run/ckpt')
        main.policy.learn.resume_training = True
        pipeline((main, create), seed=3, max_train_iter=5)
        same(whole, state(5))

    @pytest.mark.parametrize('part', [0.0, 0.5, 0.999])
    def test_a_file_cut_short(self, think_answer, capfd, part):

        def cut(folder):
            path = f'{folder}/iteration_5.pth.tar'
            os.truncate(path, int(os.path.getsize(path) * part))

        self.run_twice(think_answer, cut)
        out = capfd.readouterr().out
        assert 'iteration_5.pth.tar is damaged, or was not written by torch 1.6 or later' in out
        assert 'resuming from run/ckpt/iteration_4.pth.tar, after update 4' in out

    def test_one_flipped_bit(self, think_answer, capfd):

        def flip(folder):
            with open(f'{folder}/iteration_5.pth.tar', 'r+b') as f:
                f.seek(os.path.getsize(f.name) // 2)
                byte = f.read(1)[0]
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte ^ 16]))

        self.run_twice(think_answer, flip)
        out = capfd.readouterr().out
        assert 'iteration_5.pth.tar is damaged, or was not written by torch 1.6 or later (the checksum' in out

    def test_all_damaged(self, think_answer):

        def all_of_them(folder):
            for name in os.listdir(folder):
                os.truncate(f'{folder}/{name}', 100)

        with pytest.raises(CheckpointError, match='damaged.*no good earlier checkpoint'):
            self.run_twice(think_answer, all_of_them)

    def test_code_in_a_checkpoint_is_not_executed(self, think_answer):

        class Code:

            def __reduce__(self):
                return os.mkdir, ('executed', )

        def replace(folder):
            for name in os.listdir(folder):
                torch.save(dict(model=Code()), f'{folder}/{name}')

        with pytest.raises(CheckpointError, match='no good earlier checkpoint'):
            self.run_twice(think_answer, replace)
        assert not os.path.exists('executed')

    @pytest.mark.curves
    def test_the_best_one_costs_its_model_alone(self, think_answer, capfd):
        self.run_twice(think_answer, lambda folder: os.truncate(f'{folder}/ckpt_best.pth.tar', 100))
        assert 'ckpt_best.pth.tar is damaged' in capfd.readouterr().out
        assert os.path.exists('run/model/last/model.safetensors') and os.path.exists('run/curve.png')

    def test_the_best_one_is_asked_for(self, think_answer):
        pipeline, main, create = tokens(think_answer)
        pipeline((main, create), seed=3, max_train_iter=2)
        os.truncate('run/ckpt/ckpt_best.pth.tar', 100)
        main.exp_name = 'other'
        main.policy.learn.learner = EasyDict(hook=dict(load_ckpt_before_run='run/ckpt/ckpt_best.pth.tar'))
        with pytest.raises(CheckpointError, match='no good earlier checkpoint'):  # not one of another update
            pipeline((main, create), seed=3, max_train_iter=2)

    def test_of_another_model(self, think_answer, capfd):
        pipeline, main, create = tokens(think_answer)
        pipeline((main, create), seed=3, max_train_iter=2)
        main.policy.learn.resume_training = True
        main.policy.model.config.intermediate_size = 72
        with pytest.raises(ConfigError, match='policy.model = .* the checkpoint is of another model .*size mismatch'):
            pipeline((main, create), seed=3, max_train_iter=3)
        assert 'resuming from run/ckpt/iteration_2.pth.tar' in capfd.readouterr().out

    def test_weights_that_are_not_finite_are_not_saved(self, think_answer, monkeypatch):
        pipeline, main, create = tokens(think_answer)
        main.policy.learn.learner = EasyDict(hook=dict(save_ckpt_after_iter=1))
        forward = GRPOPolicy._forward_learn

        def break_down(self, data):
            found = forward(self, data)
            if self._learning.updates == 3:
                with torch.no_grad():
                    next(self._model.parameters()).fill_(float('nan'))
            return found

        monkeypatch.setattr(GRPOPolicy, '_forward_learn', break_down)
        with pytest.raises(NumericError, match='after update 3: weights are NaN or infinite'):
            pipeline((main, create), seed=3, max_train_iter=6)
        monkeypatch.setattr(GRPOPolicy, '_forward_learn', forward)
        assert 'iteration_3.pth.tar' not in os.listdir('run/ckpt')
        main.policy.learn.resume_training = True
        pipeline((main, create), seed=3, max_train_iter=4)
        assert [r['train_iter'] for r in read_json_lines('run/log/learner/metrics.jsonl')] == [0, 1, 2, 3]
