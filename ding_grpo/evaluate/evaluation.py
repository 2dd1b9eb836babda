"""The results of one evaluation, for the screen, the log and TensorBoard."""
import json
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from .pass_at_k import over_problems, pass_at_k
from .sampled_episodes import Results


class Evaluation:
    """Collects the results of one evaluation: ``record``, for evaluations.jsonl, and ``failures``, for each episode why
    it could not be scored, or None."""

    def __init__(
            self, train_iter: int, envstep: int, seconds: float, value: float, greedy: Optional[float], info: Dict,
            sampled: Optional[Results], cfg: Dict
    ) -> None:
        """``train_iter`` is -1 for ``ding -m eval``; ``seconds`` is the duration of the run so far, without
        evaluations. ``value`` is the mean return of the greedy policy; with ``sample``, of the sampling one, and
        ``greedy`` that of the greedy one. ``info`` is what DI-engine's evaluator returns; token environments add
        ``record``, one JSON text per episode. ``sampled``: further episodes. ``cfg``: the section of the evaluator."""
        self.record: Dict[str, Any] = dict(
            train_iter=train_iter, envstep=envstep, seconds=seconds, eval_episode_return=value
        )
        self._shown: Dict[str, Optional[float]] = {}
        if greedy is not None:
            self.record['greedy_return'] = self._shown['greedy'] = greedy
        episodes = [json.loads(text) for text, in info.get('record', [])]
        self.failures: List[Optional[str]] = [e['failed'] for e in episodes]
        parts = {
            name: _mean([e['reward_parts'][name] for e in episodes])
            for name in (episodes[0]['reward_parts'] if episodes else ())
        }
        names = [name[:-len('_mean')] for name in info if name.endswith('_mean') and name != 'eval_episode_return_mean']
        means = parts | {name: _mean(info[name]) for name in names}
        self.record.update(means)
        self._shown.update(means)
        self._scalars = {f'{name}_mean': mean for name, mean in parts.items() if mean is not None}
        kinds = sorted({e['kind'] for e in episodes})
        several = len(kinds) > 1
        self._of_kind = {kind: [e['return'] for e in episodes if e['kind'] == kind] for kind in kinds if several}
        if sampled is not None:
            self._add_sampled(*sampled, cfg.get('pass_at', []), cfg.get('right_from', 1.0))
        if several:
            means = {kind: float(np.mean(r)) for kind, r in self._of_kind.items()}
            self.record['kinds'] = {k: dict(mean=mean, episodes=len(self._of_kind[k])) for k, mean in means.items()}
            self._shown.update(means)
        if episodes:
            self.record['completions'] = sorted(episodes, key=lambda e: e['index'])

    def _add_sampled(
            self, sampled: Dict[str, np.ndarray], failures: List[Optional[str]], pass_at: List[int], right_from: float
    ) -> None:
        """Add episodes of the sampling policy, see ``sampled_episodes``. Returns of at least ``right_from`` are
        correct, for pass@k."""
        self.failures += failures
        returns = sampled['return']
        self._scalars['sampled_return_mean'] = returns.mean()
        self.record.update(sampled_return=float(returns.mean()), sampled_return_std=float(returns.std()))
        self._shown['sampled'] = self.record['sampled_return']
        for name, values in sampled.items():
            if name != 'return':
                self.record[f'sampled_{name}'] = mean = _mean(values)
                if mean is not None:
                    self._scalars[f'sampled_{name}_mean'] = mean
        right = ((returns >= right_from) & (sampled.get('failed', 0) == 0)).sum(1)  # (P, )
        for k in pass_at:
            estimate = over_problems(pass_at_k(right, returns.shape[1], k))
            self.record[f'pass_at_{k}'] = estimate._asdict()
            self._shown[f'pass@{k}'] = estimate.mean
            self._scalars.update({f'pass_at_{k}_{name}': value for name, value in estimate._asdict().items()})

    def tagged(self, instance: str) -> Iterator[Tuple[str, float, int]]:
        """Tag, value and step of each scalar for TensorBoard."""
        for axis, step in (('iter', self.record['train_iter']), ('step', self.record['envstep'])):
            for name, number in self._scalars.items():
                yield f'{instance}_{axis}/{name}', number, step
        for kind, returns in self._of_kind.items():
            name = re.sub(r'[^-/\w.]', '_', kind)  # as TensorBoard's writer does, which prints the name that it changes
            yield f'{instance}_iter/kind/{name}', np.mean(returns), self.record['train_iter']

    def line(self, best: float) -> str:
        """One line for the screen; ``best`` is the best return of earlier evaluations."""
        value, train_iter = self.record['eval_episode_return'], self.record['train_iter']
        update = [f'update {train_iter}'] if train_iter >= 0 else []
        note = ['(best so far)'] if value > best and update else []
        numbers = [f'{name} {mean:.3f}' for name, mean in self._shown.items() if mean is not None]
        return '  '.join(['evaluation', *update, f'return {value:.3f}', *note, *numbers])


def _mean(values: Any) -> Optional[float]:
    """NaN does not count; None if nothing does."""
    values = np.asarray(values, dtype=float)
    return float(np.nanmean(values)) if not np.isnan(values).all() else None
