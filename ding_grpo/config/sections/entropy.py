"""``policy.learn.entropy``: an entropy bonus, and learning from the tokens of highest entropy alone."""
from ding_common import Rule

from ..key import POSITIVE, SHARE, Combination, Key, optional

ENTROPY = dict(
    # (float) Coefficient of an entropy bonus. Raise it when the entropy collapses before the task is solved.
    weight=Key(0.0, Rule.number(0)),
    # (Optional[float]) Entropy in nats that this coefficient follows, from ``weight`` on: it grows by ``step`` after
    # an update with at most this entropy, and otherwise falls. The bonus acts only below the target. None: the
    # coefficient is constant.
    target=optional(POSITIVE),
    # (float) Change of the coefficient in an update with ``target``.
    step=Key(0.005, POSITIVE),
    # (Optional[float]) Learn only from this share of the update's tokens, those of highest entropy, in (0, 1]. The
    # mean of the loss still counts all tokens; KL and entropy bonus act on all. Costs one more forward pass. None:
    # all tokens. 0.2 in https://arxiv.org/abs/2506.01939.
    top_share=optional(SHARE),
)


def check(policy: Combination) -> None:
    policy.only_with(['learn.entropy.step'], policy['learn.entropy.target'] is not None, 'policy.learn.entropy.target')
