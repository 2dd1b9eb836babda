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
    # CHORD (https://arxiv.org/abs/2508.11408): the loss is (1 - mu) times the policy's plus mu times that of the
    # demonstrations.
    schedule=dict(
        # (float) Largest mu, in (0, 1]. 0: no schedule; ``weight`` is then the coefficient.
        peak=Key(0.0, Rule.number(0, 1)),
        # (float) mu at the end, at most ``peak``.
        valley=Key(0.0, Rule.number(0, 1)),
        # (int) Updates in which mu rises from 0 to ``peak``.
        warmup=Key(0, Rule.integer(0, MOST)),
        # (int) Updates after the warm-up in which mu falls from ``peak`` to ``valley``, as a cosine.
        decay=Key(0, Rule.integer(0, MOST)),
        # (bool) Whether each token has the weight p (1 - p) of its probability, so that tokens that the policy finds
        # impossible do not disrupt it. For a constant mu, such as peak = valley = 0.1.
        phi=False,
    ),
)

ENVIRONMENT_TOKENS = dict(
    # (float) Coefficient of the negative log-probability of a reply's token (ECHO, https://arxiv.org/abs/2605.24517).
    # 0: none.
    weight=Key(0.0, Rule.number(0, MOST)),
)

PREFERENCE = dict(
    # (float) Coefficient of its loss (DPO, https://arxiv.org/abs/2305.18290). 0: none.
    weight=Key(0.0, Rule.number(0, MOST)),
    # (float) Coefficient of the log-ratio to the reference. The larger, the less the policy moves for a pair.
    beta=Key(0.1, POSITIVE),
    # (str) What the log-ratio is relative to. 'sampler': the policy that sampled. 'start': the reference of
    # ``kl.beta``, which must be above 0.
    reference=Key('sampler', Rule.one_of('sampler', 'start')),
)

CONTEXTS = ('sibling', 'reference', 'feedback')


def _text_with(part: str) -> Rule:
    return Rule(f'a text with {part}', lambda v: isinstance(v, str) and part in v)


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
    solution=Key('\n\nA correct solution:\n{solution}\n', _text_with('{solution}')),
    feedback=Key('\n\nWhat was wrong with an attempt:\n{feedback}\n', _text_with('{feedback}')),
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
    prefers = policy['learn.preference.weight'] > 0
    check_preference(policy)
    policy.only_with(['learn.demonstrations.weight'], demonstrates, 'policy.learn.demonstrations.share above 0')
    check_schedule(policy, demonstrates)
    if policy['learn.environment_tokens.weight'] > 0:
        reason = 'with policy.learn.environment_tokens, which reads hidden states'
        policy.must_be('learn.log_prob_fn', 'linear_log_prob', reason)
        policy.must_be('teacher', None, f'{reason} in the place of a teacher')
    policy.only_with((f'learn.distillation.{key}' for key in DISTILLATION), teacher is not None, 'policy.teacher')
    if policy['learn.advantage'] == 'none':
        if teacher is None and not demonstrates and not prefers:
            raise policy.refusal(
                'learn.advantage', 'nothing would be learned. Set policy.teacher = dict(pretrained=...), '
                'policy.learn.demonstrations = dict(share=...), policy.learn.preference = dict(weight=...), or another '
                'advantage.'
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


def check_schedule(policy: Combination, demonstrates: bool) -> None:
    key = 'learn.demonstrations.schedule'
    peak, valley = policy[f'{key}.peak'], policy[f'{key}.valley']
    policy.only_with([f'{key}.peak'], demonstrates, 'policy.learn.demonstrations.share above 0')
    policy.only_with(
        (f'{key}.{name}' for name in ('valley', 'warmup', 'decay', 'phi')), peak > 0, f'policy.{key}.peak above 0'
    )
    if valley > peak:
        raise policy.refusal(f'{key}.valley', f'must be at most policy.{key}.peak = {peak}.')
    if peak > 0:
        policy.must_be_default(['learn.demonstrations.weight'], f'with policy.{key}, which gives the coefficient')
        if policy['learn.advantage'] == 'none':
            raise policy.refusal(
                f'{key}.peak', "needs a loss of the policy, which policy.learn.advantage = 'none' lacks."
            )


def check_preference(policy: Combination) -> None:
    prefers = policy['learn.preference.weight'] > 0
    own = ['learn.preference.beta', 'learn.preference.reference']
    policy.only_with(own, prefers, 'policy.learn.preference.weight above 0')
    if not prefers:
        return
    if policy['group_size'] == 1:
        raise policy.refusal('group_size', 'must be at least 2 with policy.learn.preference, which compares two rows.')
    if policy['learn.micro_batch_tokens'] not in ('auto', None):
        needs = 'with policy.learn.preference, which needs both rows of a pair'
        raise policy.refusal('learn.micro_batch_tokens', f"must be 'auto' or None {needs}.")
    if policy['learn.preference.reference'] == 'start' and policy['learn.kl.beta'] == 0:
        raise policy.refusal('learn.preference.reference', 'needs policy.learn.kl.beta above 0, which reads the start.')


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
