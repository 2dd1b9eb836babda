import os
from typing import Any, Dict, List

from ding_common import read_json_lines


def draw_curves(runs: Dict[str, str], path: str) -> None:
    """Draw the learning curves of runs, given their folders by label: mean reward of each update, and return of each
    evaluation. DI-engine's own policies do not report the reward; without it only the evaluations are drawn."""
    from ding_common.output.picture import finish, line_style, new_figure
    metrics = {label: _read(folder, 'learner', 'metrics.jsonl') for label, folder in runs.items()}
    learned = not any(metrics.values()) or any('reward_mean' in m for of_run in metrics.values() for m in of_run)
    figure, panels = new_figure(2 if learned else 1, squeeze=False)
    evaluation = panels[0, -1]
    for number, (label, folder) in enumerate(runs.items()):
        style = dict(line_style(number), lw=1.2, label=label)
        if learned:
            scored = [m for m in metrics[label] if 'reward_mean' in m]  # not updates in which nothing could be scored
            panels[0, 0].plot([m['train_iter'] for m in scored], [m['reward_mean'] for m in scored], **style)
        evaluations = _read(folder, 'evaluator', 'evaluations.jsonl')
        steps, returns = [e['train_iter'] for e in evaluations], [e['eval_episode_return'] for e in evaluations]
        evaluation.plot(steps, returns, marker='.', **style)
    if learned:
        panels[0, 0].set(title='sampled in training', xlabel='update', ylabel='mean reward')
    evaluation.set(title='greedy evaluation', xlabel='update', ylabel='mean return')
    finish(figure, path)


def _read(folder: str, worker: str, name: str) -> List[Dict[str, Any]]:
    return read_json_lines(os.path.join(folder, 'log', worker, name))
