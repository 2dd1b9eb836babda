"""
Runs of ``grpo`` that DI-engine's own pipelines build. The bare ``ding`` command calls them before it meets this plugin.
They make the policy first; from then on, until they make their commander, they make this package's parts. The commander
runs the whole loop in its first step, and then lets the evaluator say that the run has ended.
"""
import sys
from typing import Any, Dict, List, Tuple

import click
import ding.entry.serial_entry
import ding.entry.serial_entry_onpolicy
from ding.policy.command_mode_policy_instance import DummyCommandModePolicy
from ding.utils import POLICY_REGISTRY
from ding.worker import BaseLearner, BaseSerialCommander
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.data.capability import group_policy
from ding_grpo.entry.build import limits_of, make_learner
from ding_grpo.evaluate import GroupEvaluator
from ding_grpo.loop import run
from ding_grpo.policy import GRPOPolicy
from ding_grpo.run.around import around_run, replaced
from ding_grpo.run.parts import Limits, Parts

from .refusals import refusal

PIPELINES = ('ding.entry.serial_entry', 'ding.entry.serial_entry_onpolicy')


@POLICY_REGISTRY.register('grpo_command')
class GRPOCommandModePolicy(GRPOPolicy, DummyCommandModePolicy):
    """``grpo`` under the name that DI-engine's own serial pipelines use."""

    @classmethod
    def default_config(cls) -> EasyDict:
        """DI-engine's pipelines for commands read it before all else, by ``compile_config``."""
        compiling = sys._getframe(1)
        if compiling.f_code.co_name == 'compile_config':
            pipeline = compiling.f_back
            place = pipeline.f_globals['__name__']
            if place.startswith('ding.entry.') and place not in PIPELINES:
                raise refusal(pipeline.f_code.co_name)
        return super().default_config()

    def __init__(self, *args, **kwargs) -> None:
        take_over()
        super().__init__(*args, **kwargs)


_taken: List[Any] = []  # contexts in which DI-engine's pipelines make this package's parts


def take_over() -> None:
    """Called when one of DI-engine's pipelines makes the policy."""
    if _taken:
        return
    names = dict(BaseLearner=_learner, BaseSerialCommander=LateCommander)
    for context in (
            replaced(ding.entry.serial_entry, create_serial_evaluator=LateEvaluator, **names),
            replaced(ding.entry.serial_entry_onpolicy, InteractionSerialEvaluator=LateEvaluator, **names),
    ):
        context.__enter__()
        _taken.append(context)


def give_back() -> None:
    while _taken:
        _taken.pop().__exit__(None, None, None)


class LateLearner(BaseLearner):
    """DI-engine's learner, whose hooks the loop calls, and not the pipeline before and after it."""
    in_loop = False
    report: Any = None

    def call_hook(self, name: str) -> None:
        if self.in_loop:
            super().call_hook(name)


def _learner(cfg: EasyDict, policy: Any, tb_logger: Any, exp_name: str) -> LateLearner:
    learner, learner.report = make_learner(cfg, policy, tb_logger, exp_name, groups=True, make=LateLearner)
    return learner


class LateEvaluator(GroupEvaluator):
    """The evaluator, which ends DI-engine's loop once the run is over."""
    over = False

    def should_eval(self, train_iter: int) -> bool:
        return self.over or super().should_eval(train_iter)

    def eval(self, *args, **kwargs) -> Tuple[bool, Dict]:
        return (True, dict(eval_episode_return=self.result()[0])) if self.over else super().eval(*args, **kwargs)


class LateCommander(BaseSerialCommander):
    """Runs the loop, within the first step of DI-engine's."""

    def __init__(self, *args, **kwargs) -> None:
        give_back()
        super().__init__(*args, **kwargs)

    def step(self) -> Any:
        learner, evaluator = self._learner, self._evaluator
        policy = group_policy(learner.policy)
        cfg = EasyDict(policy=policy.cfg, exp_name=learner.exp_name)
        limits = limits_of(policy.cfg, _limits())
        parts = Parts(cfg, policy, learner, self._collector, evaluator, limits, policy.seed, buffer=self._replay_buffer)
        learner.report.parts = parts
        learner.in_loop = True
        with around_run():
            run(parts)
        learner.in_loop, learner.report.parts, evaluator.over = False, None, True


def _limits() -> Limits:
    """Those of the command line."""
    context = click.get_current_context(silent=True)
    if context is None:
        raise ConfigError(
            "DI-engine's pipeline was imported before this plugin, which cannot see its limits. Import ding_grpo "
            'first, or call ding.entry.serial_pipeline_onpolicy by its full name.'
        )
    return Limits(*(int(float(context.params[name])) for name in ('train_iter', 'env_step')))
