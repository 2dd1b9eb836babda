"""
Known causes why a run does not learn, each a small pure function of the figures so far: None, or a message and the
figures that it rests on. Thresholds are constants with their reason; docs/guides/instruments.md lists them.
``EXPLAINS`` names the symptoms that a cause has: they are not reported once the cause is.
"""
import math
from typing import Any, Callable, Dict, List, Optional, Tuple

from .history import RECENT as UPDATES
from .history import History, Setting

# A state must last UPDATES updates, which a history keeps: one update may be an accident of its problems.
# Rows without an event before it is reported: it is then below 3 / 100 = 3 % with 95 % confidence (rule of three).
ROWS = 100
# The same for a reward part: 3 / 1000 = 0.3 %. With 16 rows, fewer than 5 % of groups then show a rarer part.
PART_ROWS = 1000
# Rows in a row that a limit cut before it is reported: ends are then below 3 / 3000 = 0.1 %. Healthy runs of
# think_answer go through phases with 1 % of ends.
CUT_ROWS = 3000
# Share of its range that the mean of a reward part must reach before the part counts as learned: until then other
# parts may still come, as the answer comes after the format.
LEARNED = 0.9
# Nats: an update that moves log-probabilities by less needs 100,000 of its kind for one nat.
SMALL_MOVE = 1e-5
# Share of tokens that leave the clipping range in one update. AdamW's first step, of a useful size, can move half.
LARGE_SHARE = 0.75
# Looks that must agree, so that a warm-up or a single batch raises no alarm.
LOOKS = 3
# Sum of advantage times change over that of its absolute values; chance gives 0, a reversed sign a value near -1.
AGAINST = -0.05
# Nats, sampler_gap_mean. Rounding is below 1e-5 in float32, and was at most 0.1 in bfloat16.
GAP, GAP_HALF = 1e-2, 0.5
# Standard errors, and nats for each step, by which -log p of sampled actions may differ from the entropy.
ERRORS, NATS = 6.0, 0.02
# Share of the first update's entropy below which exploration is over, and nats for the same.
ENTROPY_SHARE, ENTROPY_NATS = 0.02, 0.01
# Share of groups of identical rows, and updates in a row. Half of the groups are then lost to learning.
COPIES, COPY_UPDATES = 0.5, 3

# Share of rows that a limit cuts while their reward is the best: then the scorer pays for texts that do not end.
CUT_SHARE = 0.5

# Share of the range of returns by which greedy evaluations fall behind sampled episodes: 0.7 in a run of Acrobot that
# learned.
BEHIND = 0.75

Figures = Optional[Dict[str, Any]]


def rate_bound(h: History) -> float:
    """Upper bound, with 95 % confidence, of the rate of an event that no row showed: the rule of three."""
    return 3 / h.rows


def mask(h: History, s: Setting) -> Figures:
    last = h.recent[-1]
    if last['outside'] == 0 and (last['inside'] > 0 or last['steps'] == 0):
        return None
    return dict(
        message=f"the loss counts {last['outside']} steps after the end of their rows, and {last['inside']} of the "
        f"{last['steps']} steps that the policy took: its mask is wrong, perhaps inverted",
        outside=last['outside'],
        inside=last['inside'],
    )


def drift(h: History, s: Setting) -> Figures:
    if not h.drifted:
        return None
    return dict(
        message='the weights of the reference changed although policy.learn.kl.ref_sync_freq did not renew it: the KL '
        'is relative to a moving policy'
    )


def apart(h: History, s: Setting) -> Figures:
    total, squares, steps = h.surprise
    gaps = [u['sampler_gap_mean'] for u in h.recent if 'sampler_gap_mean' in u]
    gap = sum(gaps) / len(gaps) if gaps else 0.0
    errors = total / math.sqrt(squares) if squares > 0 else 0.0
    excess = total / steps if steps else 0.0
    off = s.tokens and abs(errors) > ERRORS and abs(excess) > NATS
    if not (s.exact or s.tokens):  # the model has dropout or batch norm, which act in learning alone
        return None
    if not off and gap <= (GAP if s.exact else GAP_HALF):
        return None
    how = ''
    if off:
        how = f'; sampled actions are {abs(excess):.2g} nats {"less" if excess > 0 else "more"} probable than the ' \
            f'entropy of the learner says, as if sampled at a {"higher" if excess > 0 else "lower"} temperature'
    return dict(
        message=f'sampler and learner are apart: their log-probabilities of the same tokens and weights differ by '
        f'{gap:.2g} on average{how}. Both must use policy.collect.temperature = {s.temperature:g}, top_k and top_p',
        gap=gap,
        excess=excess,
        errors=errors,
    )


