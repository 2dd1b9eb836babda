"""
Step by step beside TRL: this project learns think_answer without its entropy bonus, and TRL takes the same optimizer
steps from the same weights, on the rows that were sampled here. How far are the weights apart? In float64, where
rounding is small: what parts the weights early is another algorithm. Prints a table.
"""
import os
import subprocess
import tempfile
from typing import Any, Dict, List

import click
import torch
from tabulate import tabulate

from benchmarks.shared.paths import ROOT, command
from benchmarks.shared.runs import CONSTANT, load_config, run
from benchmarks.solve.work import CONFIG, make_work
from ding_grpo.data.batch import Batch
from ding_grpo.learn.update import Updater

KEPT = (1, 2, 10, 50, 100, 200)  # optimizer steps after which the weights are compared
PADS = ('frozen', 'trained')  # the embedding of the padding token on TRL's side
Weights = Dict[str, torch.Tensor]


def compare(peer_python: str, seed: int, updates: int) -> List[List[str]]:
    """
    Overview:
        Learn here, then let TRL take the same steps.
    Returns:
        - rows (:obj:`List[List[str]]`): The number of steps; by ``PADS``, the distance of the weights from each \
            other, divided by their distance from where they began (Euclidean).
    """
    with tempfile.TemporaryDirectory() as folder:
        make_work(seed, updates, folder)
        own = record(folder, seed, updates)
        peers = []
        for pad in PADS:
            words = command(peer_python, 'solve.steps_peer', folder, pad)
            env = dict(os.environ, OMP_NUM_THREADS=str(torch.get_num_threads()), HF_HUB_OFFLINE='1')
            subprocess.run(words, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            peers.append(torch.load(os.path.join(folder, f'{pad}.pt'), weights_only=True))
    start = own.pop(0)
    return [
        [str(steps), *(f'{distance(weights, peer[steps]) / distance(weights, start):.1e}' for peer in peers)]
        for steps, weights in own.items()
    ]


def distance(one: Weights, other: Weights) -> float:
    return sum((one[name].double() - x.double()).square().sum() for name, x in other.items()).sqrt().item()


def record(folder: str, seed: int, updates: int) -> Dict[int, Weights]:
    """
    Overview:
        Learn, and write what each step learned from to ``record.pt``.
    Returns:
        - weights (:obj:`Dict`): By the number of steps, 0 for the beginning.
    """
    found: List[List[Dict[str, Any]]] = []
    weights: Dict[int, Weights] = {}
    begin, of_run, of_step = Updater.__init__, Updater.run, Updater.step

    def begin_wide(updater: Updater, *args: Any) -> None:
        begin(updater, *args)
        updater._model.double()

    def remember(updater: Updater) -> None:
        if updater.optimizer_steps in (0, *KEPT):
            named = updater._model.lm.named_parameters()
            weights.setdefault(updater.optimizer_steps, {name: p.detach().clone() for name, p in named})

    def run_recorded(updater: Updater, batch: Batch, update: int) -> Dict[str, float]:
        found.append([])
        remember(updater)
        return of_run(updater, batch, update)

    def step_recorded(updater: Updater, batch: Batch) -> Dict[str, float]:
        completions = [row[:n].clone() for row, n in zip(batch.action, batch.length.tolist())]
        found[-1].append(dict(prompts=list(batch.prompts), completions=completions, adv=batch.adv.clone()))
        told = of_step(updater, batch)
        remember(updater)
        return told

    Updater.__init__, Updater.run, Updater.step = begin_wide, run_recorded, step_recorded
    try:
        learn = dict(entropy=dict(weight=0.0), lr_scheduler=CONSTANT)
        run(CONFIG, seed, os.path.join('steps', f'seed {seed}'), 1, go_on=True, learn=learn, max_train_iter=updates)
    finally:
        Updater.__init__, Updater.run, Updater.step = begin, of_run, of_step
    policy = load_config(CONFIG)[0].policy
    options = dict(learning_rate=policy.learn.learning_rate, clip_ratio=policy.learn.clip.ratio)
    kept = [steps for steps in weights if steps > 0]
    record = dict(updates=found, kept=kept, group_size=policy.group_size, **options)
    torch.save(record, os.path.join(folder, 'record.pt'))
    return weights


@click.command()
@click.option('--peer-python', required=True, type=click.Path(exists=True), help='Of an environment with TRL.')
@click.option('--seed', default=0, show_default=True)
@click.option('--updates', default=100, show_default=True)
def main(peer_python: str, seed: int, updates: int) -> None:
    """Print how far the weights are apart."""
    os.chdir(ROOT)
    torch.set_num_threads(1)
    click.echo(tabulate(compare(peer_python, seed, updates), ['steps', *(f'{pad} padding' for pad in PADS)]))


if __name__ == '__main__':
    main()
