"""The loss of the policy, and ``policy.learn.clip``, the bounds of its ratio."""
from ding_common import Rule
from ding_grpo.rl_utils import LOSS_PRESETS, RATIOS, REDUCTIONS

from ..key import POSITIVE, SHARE, Combination, Key, optional
from ..loss_options import loss_config, surrogate_name

LOSS = dict(
    # (str) A preset of the choices below, by the name of its paper: grpo, bnpo, dr_grpo, dapo, cispo, sapo, gspo,
    # gspo_token, luspo, dppo_tv, dppo_kl, gmpo, gpg, dro, clip_cov, kl_cov, vespo, cpgd, fipo, m2po, real,
    # flash_reinforce (docs/reference/losses.md). A choice that is None takes the preset's value.
    loss=Key('grpo', Rule.one_of(*LOSS_PRESETS)),
    # (Optional[str]) 'token' for a ratio per token, 'sequence' for a ratio per row. 'sequence_token' for that of the
    # row with each token's own gradient, where tokens have different advantages (GSPO-token).
    ratio=optional(Rule.one_of(*RATIOS)),
    # (Optional[str]) 'clip', 'cispo', 'sapo', 'dppo_tv', 'dppo_kl', 'geo_mean', 'gpg', 'dro', 'clip_cov',
    # 'kl_cov', 'vespo', 'cpgd', 'fipo', 'm2po', 'real', 'flash_reinforce', or 'module:function' for your own
    # (docs/reference/losses.md).
    surrogate=optional(Rule('the name of a surrogate', lambda v: isinstance(v, str))),
    # (dict) Options of that surrogate by name, such as ``dict(dual_clip=3.0)`` of 'clip'
    # (docs/reference/losses.md).
    surrogate_options=dict(),
    # (Optional[str]) Divisor of the loss of a token: 'sequence', 'token', 'constant' or 'sum'
    # (docs/reference/losses.md).
    reduction=optional(Rule.one_of(*REDUCTIONS)),
    # (bool) Whether to skip groups with equal rewards, and with them their KL and entropy terms. It saves time and
    # changes the mean of the loss.
    drop_equal_groups=False,
    # (bool) Whether completions that the length limit truncated are masked in the loss. They still count in the
    # comparison of their group. For tasks whose answer comes last, if truncation says nothing about quality.
    mask_truncated=False,
)

CLIP = dict(
    # (Optional[float]) Clipping range of the probability ratio, in (0, 1]. None: the preset's.
    ratio=optional(SHARE),
    # (Optional[float]) Clipping range above 1. None: ``ratio``. Raise it to let rare good tokens grow faster.
    ratio_high=optional(POSITIVE),
    # (Optional[float]) Bound of the ratio for negative advantages, greater than 1 + the clipping range.
    delta=optional(Rule.number(1, open_low=True)),
)


def check(policy: Combination) -> None:
    loss = loss_config(policy['learn'])
    if loss.reduction != 'sequence' and loss.traits.of_row:
        raise policy.refusal(
            'learn.reduction',
            f"must be 'sequence' with surrogate {surrogate_name(policy['learn'])!r}, whose loss is a mean over rows."
        )
