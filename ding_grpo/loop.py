"""
A run, from its first line to its last, whoever starts it and whatever policy it trains:

    until a number of updates or of environment steps, the return to reach, or a signal:
        evaluate, if it is due                       evaluate/evaluator.py
        collect groups from the current weights      collect/group_collector.py
        for each batch of groups:
            one update                               learn/learning.py, learn/update.py
    save, evaluate, write models and curve

GRPO (https://arxiv.org/abs/2402.03300) is in the two inner lines. For a start s, the collector samples G trajectories
from the policy pi_old and scores them, r_1 ... r_G. The update compares them,

    A_i = (r_i - mean(r)) / std(r)

and takes optimizer steps on

    L = mean over i and t of  -min(ratio_it A_i, clip(ratio_it, 1 - eps, 1 + eps) A_i) + beta KL(pi || pi_ref)
    ratio_it = pi(a_it | s_it) / pi_old(a_it | s_it)

``entry/build.py`` makes the parts of a run, ``run/saver.py`` saves and resumes it. DI-engine's learner counts updates
and calls the hooks that log them (run/report.py).
"""
import os
import pickle
import time
from typing import Any, Dict

import numpy as np

from ding_common import parallel

from .run.parts import Parts
from .run.saver import DingSaver, Saver


def run(parts: Parts) -> Dict[str, Any]:
    """Run until a limit, the return to reach, or a signal. Returns what ``result.pkl`` contains."""
    learner, collector, evaluator = parts.learner, parts.collector, parts.evaluator
    saver = Saver(parts) if parts.commander is None else DingSaver(parts)
    with saver.running():
        ended = saver.begin()  # if a checkpoint is of the end of this run
        if not ended:
            parts.fill_buffer()
        while not ended:
            saver.top()  # the only point where nothing is in progress
            if evaluator.should_eval(learner.train_iter):
                ended, _ = evaluator.eval(saver.save, learner.train_iter, collector.envstep)
                if ended:
                    break
            groups = parts.collect()
            for batch in parts.batches(groups):
                metrics = learner.train(batch, collector.envstep)
                saver.after_update(metrics)
            ended = parts.limits.reached(learner.train_iter, collector.envstep)
        saver.end()
        return result_of(parts)


def result_of(parts: Parts) -> Dict[str, Any]:
    """Write the last evaluation and the counts to ``result.pkl``, as DI-engine's pipelines do."""
    value, reached = parts.evaluator.result()
    result = dict(
        stop=reached,
        env_step=parts.collector.envstep,
        train_iter=parts.learner.train_iter,
        eval_value=np.mean(value),
        eval_value_raw=value,
        finish_time=time.ctime()
    )
    if parallel.rank() == 0:
        with open(os.path.join(parts.cfg.exp_name, 'result.pkl'), 'wb') as f:
            pickle.dump(result, f)
    return result
