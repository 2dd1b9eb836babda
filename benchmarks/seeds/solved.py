"""Whether think_answer is solved with some keys of ``policy.learn`` in place of the config's, and when."""
import os
from typing import Any, Dict, List, NamedTuple, Optional

from benchmarks.shared.runs import CONSTANT, kept, load_config, middle, run

CONFIG = 'think_answer_grpo'


class Outcome(NamedTuple):
    """
    Overview:
        Update of the first evaluation of 1, None without one, and the best evaluation.
    """
    solved: Optional[int]
    best: float


def learn(folder: str, learn: Dict[str, Any], seed: int, updates: int) -> Outcome:
    """The outcome of a seed, with a constant learning rate; a finished one with the same config is not repeated."""
    folder, changed = f'{folder} seed {seed}', dict(learn, lr_scheduler=CONSTANT)

    def train() -> Dict[str, Any]:
        found = run(CONFIG, seed, folder, bar=1, learn=changed, max_train_iter=updates)
        return dict(solved=found.solved, best=max(found.evaluations.values()))

    settings = repr((load_config(CONFIG), changed, updates))
    return Outcome(**kept(os.path.join('runs', f'{folder}.json'), settings, train))


def cells(of_seeds: List[Outcome]) -> str:
    """Columns of a table: seeds solved, updates that these needed, best evaluations of all."""
    done = [r.solved for r in of_seeds if r.solved is not None]
    needed = middle(done, '.0f') if done else ''
    return f"{len(done)} of {len(of_seeds)} | {needed} | {middle([r.best for r in of_seeds], '.2f')}"
