"""Causes that show before the first update: what the scorer pays for texts that no policy wrote."""
from typing import Any, Dict, List, Optional, Tuple


def of_probes(probes: List[Dict[str, Any]]) -> Optional[Tuple[str, Dict[str, Any]]]:
    """The cause that shows when the demonstration and texts that answer nothing are scored, with its message and
    figures; None if the demonstration is worth more than the others in most problems. ``probes`` has for each problem
    and text: ``problem``, ``kind`` ('demonstration' or another), ``text``, ``reward`` and ``value`` (what evaluation
    reports), both None if it could not be scored, and ``ended``, False if a limit cut it."""
    scored = [p for p in probes if p['value'] is not None]
    problems = sorted({p['problem'] for p in scored if p['kind'] == 'demonstration'})
    if not problems:
        return None
    rewards = {p['reward'] for p in scored}
    if len(rewards) == 1:
        reward = rewards.pop()
        pays = 'pays for everything' if reward > 0 else 'pays for nothing'
        return 'always_paid' if reward > 0 else 'no_success', dict(
            message=f'the scorer {pays}: the demonstration, the empty text, the prompt copied and junk all have the '
            f'reward {reward:g}',
            reward=reward
        )
    if not any(p['ended'] for p in scored if p['kind'] == 'demonstration'):
        return 'no_end', dict(
            message='the end-of-sequence token after the demonstration does not end it: the environment waits for '
            'another token, so every completion is cut. Check the end-of-sequence tokens of env.tokenizer'
        )
    worse = []
    for problem in problems:
        own = [p for p in scored if p['problem'] == problem]
        best = max((p for p in own if p['kind'] != 'demonstration'), key=lambda p: p['value'], default=None)
        shown = next(p for p in own if p['kind'] == 'demonstration')
        if best is not None and best['value'] >= shown['value']:
            worse.append((shown, best))
    if 2 * len(worse) <= len(problems):
        return None
    shown, best = max(worse, key=lambda pair: pair[1]['value'])
    figures = dict(problem=shown['problem'], demonstration=shown['value'], other=best['value'])
    if best['value'] > 0:
        return 'junk_pays', dict(
            message=f"junk pays: for problem {shown['problem']} the text {best['text']!r:.60} ({best['kind']}) gets "
            f"{best['value']:g}, the demonstration {shown['value']:g}. Make the scorer stricter",
            **figures
        )
    return 'wrong_key', dict(
        message=f"the scorer does not pay for the demonstration {shown['text']!r:.60} of problem {shown['problem']} "
        f"({shown['value']:g}): check the answer key and how answers are compared",
        **figures
    )
