import pytest

from ding_common import ConfigError

from .helper import make_policy


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
            ('learn.learner.log_polciy', True, "did you mean 'log_policy'"),
            ('collect.collector.table_frq', 5, "did you mean 'table_freq'"),
            ('eval.evaluator.eval_frequency', 5, "did you mean 'eval_freq'"),
            ('model.pretraned', 'x', "did you mean 'pretrained'"),
            ('model.config.hidden_sze', 5, "did you mean 'hidden_size'"),
            ('other.replay_buffer.replay_bufer_size', 5, 'replay_buffer_size'),
            ('group_size', 1, 'an integer of at least 2'),
            ('group_size', '8', 'an integer of at least 2'),
            ('learn.clip_ratio', 1.5, r'a number in \(0, 1\]'),
            ('learn.beta', -0.1, 'a number in'),
            ('learn.kl_type', 'k4', "'k1', 'k2', 'k3'"),
            ('learn.adv_method', 'std', "'grpo', 'no_std'"),
            ('learn.log_prob_fn', 'fast', "'efficient_method'"),
            ('learn.learning_rate', '1e-3', 'a number'),
            ('learn.learning_rate', 0, 'a number'),
            ('learn.batch_size', 0, 'an integer of at least 1'),
            ('learn.lr_scheduler.type', 'linea', "'linear'"),
            ('learn.lr_scheduler.type', 'linear', 'num_training_steps = None'),
            ('collect.temperature', 0, 'a number in'),
            ('collect.top_k', 0, 'an integer of at least 1, or None'),
            ('collect.top_p', 0.9, 'needs policy.collect.top_k'),
            ('multi_gpu', True, 'not supported yet'),
            ('cuda', 'yes', 'one of True, False'),
        ]
    )
    def test_wrong_values_stop_with_key_and_what_is_allowed(self, think_answer, path, value, message):
        main, create = think_answer
        change(main.policy, path, value)
        with pytest.raises(ConfigError, match=message) as caught:
            make_policy(main, create)
        if path != 'learn.lr_scheduler.type' or value != 'linear':
            assert f'policy.{path} = {value!r}' in caught.value.message

    def test_the_group_collector_is_needed(self, think_answer):
        main, create = think_answer
        create.collector.type = 'sample'
        with pytest.raises(ConfigError, match="collector=dict\\(type='group'\\)"):
            make_policy(main, create)

    def test_every_default_is_documented_where_it_lives(self):
        import inspect

        from ding_grpo.policy import GRPOPolicy
        from ding_grpo.worker import GroupCollector
        for cls in (GRPOPolicy, GroupCollector):
            source = inspect.getsource(cls)
            body = source[source.index('config = dict('):source.index('def __init__')].splitlines()[1:]
            for above, line in zip(body, body[1:]):
                key = line.strip()
                if '=' in key and not key.startswith('#') and not key.endswith('dict('):
                    plain = key.split('=')[0] in ('collector', 'eval', 'other')
                    assert plain or above.strip().startswith('#'), line

    def test_own_hooks_are_welcome(self, think_answer):
        main, create = think_answer
        change(main.policy, 'learn.learner.hook.mine', dict(name='m', type='log_show', position='after_iter'))
        assert make_policy(main, create) is not None
