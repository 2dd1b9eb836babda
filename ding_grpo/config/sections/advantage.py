"""How the rows of a group are compared."""
from ding_common import ConfigError, Rule
from ding_grpo.rl_utils import ADVANTAGE_METHODS, STEP_ADVANTAGE_METHODS

from ..key import POSITIVE, Combination, Key, optional
from ..loss_options import loss_config

# Values of ``learn.adv_method`` that compare a row with those of all groups.
UNGROUPED_METHODS = ('reinforce_plus_plus', 'batch_mean')
# Those with which a group may have one row.
SINGLE_ROW_METHODS = (*UNGROUPED_METHODS, 'remax')

COMPARISONS = ('outcome', 'return_to_go', 'return_to_go_by_step', 'anchor', 'tree', 'gae', 'none')

ADVANTAGE = dict(
    # (str) What a group compares. 'outcome': the return of each trajectory. 'return_to_go': the return from each
    # step on, among all steps of the group. 'return_to_go_by_step': the same, among the same step of all rows,
    # including rows that have ended. These two are for long episodes. 'gae': nothing; a critic predicts the return
    # of each step (generalized advantage estimation), as in PPO. A group may then have one row. With several turns
    # (``env.max_turns``) a step is a turn; 'return_to_go' is then refused, because it is biased. 'anchor': the
    # outcome, and the return from each turn on among the rows that took one in the same state (``Reply.anchor``).
    # 'tree', with ``collect.tree``: each part of a row by the rows that divide there (``tree_advantage``).
    # 'none': 0 for all, so that the reward is only logged, for a teacher or demonstrations; one row is enough.
    advantage=Key('outcome', Rule.one_of(*COMPARISONS)),
    # (Optional[str]) How advantages are computed, see ``group_advantage``; two methods for single tokens, see
    # ``token_advantage``: 'reinforce_plus_plus', 'optimal_token_baseline'. None: the preset's. 'grpo'
    # divides by the group's standard deviation. 'no_std' does not divide. It is better when the division would
    # scale a small part of the reward, such as a format bonus, up to the size of the answer's. 'batch_mean' subtracts
    # the mean of all rewards of an update, so that a group may have one row. With
    # ``advantage='gae'``: None or 'batch' normalises over all steps of the update, 'no_std' does not normalise.
    adv_method=optional(Rule.one_of(*ADVANTAGE_METHODS, 'reinforce_plus_plus', 'optimal_token_baseline', 'remax')),
    # (float) With 'anchor': weight of the comparison of states beside that of outcomes.
    anchor_weight=Key(1.0, POSITIVE),
    # (str) For agents, whose episodes may have several texts, each a row with the advantage of the episode. 'whole':
    # all of it for each. 'divided': by the number of texts, so that an episode with many does not count more.
    trajectories=Key('whole', Rule.one_of('whole', 'divided')),
    # (str) For several reward parts. 'sum_then_normalize' compares their weighted sum. 'normalize_then_sum' (GDPO,
    # https://arxiv.org/abs/2601.05242) compares each part separately, sums the advantages and divides them by
    # their standard deviation over the batch, so that no part dominates. It needs ``adv_method='grpo'``.
    reward_aggregation=Key('sum_then_normalize', Rule.one_of('sum_then_normalize', 'normalize_then_sum')),
    # (bool) Whether an episode that a time limit truncated counts as if it continued forever with its last reward.
    # For 'return_to_go' with a discount, where the steps before the limit look worse than they are otherwise.
    extend_truncated=False,
)


def check(policy: Combination) -> None:
    advantage, method = policy['learn.advantage'], policy['learn.adv_method']
    policy.only_with(
        ['learn.anchor_weight'], advantage == 'anchor', f"policy.learn.advantage = 'anchor', not {advantage!r}"
    )
    if policy['learn.extend_truncated'] and policy['collect.discount_factor'] == 1:
        raise policy.refusal(
            'learn.extend_truncated', 'needs policy.collect.discount_factor below 1, because the sum of infinitely '
            'many rewards has no limit without a discount.'
        )
    found = loss_config(policy['learn']).adv_method
    if advantage in ('return_to_go_by_step', 'tree') and found not in STEP_ADVANTAGE_METHODS:
        raise ConfigError(  # of the preset, or set individually
            f"policy.learn.adv_method = {found!r}: with advantage {advantage!r} must be one of "
            f"{', '.join(STEP_ADVANTAGE_METHODS)}."
        )
    if advantage in ('gae', 'none'):
        return check_ungrouped(policy, 'learn.advantage')
    if policy['group_size'] == 1 and found not in SINGLE_ROW_METHODS:
        raise policy.refusal(
            'group_size', "a group is compared with itself, so it needs at least 2 rows. Raise it, or set "
            "policy.learn.advantage to 'gae', or policy.learn.adv_method to 'reinforce_plus_plus', 'batch_mean' or "
            "'remax'. "
            "With policy.teacher alone, policy.learn.advantage can be 'none'."
        )
    if method == 'remax':
        policy.must_be(
            'collect.shared_start', True, "with policy.learn.adv_method = 'remax', because one greedy episode is the "
            'baseline of all rows of a group'
        )
    if found in UNGROUPED_METHODS:
        check_ungrouped(policy, 'learn.adv_method' if method == found else 'learn.loss')


def check_ungrouped(policy: Combination, key: str) -> None:
    """Check that nothing depends on a comparison of the rows of a group, which a key's value turns off."""
    reason = f'with policy.{key} = {policy[key]!r}, because the rows of a group are not compared'
    policy.must_be('learn.drop_equal_groups', False, reason)
    collector = policy['collect'].get('collector', {})
    if collector.get('max_replacements', 0) > 0 and collector.get('reward_range') is None:
        raise policy.refusal('collect.collector.max_replacements', f'must be 0 {reason}.')
