"""``policy.learn.off_policy``: corrections for rows that another policy sampled."""
from ding_common import Rule
from ding_grpo.rl_utils import CORRECTIONS

from ..key import POSITIVE, Combination, Key, optional
from ..loss_options import loss_config, surrogate_name
from ..surrogate import needs_advantage

OFF_POLICY = dict(
    # (Optional[str]) For groups that older weights sampled, and for sampling in another number format. Ratios are
    # relative to the policy at the start of the update, and each advantage is multiplied by the truncated
    # importance weight of this policy relative to the sampler: of each 'token', or of the whole 'sequence'
    # (docs/reference/losses.md). Costs one more forward pass. None: ratios are relative to the sampler.
    correction=optional(Rule.one_of(*CORRECTIONS)),
    # (float) Largest importance weight of ``correction``, at least 1. ``correction_cut`` shows how often it acts.
    bound=Key(2.0, Rule.number(1)),
    # (Optional[float]) Mask negative advantages in rows from which the policy has moved far away: more than this
    # mean of ``logp_old - logp_new`` over the row's tokens, in nats. None: no row. It costs the same forward pass
    # (off-policy sequence masking, https://arxiv.org/abs/2512.02556).
    mask=optional(POSITIVE),
)


def check(policy: Combination) -> None:
    policy.only_with(
        ['learn.off_policy.bound'], policy['learn.off_policy.correction'] is not None,
        'policy.learn.off_policy.correction'
    )
    loss = loss_config(policy['learn'])
    by_token = ('learn.off_policy.correction', 'learn.off_policy.mask', 'learn.entropy.top_share')
    for key in by_token:  # these change advantages of single tokens
        if policy[key] is not None and not needs_advantage(loss.surrogate, loss.surrogate_options):
            raise policy.refusal(
                key, f"not available with surrogate {surrogate_name(policy['learn'])!r}. Its loss of a token does not "
                'vanish with the advantage of the token, or it depends on other advantages.'
            )
