import os
from typing import Dict

from ding_common import read_json_lines
from ding_common.picture import finish, line_style, new_figure


def draw_curves(runs: Dict[str, str], path: str) -> None:
    """
    Overview:
        Draw the learning curves of one or several runs: mean reward of each update, and return of each evaluation.
    Arguments:
        - runs (:obj:`Dict[str, str]`): Label and experiment folder of each run.
        - path (:obj:`str`): PNG to write.
    """
    figure, (learning, evaluation) = new_figure(2)
    for number, (label, folder) in enumerate(runs.items()):
        style = dict(line_style(number), lw=1.2, label=label)
        metrics = read_json_lines(os.path.join(folder, 'log', 'learner', 'metrics.jsonl'))
        metrics = [m for m in metrics if 'reward_mean' in m]  # not of updates in which nothing could be scored
        learning.plot([m['train_iter'] for m in metrics], [m['reward_mean'] for m in metrics], **style)
        evaluations = read_json_lines(os.path.join(folder, 'log', 'evaluator', 'evaluations.jsonl'))
        steps, returns = [e['train_iter'] for e in evaluations], [e['eval_episode_return'] for e in evaluations]
        evaluation.plot(steps, returns, marker='.', **style)
    learning.set(title='sampled in training', xlabel='update', ylabel='mean reward')
    evaluation.set(title='greedy evaluation', xlabel='update', ylabel='mean return')
    finish(figure, path)
