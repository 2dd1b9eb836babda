"""Runs of DI-engine's own policies leave the files that runs of grpo leave."""
import glob
import os

import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from ding.policy import PPOPolicy
from transformers import AutoModelForCausalLM, AutoTokenizer

from ding_common import ConfigError, read_json_lines
from ding_grpo.policy import GRPOPolicy

from tests.shipped import small


def run(name, kind='ppo', **changes):
    changes.setdefault('policy', dict(collect=dict(n_sample=64), learn=dict(epoch_per_collect=2, batch_size=32)))
    main, create = small(name, **changes)
    create.policy.type = kind
    policy = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=8)
    metrics = read_json_lines('run/log/learner/metrics.jsonl')
    return policy, metrics, read_json_lines('run/log/evaluator/evaluations.jsonl')


@pytest.mark.envtest
class TestPPO:

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    @pytest.mark.parametrize(
        'name, kind, more', [
            ('cartpole_ppo', 'ppo', set()),
            ('pendulum_ppo', 'ppo', {'act', 'mu_mean', 'sigma_mean'}),
            ('cartpole_ppo', 'ppo_kl', {'kl'}),
        ]
    )
    def test_metrics_of_every_update(self, monkeypatch, name, kind, more):
        of_steps = []
        if kind == 'ppo':
            forward = PPOPolicy._forward_learn

            def noted(self, data):
                found = forward(self, data)
                of_steps.append([dict(m) for m in found])
                return found

            monkeypatch.setattr(PPOPolicy, '_forward_learn', noted)
        _, metrics, evaluations = run(name, kind)
        assert [m['train_iter'] for m in metrics] == [0, 4]  # 2 epochs of 64 / 32 mini-batches
        assert [e['train_iter'] for e in evaluations] == [0, 8]
        assert metrics[-1]['envstep'] == evaluations[-1]['envstep'] > metrics[0]['envstep'] > 0
        assert 0 < metrics[0]['seconds'] < metrics[1]['seconds']
        assert set(metrics[0]) >= {
            'policy_loss', 'value_loss', 'entropy_loss', 'total_loss', 'cur_lr', 'approx_kl', 'clipfrac', 'adv_max',
            'value_mean', *more
        }
        for record, steps in zip(metrics, of_steps):
            assert record['value_loss'] == pytest.approx(sum(s['value_loss'] for s in steps) / 4)
            assert record['adv_max'] == max(s['adv_max'] for s in steps)

    @pytest.mark.curves
    def test_curve_and_no_model_of_an_environment_without_tokens(self):
        run('cartpole_ppo')
        assert open('run/curve.png', 'rb').read(4) == b'\x89PNG'
        assert not os.path.exists('run/model')  # the checkpoints contain it

    @pytest.mark.curves
    def test_the_screen_keeps_di_engines_log(self, capfd, caplog):
        run('cartpole_ppo')
        out = capfd.readouterr().out
        assert 'learning curve: run/curve.png' in out and out.count('evaluation  update') == 2
        assert 'Training Iteration 0 Result' in caplog.text and '\nupdate ' not in out

    @pytest.mark.parametrize('kind', ['ppo', 'ppo_kl'])
    def test_saved_language_models_give_the_evaluated_completions(self, kind):
        _, _, evaluations = run('think_answer_ppo', kind, env=dict(collector_env_num=8))
        assert [e['train_iter'] for e in evaluations] == [0, 8]
        best = max(evaluations, key=lambda e: e['eval_episode_return'])  # the first of equal ones
        weights = {}
        for which, evaluation in (('best', best), ('last', evaluations[-1])):
            model = AutoModelForCausalLM.from_pretrained(f'run/model/{which}')
            tokenizer = AutoTokenizer.from_pretrained(f'run/model/{which}')
            weights[which] = model.state_dict()
            for record in evaluation['completions']:
                ids = tokenizer(record['prompt'], return_tensors='pt').input_ids
                out = model.generate(ids, attention_mask=torch.ones_like(ids))[0, ids.shape[1]:].tolist()
                out = out[:-1] if out[-1] == tokenizer.eos_token_id else out
                assert tokenizer.decode(out) == record['completion']
        state = torch.load(glob.glob('run/ckpt/iteration_8.pth.tar')[0], weights_only=True)['model']
        assert all(torch.equal(value, state[f'actor.lm.{name}']) for name, value in weights['last'].items())

    def test_a_config_that_names_the_hook_has_it_once(self):
        report = dict(
            name='report', type='grpo_report', position='before_run', priority=90, ext_args=dict(export=False)
        )
        learn = dict(epoch_per_collect=2, batch_size=32, learner=dict(hook=dict(report=report)))
        policy = dict(collect=dict(n_sample=64), learn=learn)
        _, metrics, _ = run('think_answer_ppo', env=dict(collector_env_num=8), policy=policy)
        assert len(metrics) == 2 and not os.path.exists('run/model')


@pytest.mark.envtest
class TestStartOfGRPO:
    """A checkpoint of PPO holds weights, and nothing else that a run of grpo needs."""

    @pytest.fixture
    def configs(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        policy, *_ = run('cartpole_ppo')
        main, create = small('cartpole_grpo')
        main.exp_name, main.policy.model = 'grpo', small('cartpole_ppo')[0].policy.model
        main.policy.learn.learner = dict(hook=dict(load_ckpt_before_run='run/ckpt/iteration_8.pth.tar'))
        return policy, main, create

    def test_has_its_weights_also_as_the_reference(self, configs, monkeypatch, capfd):
        ppo, main, create = configs
        main.policy.learn.update(beta=0.1)
        begun = []

        def note(self, data):
            begun.append((self._model.state_dict(), self._learning.reference.copy.state_dict()))
            begun[:] = [
                [{name: value.clone()
                  for name, value in state.items()} for state in states] for states in begun
            ]
            return learn(self, data)

        learn = GRPOPolicy._forward_learn
        monkeypatch.setattr(GRPOPolicy, '_forward_learn', note)
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
        weights = torch.load('run/ckpt/iteration_8.pth.tar', weights_only=True)['model']
        for state in begun[0]:
            assert weights.keys() == state.keys() and all(torch.equal(weights[name], state[name]) for name in weights)
        told = 'starting with the weights of run/ckpt/iteration_8.pth.tar, which another policy trained'
        assert told in capfd.readouterr().out
        assert [m['train_iter'] for m in read_json_lines('grpo/log/learner/metrics.jsonl')] == [0]
        assert os.path.exists('grpo/ckpt/iteration_1.pth.tar')

    def test_is_no_run_to_resume(self, configs):
        _, main, create = configs
        main.policy.learn.resume_training = True
        with pytest.raises(ConfigError, match='does not contain the whole state of its run'):
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
