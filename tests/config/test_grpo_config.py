import re

import pytest

from ding_common import ConfigError

from tests.policies import make_policy


def change(cfg, path, value):
    *parents, last = path.split('.')
    for key in parents:
        cfg = cfg.setdefault(key, {})
    cfg[last] = value


@pytest.mark.unittest
class TestPolicyConfig:

    @pytest.mark.parametrize(
        'path, value, message', [
            ('learn.lerning_rate', 0.1, "did you mean 'learning_rate'"),
            ('lern', {}, "did you mean 'learn'"),
            ('learn.learner.hook.save_ckpt_after_itr', 5, "did you mean 'save_ckpt_after_iter'"),
            ('learn.learner.hook.save_ckpt_after_iter', 0, 'an integer of at least 1'),
            ('model', 5, 'must be a dict'),
            ('learn.learning_rate', float('inf'), 'a number'),
            ('learn.learner.log_polciy', True, "did you mean 'log_policy'"),
            ('collect.collector.table_frq', 5, "did you mean 'table_freq'"),
            ('eval.evaluator.eval_frequency', 5, "did you mean 'eval_freq'"),
            ('model.pretraned', 'x', "did you mean 'pretrained'"),
            ('model.config.hidden_sze', 5, "did you mean 'hidden_size'"),
            ('other.replay_buffer.replay_bufer_size', 5, 'replay_buffer_size'),
            ('group_size', 0, 'an integer of at least 1'),
            ('group_size', '8', 'an integer of at least 1'),
            ('learn.clip_ratio', 1.5, r'a number in \(0, 1\]'),
            ('learn.beta', -0.1, 'a number in'),
            ('learn.kl_type', 'k4', "'k1', 'k2', 'k3'"),
            ('learn.adv_method', 'std', "'grpo', 'no_std'"),
            ('learn.loss', 'gpro', "'grpo', 'bnpo', 'dr_grpo'"),
            ('learn.surrogate', 'clipp', "did you mean 'clip'. Allowed: .*module:function"),
            ('learn.surrogate', 5, 'must be the name of a surrogate, or None'),
            ('learn.reduction', 'mean', "'sequence', 'token'"),
            ('learn.delta', 0.5, r'a number in \(1, inf\), or None'),
            ('learn.delta', 1.1, 'greater than 1 . the clipping range above 1, 1.2'),
            ('learn.log_prob_fn', 'fast', "'linear_log_prob'"),
            ('learn.learning_rate', '1e-3', 'a number'),
            ('learn.learning_rate', 0, 'a number'),
            ('learn.batch_size', 0, 'an integer of at least 1'),
            ('learn.lr_scheduler.type', 'linea', "'linear'"),
            ('collect.temperature', 0, 'a number in'),
            ('collect.top_k', 0, 'an integer of at least 1, or None'),
            ('collect.top_p', 0, 'a number in'),
            ('collect.autocast', 'float16', "one of 'bfloat16', or None"),
            ('multi_gpu', 2, 'one of True, False'),
            ('cuda', 'yes', 'one of True, False'),
        ]
    )
    def test_wrong_values_stop_with_key_and_what_is_allowed(self, think_answer, path, value, message):
        main, create = think_answer
        change(main.policy, path, value)
        with pytest.raises(ConfigError, match=message) as caught:
            make_policy(main, create)
        assert f'policy.{path} = {value!r}' in caught.value.message

    def test_single_choices_stand_on_top_of_the_preset(self, think_answer):
        main, create = think_answer
        main.policy.learn.update(loss='dapo', clip_ratio=None, adv_method=None)
        policy = make_policy(main, create)
        loss = policy._learning.updater.loss_config
        assert loss.clip_ratio_high == 0.28 and loss.reduction == 'token'
        main.policy.learn.update(clip_ratio_high=0.5, adv_method='rloo')
        policy = make_policy(main, create)
        assert policy._learning.updater.loss_config.clip_ratio_high == 0.5 and policy._advantage.method == 'rloo'

    def test_choices_that_do_not_go_together(self, think_answer):
        main, create = think_answer
        main.policy.learn.update(loss='cispo', delta=3.0)
        with pytest.raises(ConfigError, match="policy.learn.delta = 3.0: must be None for surrogate 'cispo'"):
            make_policy(main, create)

    @pytest.mark.parametrize(
        'schedule, message',
        [
            (dict(type='linear'), 'num_training_steps'),
            (dict(type='cosine_with_min_lr', num_training_steps=9), 'min_lr'),
            (dict(type='linear', num_training_steps=9, specific=dict(sped=3)), 'sped'),
            (dict(type='reduce_lr_on_plateau'), "must be one of 'linear'"),
            (dict(type='polynomial', num_warmup_steps=9, num_training_steps=9), 'division by zero'),  # at update 9
        ]
    )
    def test_schedules_that_cannot_be_made(self, think_answer, schedule, message):
        main, create = think_answer
        main.policy.learn.lr_scheduler = schedule
        with pytest.raises(ConfigError, match=message):
            make_policy(main, create)

    @pytest.mark.parametrize('schedule', [dict(type='inverse_sqrt', num_warmup_steps=3), dict(type='constant')])
    def test_schedules_without_an_end(self, think_answer, schedule):
        main, create = think_answer
        main.policy.learn.lr_scheduler = schedule
        assert make_policy(main, create)._learning.schedule.rate(10 ** 6) > 0

    def test_the_group_collector_is_needed(self, think_answer):
        main, create = think_answer
        create.collector.type = 'sample'
        with pytest.raises(ConfigError, match="collector=dict\\(type='group'\\)"):
            make_policy(main, create)

    def test_every_default_is_documented_where_it_lives(self):
        import inspect

        from ding_grpo.collect import GroupCollector
        from ding_grpo.config import keys as grpo_config
        from ding_grpo.envs import GymnasiumEnv
        from dizoo_llm.envs import options
        places = {
            grpo_config: ('KEYS = dict(', 'def split'),
            GroupCollector: ('config = dict(', 'def __init__'),
            options: ('ENV_OPTIONS = dict(', 'ENV_RULES = '),
            GymnasiumEnv: ('config = dict(', 'rules = '),
        }
        for place, (start, end) in places.items():
            source = inspect.getsource(place)
            body = source[source.index(start):source.index(end)].splitlines()[1:]
            assert len(body) > 10
            for above, line in zip(body, body[1:]):
                key = line.strip()
                if re.match(r'\w+=', key) and not key.endswith('dict('):
                    assert key.split('=')[0] in ('collector', 'other') or above.strip().startswith('#'), line

    def test_own_hooks_are_welcome(self, think_answer):
        main, create = think_answer
        change(main.policy, 'learn.learner.hook.mine', dict(name='m', type='log_show', position='after_iter'))
        assert make_policy(main, create) is not None
