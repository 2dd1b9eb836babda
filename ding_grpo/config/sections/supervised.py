"""What a policy learns from beside the reward: a teacher (``policy.teacher``), and demonstrations."""
from typing import Any, Dict

from ding_common import MOST, ConfigError, Rule, check_config
from ding_grpo.rl_utils import DIVERGENCES

from ..key import POSITIVE, SHARE, SIZE, Combination, Key, optional, split

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

CONTEXTS = ('sibling', 'reference', 'feedback')

# ``policy.teacher`` of a policy that teaches itself.
SELF_TEACHER = dict(
    # (str) The teacher's weights. 'live': those of the policy. 'ema': a mean of them over time. 'start': those of the
    # start. 'ema' keeps a copy, and 'start' too, but with adapters.
    self=Key('live', Rule.one_of('live', 'ema', 'start')),
    # (Union[str, Sequence[str]]) What it reads beside the prompt. 'sibling': a right completion of the same group.
    # 'reference': ``Task.demonstration``; with 'sibling', where the group has none. 'feedback': ``Task.feedback``.
    context=Key('sibling', Rule(f'one or several of {CONTEXTS}', lambda v: _are_contexts(v))),
    # (str) Where it reads this: 'before' or 'after' the text of the last message, or as a further 'turn' of the user.
    place=Key('after', Rule.one_of('before', 'after', 'turn')),
    # (str) Texts around a solution and around feedback, and what follows both.
    solution='\n\nA correct solution:\n{solution}\n',
    feedback='\n\nWhat was wrong with an attempt:\n{feedback}\n',
    closing='\nNow solve the problem.',
    # (float) From which value of ``env.return_part`` (without one: of the reward) a completion is right.
    success_from=Key(1.0, Rule.number()),
    # (float) For 'ema': how far the mean moves towards the policy in each update.
    update_rate=Key(0.05, SHARE),
    # (Optional[int]) Rows whose context has more tokens are not taught. None: 512, or what the model has room for.
    most_tokens=optional(SIZE),
)
# What papers choose; keys of a config replace it.
PRESETS = dict(
    sdpo=dict(self='ema', context=('sibling', 'feedback')),
    opsd=dict(self='start', context='reference'),
    sdft=dict(self='ema', context='reference'),
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
    if 'pretrained' not in teacher:
        self_teacher(teacher)
    elif not isinstance(teacher['pretrained'], str):
        raise policy.refusal('teacher.pretrained', 'must be a folder or a name.')
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


def self_teacher(teacher: Dict) -> Dict[str, Any]:
    """The options of a policy that teaches itself. Raises a ``ConfigError`` for wrong ones."""
    defaults, rules = split(SELF_TEACHER)
    if 'preset' not in teacher and 'self' not in teacher:
        raise ConfigError(
            f'policy.teacher = {dict(teacher)!r}: must have pretrained, a folder or a name, or, for a policy that '
            f"teaches itself, self ('live', 'ema', 'start') or preset {tuple(PRESETS)}."
        )
    rules['preset'] = Rule.one_of(*PRESETS)
    check_config(teacher, dict(defaults, preset=''), rules, 'policy.teacher')
    own = {key: value for key, value in teacher.items() if key != 'preset'}
    return {**defaults, **PRESETS.get(teacher.get('preset'), {}), **own}


def _are_contexts(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, (list, tuple)) and len(names) > 0 and all(name in CONTEXTS for name in names)