def step_small(h: History, s: Setting) -> Figures:
    looks = h.looks[-LOOKS:]
    if len(looks) < LOOKS or any(k['moved'] >= SMALL_MOVE or k['rate'] < s.learning_rate / 2 for k in looks):
        return None
    moved = max(k['moved'] for k in looks)
    return dict(
        message=f'policy.learn.learning_rate = {s.learning_rate:g} is too small to move anything: an update changes '
        f'log-probabilities by at most {moved:.1g} nats on average. Raise it',
        moved=moved,
    )


def step_large(h: History, s: Setting) -> Figures:
    looks = h.looks[-LOOKS:]
    large = [k for k in looks if k['outside'] > LARGE_SHARE]
    if len(large) < 2:
        return None
    return dict(
        message=f'policy.learn.learning_rate = {s.learning_rate:g} is too large: after an update '
        f"{large[-1]['outside']:.0%} of the tokens have ratios outside [0.83, 1.2], and log-probabilities have changed "
        f"by {large[-1]['moved']:.2g} nats on average. Lower it",
        outside=large[-1]['outside'],
        moved=large[-1]['moved'],
    )


def against(h: History, s: Setting) -> Figures:
    follow = [k['follow'] for k in h.looks if 'follow' in k]
    if len(follow) < UPDATES or sum(follow) / UPDATES >= AGAINST or sum(f < 0 for f in follow) < UPDATES - 1:
        return None
    return dict(
        message='after updates the log-probabilities of rows with positive advantage did not rise relative to those '
        f'with negative advantage (advantage times change: {sum(follow) / UPDATES:+.2f} in [-1, 1]): check the sign '
        'of the reward and of your surrogate',
        follow=sum(follow) / UPDATES,
    )


def copies(h: History, s: Setting) -> Figures:
    recent = h.recent[-COPY_UPDATES:]
    # Nothing can be compared then, whatever the rewards.
    one_token = s.narrow and h.first.get('entropy', 0.0) <= ENTROPY_NATS and \
        all(u['groups'] > 0 and u.get('identical', 0) == u['groups'] for u in recent)
    many = all(u['groups'] > 0 and u['copies'] >= COPIES * u['groups'] for u in recent)
    if len(recent) < COPY_UPDATES or not (one_token or many and not (h.at_best and h.low < h.high)):
        return None
    last = recent[-1]
    how = f'raise policy.collect.temperature = {s.temperature:g}, or check the seeds of the sampler'
    if s.narrow:
        how = f'change {s.narrow}, or check the seeds of the sampler'
    if _without_entropy(h, s, recent):
        if last['mean'] <= h.first['mean'] + h.first['std']:
            return None  # ``entropy_gone`` is the cause
        how = f"the entropy fell from {h.first['entropy']:.2g} to {last['entropy']:.2g} nats before the best reward " \
            'came. Raise policy.learn.entropy.weight, or lower learning_rate'
    number = last['groups' if one_token else 'copies']
    return dict(
        message=f"{number} of {last['groups']} groups are copies of one row, which cannot be compared: {how}",
        copies=number,
        groups=last['groups'],
    )


def no_end(h: History, s: Setting) -> Figures:
    if not s.tokens or s.turns > 1 or h.ended > 0 or h.rows < ROWS or len(h.recent) < UPDATES:
        return None
    return dict(
        message=f'none of {h.rows:,} completions ended with an end-of-sequence token: with 95 % confidence fewer than '
        f'{rate_bound(h):.2%} do. Raise env.max_new_tokens, check the tokenizer\'s end-of-sequence token, or warm '
        'start on complete answers',
        samples=h.rows,
        bound=rate_bound(h),
    )


