"""What a policy learns from beside the reward: a teacher (``policy.teacher``), and demonstrations."""
from ding_common import MOST, Rule
from ding_grpo.rl_utils import DIVERGENCES

from ..key import POSITIVE, Combination, Key

DISTILLATION = dict(
    # (float) Coefficient of the divergence from the teacher. Lower it beside a reward.
    weight=Key(1.0, POSITIVE),
    # (str) 'reverse_kl', KL(policy || teacher): the policy keeps to what the teacher finds likely.
    # 'forward_kl', KL(teacher || policy): it covers all that the teacher finds likely. 'jsd': a mix of both.
    divergence=Key('reverse_kl', Rule.one_of(*DIVERGENCES)),
    # (float) For 'jsd': the teacher's share of the mixture, in (0, 1). Near 0 as 'forward_kl', near 1 as
    # 'reverse_kl', each times its smaller share.
    mix=Key(0.5, Rule('a number in (0, 1)', lambda v: Rule.number(0, 1, True).holds(v) and v < 1)),
    # (bool) Whether to sum over the whole vocabulary. False estimates from the sampled token: faster, noisier.
    exact=True,
)

DEMONSTRATIONS = dict(
    # (float) Number of demonstrations in a mini-batch, relative to its rows. Use some where the policy hardly
    # ever solves a problem. 0: none.
    share=Key(0.0, Rule.number(0, MOST)),
    # (float) Coefficient of their mean negative log-probability.
    weight=Key(1.0, POSITIVE),
)

_NO_USE = ('config', 'lora', 'save_merged', 'gradient_checkpointing')  # of the arguments of a model


def check(policy: Combination) -> None:
    teacher, demonstrates = policy['teacher'], policy['learn.demonstrations.share'] > 0
    policy.only_with(['learn.demonstrations.weight'], demonstrates, 'policy.learn.demonstrations.share above 0')
    policy.only_with((f'learn.distillation.{key}' for key in DISTILLATION), teacher is not None, 'policy.teacher')
    if policy['learn.advantage'] == 'none':
        if teacher is None and not demonstrates:
            raise policy.refusal(
                'learn.advantage', 'nothing would be learned. Set policy.teacher = dict(pretrained=...), '
                'policy.learn.demonstrations = dict(share=...), or another advantage.'
            )
        policy.must_be_default(
            ['learn.adv_method', 'learn.reward_aggregation'],
            "with policy.learn.advantage = 'none', which uses no reward"
        )
    if teacher is None:
        return
    if not isinstance(teacher.get('pretrained'), str):
        raise policy.refusal('teacher', 'must have the key pretrained, a folder or a name.')
    for key in _NO_USE:
        if teacher.get(key):
            raise policy.refusal(f'teacher.{key}', 'not available, the teacher is not trained.')
    policy.must_be(
        'learn.log_prob_fn', 'linear_log_prob', 'with policy.teacher, which reads the hidden states that the teacher '
        'is compared with'
    )
    policy.must_be_default(
        ['collect.top_k', 'collect.top_p', 'collect.processors'],
        'with policy.teacher, because the teacher is compared over the whole vocabulary'
    )
