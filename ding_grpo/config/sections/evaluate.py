"""``policy.eval``: evaluation during a run."""
from ding_common import MOST, Rule

from ..key import COUNT, Combination, Key

EVAL = dict(
    # (bool) False: evaluate in the type of the weights where ``policy.model.autocast`` learns in another. The saved
    # folder then has the evaluated accuracy also in plain transformers, decoded greedily. For language models.
    autocast=True,
    evaluator=dict(
        # (int) Updates between two evaluations.
        eval_freq=Key(10, COUNT),
        # (int) Episodes of the sampling policy from each start, in addition to the greedy one.
        samples_per_start=Key(0, Rule.integer(0, MOST)),
        # (bool) Whether the return that stops the run and selects the best checkpoint is that of the sampled
        # episodes, at least one from each start, in place of the greedy ones. For tasks whose best policy is
        # random, or stays soft for long. Both returns are reported.
        sample=False,
        # (List[int]) Values of k for pass@k: the probability that at least one of k samples is correct (unbiased),
        # with a confidence interval over the starts. Needs ``samples_per_start`` of at least k.
        pass_at=Key([], Rule.list_of('integers of at least 1', COUNT.holds)),
        # (float) Smallest return of a correct sample.
        right_from=Key(1.0, Rule.number()),
        # (float) Largest share of completions in an evaluation that may fail to be scored; the run stops when it
        # is exceeded.
        max_failed=Key(0.1, Rule.number(0, 1)),
    ),
)


def check(policy: Combination) -> None:
    samples, pass_at = policy['eval.evaluator.samples_per_start'], policy['eval.evaluator.pass_at']
    if any(k > samples for k in pass_at):
        raise policy.refusal(
            'eval.evaluator.pass_at', f'needs samples_per_start of at least {max(pass_at)}, which is {samples}.'
        )
