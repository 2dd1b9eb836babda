"""``policy.learn.kl``: the KL to a reference policy."""
from ding_common import Rule
from ding_grpo.rl_utils import KL_TYPES

from ..key import COUNT, POSITIVE, SHARE, Combination, Key, optional

KL = dict(
    # (float) Coefficient of the KL to the reference: the initial policy, or the one that ``ref_sync_freq`` renews.
    # 0: no reference. Raise it to keep the policy near the reference.
    beta=Key(0.0, Rule.number(0)),
    # (str) Estimator of that KL: k1, k2 or k3.
    type=Key('k3', Rule.one_of(*KL_TYPES)),
    # (bool) Whether ``beta`` times that KL of the sampling policy is subtracted from the reward of each token, in
    # place of a term of the loss. Its advantage then takes the KL of later tokens into account. Not with
    # ``learn.reward_aggregation='normalize_then_sum'``.
    in_reward=False,
    # (bool) Whether the KL is multiplied by the ratio, which corrects it when groups are used more than once.
    ratio_correction=False,
    # (Optional[float]) KL that ``beta`` follows: it grows by up to 20 % in ``horizon`` rows while ``kl`` is
    # larger, and falls while it is smaller. None: ``beta`` is constant.
    target=optional(POSITIVE),
    # (int) Rows in which ``beta`` changes by up to 20 %. Lower it for a short run.
    horizon=Key(10000, COUNT),
    # (Optional[int]) Updates between two renewals of the reference, as in the iterative GRPO of the paper, or in
    # https://arxiv.org/abs/2404.09656 with a mixup below 1. None: the reference stays the initial policy.
    ref_sync_freq=optional(COUNT),
    # (float) Share of the policy in the renewed reference, in (0, 1].
    ref_sync_mixup=Key(1.0, SHARE),
)


def check(policy: Combination) -> None:
    used = policy['learn.kl.beta'] > 0
    for key in ('in_reward', 'target', 'ref_sync_freq'):
        policy.only_with([f'learn.kl.{key}'], used, 'policy.learn.kl.beta above 0, the coefficient of the KL')
    policy.only_with(['learn.kl.horizon'], policy['learn.kl.target'] is not None, 'policy.learn.kl.target')
    if policy['learn.kl.in_reward']:
        policy.must_be_default(
            ['learn.kl.ratio_correction', 'learn.reward_aggregation'],
            'with policy.learn.kl.in_reward = True, which changes the reward of each token'
        )