def cut(h: History, s: Setting) -> Figures:
    most = ROWS if s.masks_truncated else CUT_ROWS  # masked rows teach nothing, so this is an emergency
    if not s.tokens or h.cut_rows < most or not h.all_recent(lambda u: u['cut'] == u['rows']):
        return None
    return dict(
        message=f'the last {h.cut_rows:,} rows were all cut by a limit'
        f"{', and policy.learn.mask_truncated = True masks all of them' if s.masks_truncated else ''}: raise "
        f"{'env.max_turns or env.max_tokens' if s.turns > 1 else 'env.max_new_tokens'}",
        rows=h.cut_rows,
    )


def cut_paid(h: History, s: Setting) -> Figures:
    last = h.recent[-1]
    learned = h.low < h.high and h.at_best and h.all_recent(lambda u: u['cut'] >= CUT_SHARE * u['rows'])
    if not s.tokens or s.turns > 1 or not (learned or h.cut_at_bar >= CUT_SHARE):
        return None
    share = h.cut_at_bar or last['cut'] / last['rows']
    return dict(
        message=f'a limit cuts {share:.0%} of the completions, and the scorer pays for them as for whole ones. Score '
        'the whole text, or set must_end and return_part of the task',
        share=share,
    )


def no_part(h: History, s: Setting) -> Figures:
    if not s.reward_weights or h.parts or not h.low == h.high == 0 or h.rows < ROWS or len(h.recent) < UPDATES:
        return None
    return dict(
        message=f'no part of the reward applied to any of {h.rows:,} samples: the scorer returned None for '
        f'{_listed([*s.reward_weights])} every time, which counts as 0. Return a number where a part applies',
        samples=h.rows,
    )


def no_success(h: History, s: Setting) -> Figures:
    if h.low != h.high or h.high > 0 or h.rows < ROWS or len(h.recent) < UPDATES:
        return None
    return dict(
        message=f'no success among {h.rows:,} samples, all of which have the reward {h.high:g}: with 95 % confidence '
        f'fewer than {rate_bound(h):.2%} of samples succeed (3/N). Warm start, give partial credit, or begin with '
        'easier problems',
        samples=h.rows,
        bound=rate_bound(h),
    )


def always_paid(h: History, s: Setting) -> Figures:
    if h.low != h.high or h.high <= 0 or h.rows < ROWS or len(h.recent) < UPDATES:
        return None
    return dict(
        message=f'all {h.rows:,} samples have the same reward, {h.high:g}: the task is solved from the start, or its '
        'scorer pays for everything',
        samples=h.rows,
        reward=h.high,
    )


def one_part(h: History, s: Setting) -> Figures:
    weights, main = s.reward_weights, s.return_part
    if main is not None and weights.get(main) == 0:
        paid = [name for name, weight in weights.items() if weight != 0]
        return dict(
            message=f'the part {main!r}, which evaluation reports, has no weight in the reward, which consists of '
            f'{_listed(paid)} alone: check env.reward_weights',
            parts=paid
        )
    differ = [name for name, (low, high) in h.parts.items() if low < high]
    same = [name for name, (low, high) in h.parts.items() if low == high and weights.get(name) != 0]
    if len(differ) != 1 or not same or h.rows < PART_ROWS:
        return None
    low, high = h.parts[differ[0]]
    if not h.all_recent(lambda u: u['parts'].get(differ[0], [0, 0, low])[2] >= low + LEARNED * (high - low)):
        return None
    return dict(
        message=f'only the reward part {differ[0]!r} differs between samples, and it is learned; {_listed(same)} did '
        f'not change among {h.rows:,} samples (with 95 % confidence in fewer than {rate_bound(h):.2%} of them)',
        parts=differ,
        samples=h.rows,
        bound=rate_bound(h),
    )


def _listed(names: List[str]) -> str:
    return ', '.join(map(repr, names)) or 'nothing'


