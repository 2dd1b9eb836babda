"""Whole runs: how a test starts one, acts on it from outside, and reads what lies in its folder afterwards."""
import os
import pickle

import torch
from ding.entry import serial_pipeline_onpolicy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ding_common import read_json_lines
from ding_common.output import picture
from ding_grpo.policy import GRPOPolicy
from dizoo_llm.tasks import ThinkAnswerTask

FOREVER = int(1e10)  # DI-engine's default number of updates


def train(configs, updates=FOREVER, seed=0, name=None, pipeline=serial_pipeline_onpolicy, **learn):
    """Run up to a number of updates, in the folder ``name``, with changes of ``policy.learn``; returns the policy."""
    main, _ = configs
    main.exp_name = name or main.exp_name
    main.policy.learn.update(learn)
    return pipeline(configs, seed=seed, max_train_iter=updates)


def metrics(run='run'):
    return read_json_lines(os.path.join(run, 'log/learner/metrics.jsonl'))


def evaluations(run='run'):
    return read_json_lines(os.path.join(run, 'log/evaluator/evaluations.jsonl'))


def evaluated(run='run'):
    """The updates after which the run was evaluated."""
    return [record['train_iter'] for record in evaluations(run)]


def tensorboard(run='run'):
    """All (tag, step, value) of a run, sorted."""
    events = EventAccumulator(os.path.join(run, 'log/serial'), size_guidance=dict(scalars=0)).Reload()
    return sorted((tag, e.step, e.value) for tag in events.Tags()['scalars'] for e in events.Scalars(tag))


def completions(run='run'):
    return read_json_lines(os.path.join(run, 'log/collector/completions.jsonl'))


def findings(run='run'):
    return read_json_lines(os.path.join(run, 'findings.jsonl'))


def result(run='run'):
    with open(os.path.join(run, 'result.pkl'), 'rb') as f:
        return pickle.load(f)


def state(name, run='run'):
    """Content of a checkpoint: of an update, or ``best``."""
    name = 'ckpt_best' if name == 'best' else f'iteration_{name}'
    return torch.load(os.path.join(run, f'ckpt/{name}.pth.tar'), weights_only=True)


def weights(policy):
    return {name: value.clone() for name, value in policy.learn_mode.state_dict()['model'].items()}


def distance(a, b):
    """The largest difference of two weights of the same name."""
    return max((a[name] - b[name]).abs().max().item() for name in a)


def rescore(monkeypatch, score=None, **attributes):
    """Give think_answer another ``score(self, problem, completion)`` and other attributes; returns its own score."""
    own = ThinkAnswerTask.score
    for name, value in dict(attributes, score=score or own).items():
        monkeypatch.setattr(ThinkAnswerTask, name, value)
    return own


def pays(answer=0., format=0., solved=0.):
    """A score that is the same for every completion."""
    return lambda self, problem, completion: dict(answer=answer, format=format, solved=solved)


def each_update(monkeypatch, before=None, after=None, kind=GRPOPolicy):
    """Call ``before(number, policy, data)`` and ``after(number, policy, metrics)`` around each update of a policy."""
    learn, numbers = kind._forward_learn, []

    def forward(self, data):
        number = len(numbers)
        numbers.append(number)
        if before is not None:
            before(number, self, data)
        found = learn(self, data)
        if after is not None:
            after(number, self, found)
        return found

    monkeypatch.setattr(kind, '_forward_learn', forward)


def figures(monkeypatch):
    """The figures that are drawn from now on."""
    found, finish = [], picture.finish
    monkeypatch.setattr(picture, 'finish', lambda figure, path: found.append(figure) or finish(figure, path))
    return found
