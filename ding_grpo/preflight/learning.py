"""Whether a tiny model learns the reward of a handful of problems: if it cannot, a large one may not either."""
import contextlib
import io
import os
from tempfile import TemporaryDirectory
from typing import Any, Dict, List, NamedTuple

from ding.utils import ENV_REGISTRY

from ding_common import read_json_lines
from ding_grpo.bonus import GRPO
from ding_grpo.instruments.watch import FINDINGS

from .examination import Part

UPDATES, GROUP = 60, 16
BUDGET = 60.0  # seconds of the scores of a trial, beyond which it is left out
LEARNED = 0.5  # of the way from the reward before to that of right completions, greedy
LONGEST = 24  # tokens of a right completion, beyond which a tiny model needs longer
MODEL = dict(model_type='llama', hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
SHOWN = dict(share=0.5, schedule=dict(peak=0.9, valley=0.0, decay=UPDATES // 2))  # demonstrations, of the first half


class Trial(NamedTuple):
    """What came of a run: the greedy reward before and after, and the findings of the run."""
    before: float
    after: float
    findings: List[Dict[str, Any]]


def of_learning(env: Dict[str, Any], form: str, reward: float, seconds: float = 0.0, updates: int = UPDATES) -> Part:
    """
    Train a tiny model on few problems, at first from the reward alone, and if it does not learn with demonstrations
    before. Of ``env``, a section of a config, the task and its weights count. ``form``, see ``FewTask``, and ``reward``
    are those of right completions; a score takes ``seconds``.
    """
    few = dict(task=dict(type='few', task=env['task'], form=form), reward_weights=env.get('reward_weights', {}))
    task = ENV_REGISTRY.get('token_env').task_of(few)
    if task.longest > LONGEST:
        return Part(
            'learning', [f'left out: right completions have {task.longest} words or characters'], [], examined=False
        )
    scoring = updates * 8 * GROUP * seconds
    if scoring > BUDGET:
        return Part('learning', [f'left out: its scores would take {scoring:,.0f} s'], [], examined=False)
    lines = [f'a tiny model on {len(task)} problems, {updates} updates of {8 * GROUP} rows']
    for shows, told in ((False, 'from the reward alone'), (True, 'with demonstrations in the first half')):
        trial = _train(few, task.longest, shows, updates)
        lines.append(f'{told}: greedy reward {trial.before:.3g} before, {trial.after:.3g} after')
        if trial.after >= trial.before + LEARNED * (reward - trial.before) > trial.before:
            return Part('learning', lines, [])
    causes = '; '.join(f"{f['cause']}: {f['message']}" for f in trial.findings) or 'its run names no cause'
    message = f'a tiny model does not learn this reward, of {reward:.3g} for a right completion ({causes})'
    return Part('learning', lines, [dict(cause='not_learned', message=message, reward=trial.after)])


def _train(env: Dict[str, Any], longest: int, shows: bool, updates: int) -> Trial:
    keys: Dict[str, Any] = dict(
        env,
        model=dict(config=dict(MODEL, max_position_embeddings=1024)),
        group_size=GROUP,
        collect=dict(groups=8),
        max_new_tokens=longest + 1,
        learn=dict(batch_groups=4, learning_rate=1e-3, entropy=dict(weight=0.01)),
        eval_freq=updates,
    )
    if shows:
        keys['learn']['demonstrations'] = SHOWN
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, contextlib.redirect_stdout(io.StringIO()):
        run = GRPO(exp_name=os.path.relpath(folder), **keys)
        before = run.evaluate()['return']
        run.train(updates=updates)
        found = read_json_lines(os.path.join(folder, FINDINGS))
        return Trial(before, run.evaluate()['return'], found)
