"""The keys of ``policy`` in a config whose policy type is ``grpo``, from their sections, and their checks."""
from .key import split
from .sections import (
    advantage, collect, critic, entropy, evaluate, instruments, kl, loss, off_policy, policy, processors, run,
    supervised, update
)

KEYS = dict(
    **policy.POLICY,
    learn=dict(
        **update.UPDATE,
        **loss.LOSS,
        **advantage.ADVANTAGE,
        # Bounds of the probability ratio.
        clip=loss.CLIP,
        # The KL to a reference policy.
        kl=kl.KL,
        # An entropy bonus, and learning from the tokens of highest entropy alone.
        entropy=entropy.ENTROPY,
        # For ``advantage='gae'``.
        critic=critic.CRITIC,
        # Corrections for rows that another policy sampled.
        off_policy=off_policy.OFF_POLICY,
        # What the policy learns from ``policy.teacher``.
        distillation=supervised.DISTILLATION,
        # Supervised tokens in each update: right completions of training problems (``Task.demonstration``). For
        # language models.
        demonstrations=supervised.DEMONSTRATIONS,
        # A loss of the tokens that the environment replies (ECHO), which the policy learns to predict. For several
        # turns.
        environment_tokens=supervised.ENVIRONMENT_TOKENS,
        # A preference loss on pairs of rows, DPO: the best of each group against the worst. For language models.
        preference=supervised.PREFERENCE,
    ),
    collect=collect.COLLECT,
    eval=evaluate.EVAL,
    # How long a run lasts, and what it keeps.
    run=run.RUN,
    # Measurements beside training, which change nothing that is trained.
    instruments=instruments.INSTRUMENTS,
)

DEFAULTS, RULES = split(KEYS)

# Each section's check of its keys against others.
CHECKS = [
    section.check for section in (
        collect, processors, evaluate, policy, loss, advantage, critic, kl, entropy, off_policy, supervised, update,
        instruments
    )
]
