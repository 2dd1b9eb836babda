import os
from typing import Dict

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ding_common import read_json_lines


def draw_curves(runs: Dict[str, str], path: str) -> None:
    """
    Overview:
        Draw the learning curves of one run or several: mean reward of each update, and return of each evaluation.
    Arguments:
        - runs (:obj:`Dict[str, str]`): Label and experiment folder of each run.
        - path (:obj:`str`): PNG to be written.
    """
    figure = Figure(figsize=(9, 3.4), layout='constrained')
    FigureCanvasAgg(figure)
    learning, evaluation = figure.subplots(1, 2)
    for label, folder in runs.items():
        metrics = read_json_lines(os.path.join(folder, 'log', 'learner', 'metrics.jsonl'))
        metrics = [m for m in metrics if 'reward_mean' in m]  # not where nothing could be scored
        learning.plot([m['train_iter'] for m in metrics], [m['reward_mean'] for m in metrics], lw=1, label=label)
        evaluations = read_json_lines(os.path.join(folder, 'log', 'evaluator', 'evaluations.jsonl'))
        evaluation.plot(
            [e['train_iter'] for e in evaluations], [e['eval_episode_return'] for e in evaluations],
            marker='.',
            lw=1,
            label=label
        )
    learning.set(title='sampled in training', xlabel='update', ylabel='mean reward')
    evaluation.set(title='greedy evaluation', xlabel='update', ylabel='mean return')
    for axes in (learning, evaluation):
        axes.grid(alpha=0.3)
    if runs:
        evaluation.legend(fontsize='small', loc='lower right')
    figure.savefig(path, dpi=110)
