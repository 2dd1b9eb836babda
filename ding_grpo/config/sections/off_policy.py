"""``policy.learn.off_policy``: corrections for rows that another policy sampled."""
from ding_common import Rule
from ding_grpo.rl_utils import CORRECTIONS, KL_TYPES, OUTSIDE

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
    # (Optional[float]) Smallest importance weight of ``correction``, from 0 to 1. None: 0.
    low=optional(Rule.number(0, 1)),
    # (str) What an importance weight outside the bounds becomes. 'truncate': the bound. 'mask': 0, so that the token,
    # or the sequence, is not learned from. IcePop: correction='token', low=0.5, bound=5, outside='mask'.
    outside=Key('truncate', Rule.one_of(*OUTSIDE)),
    # (Optional[float]) Mask negative advantages in rows from which the policy has moved far away: more than this
    # mean of ``logp_old - logp_new`` over the row's tokens, in nats. None: no row. It costs the same forward pass
    # (off-policy sequence masking, https://arxiv.org/abs/2512.02556).
    mask=optional(POSITIVE),
    # (Optional[float]) Do not learn from rows whose mean KL estimate between sampler and policy at the start of the
    # update exceeds this, in nats, whatever their advantage. None: no row. It costs the same forward pass.
    row_mask=optional(POSITIVE),
    # (str) The estimate of ``row_mask``: 'k1' (its absolute value), 'k2' or 'k3'.
    row_mask_type=Key('k3', Rule.one_of(*KL_TYPES)),
)


def check(policy: Combination) -> None:
    of_correction = [f'learn.off_policy.{key}' for key in ('bound', 'low', 'outside')]
    for keys, key in ((of_correction, 'correction'), (['learn.off_policy.row_mask_type'], 'row_mask')):
        policy.only_with(keys, policy[f'learn.off_policy.{key}'] is not None, f'policy.learn.off_policy.{key}')
    loss = loss_config(policy['learn'])
    by_token = (f'learn.off_policy.{key}' for key in ('correction', 'mask', 'row_mask'))
    for key in (*by_token, 'learn.entropy.top_share'):  # these change advantages of single tokens
        if policy[key] is not None and not needs_advantage(loss.surrogate, loss.surrogate_options):
            raise policy.refusal(
                key, f"not available with surrogate {surrogate_name(policy['learn'])!r}. Its loss of a token does not "
                'vanish with the advantage of the token, or it depends on other advantages.'
            )
