"""Runs of DI-engine's own policies leave the files that runs of grpo leave."""
import os

import pytest
from ding.policy import PPOPolicy
from transformers import AutoModelForCausalLM

from ding_common import ConfigError
from tests.pipelines.plain import completed
from tests.runs import each_update, evaluated, evaluations, metrics, state, tensorboard, train
from tests.same import same
from tests.shipped import small

pytestmark = [pytest.mark.envtest, pytest.mark.usefixtures('own_folder')]


def finished(name, kind='ppo', **learn):
    """Eight mini-batches: two updates, of two epochs of 64 / 32 each."""
    env = dict(collector_env_num=8) if name == 'think_answer_ppo' else {}
    learn.update(epoch_per_collect=2, batch_size=32)
    main, create = small(name, env=env, policy=dict(collect=dict(n_sample=64), learn=learn))
    create.policy.type = kind
    train((main, create), 8)
    assert evaluated() == [0, 8] and [m['train_iter'] for m in metrics()] == [0, 4]


@pytest.mark.curves
@pytest.mark.parametrize(
    'name, kind, more', [
        ('cartpole_ppo', 'ppo', set()),
        ('pendulum_ppo', 'ppo', {'act', 'mu_mean', 'sigma_mean'}),
        ('cartpole_ppo', 'ppo_kl', {'kl'}),
    ]
)
def test_metrics_of_every_update_a_curve_and_di_engines_log(monkeypatch, capfd, caplog, name, kind, more):
    of_steps = []
    if kind == 'ppo':
        each_update(monkeypatch, after=lambda _, policy, found: of_steps.append(list(map(dict, found))), kind=PPOPolicy)
    finished(name, kind)
    first, last = metrics()
    assert last['envstep'] == evaluations()[-1]['envstep'] > first['envstep'] > 0
    assert 0 < first['seconds'] < last['seconds']
    assert set(first) >= {
        'policy_loss', 'value_loss', 'entropy_loss', 'total_loss', 'cur_lr', 'approx_kl', 'clipfrac', 'adv_max',
        'value_mean', *more
    }
    for record, steps in zip(metrics(), of_steps):
        assert record['value_loss'] == pytest.approx(sum(s['value_loss'] for s in steps) / 4)
        assert record['adv_max'] == max(s['adv_max'] for s in steps)
    assert open('run/curve.png', 'rb').read(4) == b'\x89PNG'
    assert not os.path.exists('run/model')  # the checkpoints contain it
    out = capfd.readouterr().out
    assert 'learning curve: run/curve.png' in out and out.count('evaluation  update') == 2
    assert 'Training Iteration 0 Result' in caplog.text and '\nupdate ' not in out


@pytest.mark.parametrize('kind', ['ppo', 'ppo_kl'])
def test_saved_language_models_give_the_evaluated_completions(kind):
    finished('think_answer_ppo', kind)
    best = max(evaluations(), key=lambda e: e['eval_episode_return'])  # the first of equal ones
    for which, evaluation in (('best', best), ('last', evaluations()[-1])):
        for record in evaluation['completions']:
            assert completed(f'run/model/{which}', record['prompt']) == record['completion']
    last = AutoModelForCausalLM.from_pretrained('run/model/last').state_dict()
    same(last, {name: state(8)['model'][f'actor.lm.{name}'] for name in last})


def test_a_config_that_names_the_hook_has_it_once():
    report = dict(name='report', type='grpo_report', position='before_run', priority=90, ext_args=dict(export=False))
    finished('think_answer_ppo', learner=dict(hook=dict(report=report)))
    assert len(metrics()) == 2 and not os.path.exists('run/model')


def test_numbers_of_one_meaning_have_one_tag_in_tensorboard():
    policy = dict(collect=dict(n_sample=64, collector=dict(collect_print_freq=1)), learn=dict(epoch_per_collect=1))
    train(small('cartpole_ppo', env=dict(collector_env_num=4), policy=policy), 4, batch_size=32)
    train(small('cartpole_grpo'), 1, name='grpo')
    of_ppo, of_grpo = ({tag: value for tag, _, value in tensorboard(run)} for run in ('run', 'grpo'))
    update, = metrics('grpo')
    expected = {'learner_iter/entropy_loss_avg': 'entropy', 'collector_iter/train_sample_count': 'envstep'}
    assert set(expected) <= set(of_ppo)
    assert {tag: of_grpo[tag] for tag in expected} == {t: pytest.approx(update[n]) for t, n in expected.items()}


def test_grpo_starts_with_the_weights_of_ppo_also_as_the_reference(capfd):
    """A checkpoint of PPO contains weights, and nothing else that a run of grpo needs."""
    finished('cartpole_ppo')
    main, create = small('cartpole_grpo')
    main.policy.model = small('cartpole_ppo')[0].policy.model
    hook = dict(load_ckpt_before_run='run/ckpt/iteration_8.pth.tar')
    # a rate of which no step is seen: the weights at the end are those at the start
    train((main, create), 1, name='grpo', kl=dict(beta=0.1), learner=dict(hook=hook), learning_rate=1e-30)
    same(state(8)['model'], state(1, 'grpo')['model'])
    assert metrics('grpo')[0]['kl'] == pytest.approx(0, abs=1e-6)  # to the reference
    told = 'starting with the weights of run/ckpt/iteration_8.pth.tar, which another policy trained'
    assert told in capfd.readouterr().out
    assert [m['train_iter'] for m in metrics('grpo')] == [0]
    with pytest.raises(ConfigError, match='does not contain the whole state of its run'):
        train((main, create), 1, name='resumed', resume_training=True)
