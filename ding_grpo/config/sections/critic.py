"""``policy.learn.critic``: values of states, for ``policy.learn.advantage='gae'``."""
from ding_common import Rule

from ..key import POSITIVE, Combination, Key, optional

METHODS = ('batch', 'no_std')  # values of ``learn.adv_method``

CRITIC = dict(
    # (Optional[dict]) A language model for the values, arguments as of ``policy.model``. None: a value head on the
    # policy's model, which costs little. Other models contain their values, as 'vac' does.
    model=optional(Rule('a dict', lambda v: isinstance(v, dict))),
    # (float) 0 trusts the critic for all later steps, 1 uses it as a baseline only. 1 for completions that are
    # rewarded at their end.
    gae_lambda=Key(0.95, Rule.number(0, 1)),
    # (float) Coefficient of the critic's loss, half the squared error. Lower it when returns are large.
    value_weight=Key(0.5, POSITIVE),
    # (bool) Whether the critic predicts returns divided by their running standard deviation. Use it for returns much
    # larger than 1, whose squared errors would dominate the gradient.
    value_norm=False,
    # (Optional[float]) Clipping range of the change of a value in an update. None: no clipping.
    value_clip=optional(POSITIVE),
    # (int) Updates at the start that train the value head only, until its predictions are useful.
    value_warmup=Key(0, Rule.integer(0)),
)


def check(policy: Combination) -> None:
    advantage, method = policy['learn.advantage'], policy['learn.adv_method']
    keys = [f'learn.critic.{key}' for key in CRITIC]
    policy.only_with(keys, advantage == 'gae', f"policy.learn.advantage = 'gae', not {advantage!r}")
    if advantage != 'gae':
        return
    if method not in (None, *METHODS):
        raise policy.refusal('learn.adv_method', f"with advantage 'gae' must be None or one of {', '.join(METHODS)}.")
    reasons = dict(extend_truncated='what follows a time limit', reward_aggregation='the sum of the reward parts')
    for key, predicted in reasons.items():
        policy.must_be_default(
            [f'learn.{key}'], f"with policy.learn.advantage = 'gae', because the critic predicts {predicted}"
        )
