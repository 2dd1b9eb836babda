"""Any task with further parts of the reward from reward models."""
from typing import Any, Dict, List, Sequence, Union

from ding_common import ConfigError
from dizoo_llm.reward_model import KEY, RewardModel
from dizoo_llm.tasks import Problem, Task
from dizoo_llm.tasks.base import Parts

from .wrapped_task import WrappedTask


class RewardedTask(WrappedTask):
    """
    Overview:
        A task whose reward has further parts, from reward models. All else is the task's. It scores in batches, so
        that a model reads all completions of a collect together, in one process.
    """

    def __init__(self, task: Task, models: List[RewardModel]) -> None:
        names = [*task.weights, *(model.name for model in models)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f'{KEY}: the name {twice[0]!r} occurs twice among the parts of the reward. Set name to another one.'
            )
        super().__init__(task)
        self._models = models
        self.weights = {**task.weights, **{model.name: model.weight for model in models}}

    def score(self, problem: Problem, completion: str) -> Parts:
        whitened = [model.name for model in self._models if model.whiten]
        if whitened:
            raise ConfigError(
                f'{KEY}: whiten = True of {whitened[0]!r} needs several completions, and this collector scores one at '
                'a time. Use the collector group, or set whiten to False.'
            )
        return super().score(problem, completion)

    def score_batch(self, problems: List[Problem], completions: List[str]) -> List[Union[Parts, Exception]]:
        scored: List[Union[Parts, Exception]] = list(self.task.checked_scores(problems, completions))
        for model in self._models:
            for i, score in enumerate(model.scores(problems, completions)):
                if isinstance(scored[i], dict):
                    scored[i] = score if isinstance(score, Exception) else {**scored[i], model.name: score}
        return scored


def add_reward_models(task: Task, cfgs: Sequence[Dict[str, Any]], evaluation: bool = False) -> Task:
    """
    Overview:
        The task with the reward models of ``env.reward_models``; the task itself without any. In evaluation their \
        scores are not whitened: they would have the mean 0, whatever the policy writes.
    """
    if not isinstance(cfgs, (list, tuple)):
        raise ConfigError(f'{KEY} = {cfgs!r}: must be a list of dicts.')
    models = [RewardModel(cfg, f'{KEY}[{i}]') for i, cfg in enumerate(cfgs)]
    for model in models:
        model.whiten = model.whiten and not evaluation
    return RewardedTask(task, models) if models else task
