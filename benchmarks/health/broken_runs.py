"""Thirteen runs of a small think_answer that cannot learn, each for one planted cause."""
import contextlib
from dataclasses import replace
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional
from unittest import mock

import ding_grpo  # noqa: F401  before DI-engine, whose pipelines it completes
from ding.entry import serial_pipeline_onpolicy

from benchmarks.shared.runs import load_config
from ding_common import read_json_lines
from ding_grpo.act.sampler import ModelSampler
from ding_grpo.data.batch import Batch
from ding_grpo.learn.learning import Learning
from ding_grpo.rollout import Sampling
from dizoo_llm.tasks import TASK_REGISTRY, Problem
from dizoo_llm.tasks.think_answer import QUESTIONS, ThinkAnswerTask

UPDATES = 20


@TASK_REGISTRY.register('pays_nothing')
class PaysNothing(ThinkAnswerTask):
    """Every part is 0."""

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        return dict(answer=0.0, format=0.0, solved=0.0)


@TASK_REGISTRY.register('applies_nothing')
class AppliesNothing(ThinkAnswerTask):
    """No part applies to any completion, and there is no demonstration that would tell before the run."""
    demonstrates = False

    def score(self, problem: Problem, completion: str) -> Dict[str, Optional[float]]:
        return dict.fromkeys(self.weights)


@TASK_REGISTRY.register('pays_everything')
class PaysEverything(ThinkAnswerTask):
    """Every part is 1."""
    must_end = False

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        return dict(answer=1.0, format=1.0, solved=1.0)


@TASK_REGISTRY.register('pays_for_length')
class PaysForLength(ThinkAnswerTask):
    """Any five words are an answer."""

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        return dict.fromkeys(self.weights, float(len(completion.split()) >= 5))


@TASK_REGISTRY.register('wrong_key')
class WrongKey(ThinkAnswerTask):
    """Answers are compared with the label of the next question."""

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        questions = [label for _, label in QUESTIONS]
        following = questions[(questions.index(problem.answer) + 1) % len(questions)]
        return super().score(problem._replace(answer=following), completion)


@contextlib.contextmanager
def _learned_rows(change: Callable[[Learning, Batch], Batch]) -> Iterator[None]:
    """Change the rows that every update learns from."""
    to_learn = Learning.to_learn

    def changed(learning: Learning, batch: Batch) -> Batch:
        return change(learning, to_learn(learning, batch))

    with mock.patch.object(Learning, 'to_learn', changed):
        yield


def _invert_mask() -> ContextManager:
    return _learned_rows(lambda learning, batch: replace(batch, weight=1 - batch.weight))


def _drift() -> ContextManager:

    def changed(learning: Learning, batch: Batch) -> Batch:
        for ref, new in zip(learning.reference.copy.parameters(), learning.model.parameters()):
            ref.data.lerp_(new.data, 0.1)
        return batch

    return _learned_rows(changed)


def _other_temperature() -> ContextManager:
    bind, cold = ModelSampler.bind, Sampling(0.5, None, None)
    return mock.patch.object(ModelSampler, 'bind', lambda sampler, spec, _: bind(sampler, spec, cold))


def _no_end() -> ContextManager:
    return mock.patch('dizoo_llm.text.encoder.end_ids', lambda tokenizer: (99, ))  # a token that does not exist


class Broken(NamedTuple):
    """
    Overview:
        A broken run: its cause, what is changed, and a plant in the code.
    """
    cause: str
    task: str = 'think_answer'
    env: Dict[str, Any] = {}
    learn: Dict[str, Any] = {}
    temperature: float = 1.0
    plant: Optional[Callable[[], ContextManager]] = None


BROKEN = {
    'the reward is always 0': Broken('no_success', 'pays_nothing'),
    'the scorer returns None for every part': Broken('no_part', 'applies_nothing'),
    'the reward is always 1': Broken('always_paid', 'pays_everything'),
    'junk pays: any five words': Broken('junk_pays', 'pays_for_length'),
    'learning rate 1e-12': Broken('step_small', learn=dict(learning_rate=1e-12)),
    'learning rate 1e-1': Broken('step_large', learn=dict(learning_rate=1e-1)),
    'no end-of-sequence token': Broken('no_end', plant=_no_end),
    'groups of copies: temperature 0.001': Broken('copies', temperature=1e-3),
    'wrong answer key': Broken('wrong_key', 'wrong_key'),
    'the format part alone has a weight': Broken('one_part', env=dict(reward_weights=dict(answer=0.0, solved=0.0))),
    'the reference drifts': Broken('drift', learn=dict(kl=dict(beta=0.1)), plant=_drift),
    'the mask is inverted': Broken('mask', plant=_invert_mask),
    'sampler at temperature 0.5, learner at 1': Broken('apart', plant=_other_temperature),
}


def findings_of(broken: Broken, folder: str, seed: int = 0, updates: int = UPDATES) -> List[Dict[str, Any]]:
    """
    Overview:
        Run ``updates`` updates and return what ``findings.jsonl`` then contains.
    Arguments:
        - broken (:obj:`Broken`): One of ``BROKEN``.
        - folder (:obj:`str`): Of the run, which does not exist.
        - seed (:obj:`int`): Its seed.
        - updates (:obj:`int`): Number of updates.
    """
    main, create = load_config('think_answer_grpo')
    main.exp_name = folder
    main.env.update(broken.env, stop_value=1e9, collector_env_num=64)
    main.env.task.type = broken.task
    main.policy.group_size = 8
    main.policy.model.config.update(hidden_size=64, intermediate_size=128)
    main.policy.learn.update(dict(dict(learning_rate=1e-3), **broken.learn))
    main.policy.collect.update(groups=8, temperature=broken.temperature)
    main.policy.eval.evaluator.eval_freq = 10 ** 6
    with contextlib.nullcontext() if broken.plant is None else broken.plant():
        serial_pipeline_onpolicy((main, create), seed=seed, max_train_iter=updates)
    return read_json_lines(f'{folder}/findings.jsonl')
