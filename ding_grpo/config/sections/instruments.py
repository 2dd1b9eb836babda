"""``policy.instruments``: measurements beside training, which change nothing that is trained."""
from ding_common import Rule
from ding_grpo.rl_utils import LOSS_PRESETS

from ..key import COUNT, Combination, Key, optional

_LIST = Rule.list_of(f"presets: {', '.join(LOSS_PRESETS)}", lambda v: isinstance(v, str) and v in LOSS_PRESETS)
_PRESETS = Rule(f"'all' or {_LIST.allowed}", lambda v: v == 'all' or _LIST.holds(v))

INSTRUMENTS = dict(
    # (Union[str, List[str]]) Shadow losses: presets whose loss and gradient are measured beside the loss in use,
    # which they do not change (docs/guides/instruments.md). 'all': every preset that the run allows.
    shadow=Key([], _PRESETS),
    # (int) Updates between two that also measure the gradients of shadow losses in the weights, for one backward
    # pass for each loss. 0: never.
    shadow_every=Key(0, Rule.integer(0)),
    # (int) Updates between two that also measure the noise scale in the weights (docs/guides/instruments.md), for
    # one more forward and backward pass. 0: never.
    noise_every=Key(0, Rule.integer(0)),
    # (Optional[int]) Updates between two records of every token in log/learner/tokens.jsonl: log-probability before
    # and after the update, entropy, advantage. ``python -m ding_grpo.report`` shows them
    # (docs/guides/instruments.md). A record takes three forward passes. None: no record.
    tokens_every=optional(COUNT),
    # (bool) Whether to write a chain of digests of every stage of every update, ``log/learner/digests.jsonl``, by which
    # ``python -m ding_grpo.bisect`` and ``python -m ding_grpo.verify`` compare runs (docs/guides/compare_runs.md).
    digests=True,
    # (float) Megabytes of that file, beyond which an update's line has a hash for each stage, and not for each row and
    # tensor; except for updates that follow a checkpoint. A full line has some tens of kilobytes.
    digests_limit=Key(64, Rule.number(0)),
)


def check(policy: Combination) -> None:
    if policy['instruments.shadow_every'] > 0 and not policy['instruments.shadow']:
        raise policy.refusal(
            'instruments.shadow_every', "needs losses to compare. Set policy.instruments.shadow, for example to 'all'."
        )