def _without_entropy(h: History, s: Setting, updates: List[Dict[str, Any]]) -> bool:
    """Whether the entropy of these updates has fallen below the limit, from above it."""
    first = h.first.get('entropy', 0.0)
    limit = max(ENTROPY_SHARE * first, ENTROPY_NATS)
    return s.tokens and first > ENTROPY_NATS and all(u.get('entropy', math.inf) < limit for u in updates)


def entropy_gone(h: History, s: Setting) -> Figures:
    last = h.recent[-1]
    if len(h.recent) < UPDATES or not _without_entropy(h, s, h.recent) or \
            last['mean'] > h.first['mean'] + h.first['std']:
        return None
    entropy = last['entropy']
    return dict(
        message=f"the entropy fell from {h.first['entropy']:.2g} to {entropy:.2g} nats before the reward came (mean "
        f"{h.first['mean']:.2g} at first, {last['mean']:.2g} now): raise policy.learn.entropy.weight or "
        'clip.ratio_high, or lower learning_rate',
        entropy=entropy,
        mean=last['mean'],
    )


def equal(h: History, s: Setting) -> Figures:
    if not h.all_recent(lambda u: u['groups'] > 0 and u['equal'] == u['groups']) or h.low == h.high or h.at_best:
        return None
    return dict(
        message=f'the rewards of every group of the last {UPDATES} updates are equal within the group, so nothing can '
        'be compared: raise policy.group_size or temperature, or use problems of other difficulty',
        updates=UPDATES,
    )


def greedy_behind(h: History, s: Setting) -> Figures:
    newest, entropy = h.evaluations[-LOOKS:], h.recent[-1].get('entropy', 0.0)
    low, high, _ = h.returns or (0.0, 0.0, 0.0)
    limit = BEHIND * (high - low)
    if len(newest) < LOOKS or limit <= 0 or entropy < ENTROPY_NATS or \
            any(sampled is None or sampled - greedy < limit for greedy, sampled in newest):
        return None
    greedy, sampled = newest[-1]
    return dict(
        message=f'greedy evaluations return {greedy:.3g}, while sampled episodes return {sampled:.3g}: the policy is '
        f'still soft ({entropy:.2g} nats), and its most probable actions alone do not reach the goal, for example '
        'because they repeat each other. Evaluate by sampling (policy.eval.evaluator.sample=True), or train on with a '
        'lower policy.learn.entropy.weight',
        greedy=greedy,
        sampled=sampled,
    )


# In the order in which they are sought: causes before their symptoms.
CAUSES: Dict[str, Callable[[History, Setting], Figures]] = {
    cause.__name__: cause
    for cause in (
        mask, drift, apart, step_small, step_large, copies, no_part, no_success, always_paid, one_part, no_end, cut,
        against, entropy_gone, equal, cut_paid, greedy_behind
    )
}
# What is no cause where the reward is not learned from (``learn.advantage='none'``).
OF_REWARD = (
    'no_part', 'no_success', 'always_paid', 'wrong_key', 'junk_pays', 'one_part', 'copies', 'equal', 'entropy_gone',
    'cut_paid'
)
_NOTHING_TO_COMPARE = ('equal', 'copies', 'entropy_gone')
_COLLAPSE = ('no_success', 'always_paid', 'one_part', 'no_end', 'cut', 'against', *_NOTHING_TO_COMPARE)
EXPLAINS: Dict[str, Tuple[str, ...]] = dict(
    mask=('apart', 'step_small', 'step_large', *_COLLAPSE),
    apart=('against', 'step_large', *_NOTHING_TO_COMPARE),
    step_large=_COLLAPSE,
    copies=('no_success', 'one_part', 'equal', 'entropy_gone', 'no_end', 'cut'),
    no_part=('no_success', *_NOTHING_TO_COMPARE),
    no_success=('one_part', *_NOTHING_TO_COMPARE),
    always_paid=('one_part', *_NOTHING_TO_COMPARE),
    no_end=('cut', 'one_part'),
    wrong_key=('one_part', *_NOTHING_TO_COMPARE),
    junk_pays=('one_part', *_NOTHING_TO_COMPARE),
    entropy_gone=('equal', ),
)
