import copy

import pytest

from ding_common import ConfigError
from ding_grpo.config.checks import check_policy_config
from ding_grpo.policy import GRPOPolicy
from tests.shipped import load


def check(**changes):
    """Check the shipped config of think_answer with a divided model; keys of ``changes`` are dotted paths."""
    main, _ = load('think_answer_grpo')
    default = GRPOPolicy.default_config()
    cfg = copy.deepcopy(default)
    cfg.update(cuda=False, multi_gpu=True, shard=True, model=main.policy.model)
    for path, value in changes.items():
        section, (*sections, key) = cfg, path.split('__')
        for name in sections:
            section = section[name]
        section[key] = value
    check_policy_config(cfg, default)


class TestShard:

    def test_the_defaults(self):
        check()

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(multi_gpu=False), 'policy.shard = True: needs policy.multi_gpu = True'),
            (dict(multi_gpu=False, shard='machine'), "policy.shard = 'machine': needs policy.multi_gpu = True"),
            (dict(model=dict(type='vac')), "policy.shard = True: needs policy.model.type = 'causal_lm', not 'vac'"),
            (dict(learn__advantage='gae'), "policy.learn.advantage = 'gae': not available"),
            (dict(teacher=dict(pretrained='a')), 'policy.teacher = .*: not available'),
            (dict(learn__log_prob_fn='naive_method'), "policy.learn.log_prob_fn = 'naive_method': not available"),
            (dict(learn__demonstrations__share=0.5), 'policy.learn.demonstrations.share = 0.5: not available'),
            (dict(instruments__shadow=['dapo']), r"policy.instruments.shadow = \['dapo'\]: not available"),
            (dict(instruments__noise_every=3), 'policy.instruments.noise_every = 3: not available'),
        ]
    )
    def test_what_is_not_divided_is_refused(self, changes, message):
        with pytest.raises(ConfigError, match=message):
            check(**changes)
