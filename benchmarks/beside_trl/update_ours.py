"""
This project's side of the benchmark of whole updates: ``python -m benchmarks.beside_trl.update_ours FOLDER THREADS``.
"""
import contextlib
import functools
import os
import sys
import time
from typing import Any, Dict, Iterator, Optional, Tuple

import torch
import ding_grpo  # noqa: F401  before DI-engine, whose pipelines it completes
from ding.entry import serial_pipeline_onpolicy
from ding.worker import LearnerHook, register_learner_hook
from easydict import EasyDict

from benchmarks.beside_trl.game import HIGHEST, QUESTION, TURNS, answer, called, response
from benchmarks.beside_trl.operations import Profile
from benchmarks.beside_trl.products import Recorder
from benchmarks.beside_trl.protocol import LEARNING_RATE, Gate, equal_data, gradient_norm, own_folder, read_work
from ding_common import read_config_file
from ding_grpo.act import sampler, token_actor
from ding_grpo.collect.group_collector import GroupCollector
from ding_grpo.data.capability import group_policy
from ding_grpo.config.sections.update import LOG_PROB_FNS
from ding_grpo.instruments import watch
from ding_grpo.learn.update import Updater
from ding_grpo.model import CausalLM, PromptBatch
from ding_grpo.model.read import prompts as prompts_module
from ding_grpo.rl_utils import grpo_data, grpo_error, linear_log_prob
from dizoo_llm import TASK_REGISTRY, MultiTurnTask, Problem, Reply, Task, Turn
from dizoo_llm.envs import TokenEnv
from dizoo_llm.text.tokenizer import load_tokenizer


@TASK_REGISTRY.register('benchmark')
class BenchmarkTask(Task):
    """
    Overview:
        The prompts of the work; the reward is the share of a completion's words that are of its first half.
    """
    weights = dict(low=1.0)

    def __init__(self, folder: str) -> None:
        work = read_work(folder)
        self._prompts, self._low = work['prompts'], set(work['low_words'])

    def __len__(self) -> int:
        return len(self._prompts)

    def problem(self, index: int) -> Problem:
        return Problem(self._prompts[index])

    def score(self, problem: Problem, completion: str) -> Dict[str, Optional[float]]:
        words = completion.split()
        return dict(low=sum(word in self._low for word in words) / max(len(words), 1))


@TASK_REGISTRY.register('benchmark_game')
class BenchmarkGame(MultiTurnTask):
    """
    Overview:
        The game of the work. The reward is 1 if the last turn guesses the number.
    """
    weights = dict(right=1.0)

    def __init__(self, folder: str) -> None:
        self._system = read_work(folder)['system']

    def __len__(self) -> int:
        return HIGHEST

    def problem(self, index: int) -> Problem:
        messages = [dict(role='system', content=self._system), dict(role='user', content=QUESTION)]
        return Problem(messages, str(index + 1))

    def begin(self, problem: Problem, seed: int) -> None:
        return None

    def respond(self, problem: Problem, state: None, turn: Turn) -> Reply:
        number = called(turn.text)
        told = answer(number, int(problem.answer))
        done = number is None or turn.number == TURNS - 1
        return Reply(response(told), dict(right=float(done and told == 'right')), done=done)


class Alternate:
    """
    Overview:
        Tells that an update is done.
    """
    gate: Gate
    rows: int
    metrics: Dict[str, float]


class Clock:
    """
    Overview:
        Seconds in the model, the arithmetic of sampling and loss, and the optimizer; all else is overhead.
    """
    seconds = 0.0

    @classmethod
    def measure(cls, owner: Any, name: str) -> None:
        """Count what a function takes."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                cls.seconds += time.perf_counter() - start

        setattr(owner, name, timed)


class Looks:
    """
    Overview:
        Seconds of the close looks of the instruments. They are no part of the ``Clock``'s.
    """
    seconds = 0.0

    @classmethod
    def measure(cls, name: str) -> None:
        """Count what a method of ``Watch`` takes."""
        method = getattr(watch.Watch, name)

        @functools.wraps(method)
        def timed(*args, **kwargs):
            start, core = time.perf_counter(), Clock.seconds
            try:
                return method(*args, **kwargs)
            finally:
                cls.seconds += time.perf_counter() - start
                Clock.seconds = core

        setattr(watch.Watch, name, timed)


class Note(LearnerHook):
    """
    Overview:
        The metrics, which a later hook of DI-engine's throws away.
    """

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        Alternate.metrics = dict(engine.log_buffer['scalar'])


class Done(LearnerHook):
    """
    Overview:
        After all other hooks.
    """

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        parts = {name: value for name, value in Alternate.metrics.items() if name.startswith('seconds_')}
        parts['seconds_core'], Clock.seconds = Clock.seconds, 0.0
        parts['seconds_looks'], Looks.seconds = Looks.seconds, 0.0
        tokens = Alternate.metrics['completion_length_mean'] * Alternate.rows
        Alternate.gate.done(tokens=tokens, updates=engine.last_iter.val + 1, **parts)


@contextlib.contextmanager
def without_beginnings() -> Iterator[None]:
    """Common beginnings of different prompts are not read once, except in the trial of the architecture."""
    own = prompts_module.common_spans
    prompts_module.common_spans = lambda prompts, least: own(prompts, least) if least == 0 else []
    try:
        yield
    finally:
        prompts_module.common_spans = own


def configs(folder: str, work: Dict[str, Any]) -> Tuple[EasyDict, EasyDict]:
    """The shipped config that the work names, or one for the work's random model; both with the work's sizes."""
    rows = work['groups'] * work['group_size']
    if work.get('config') is not None:
        main_config, create_config = read_config_file(work['config'])
        main_config.env.update(collector_env_num=rows, evaluator_env_num=1, n_evaluator_episode=1)
        main_config.policy.group_size, main_config.policy.collect.groups = work['group_size'], work['groups']
        main_config.policy.learn.entropy.weight = 0.0  # the peer has none
        if work.get('as_peer', False):
            main_config.policy.model.autocast = None
            main_config.policy.learn.update(drop_equal_groups=False, lr_scheduler=dict(type='constant'))
            main_config.policy.collect.problem_order = 'epoch'
        main_config.env.update(max_new_tokens=work.get('tokens', main_config.env.max_new_tokens))
        main_config.env.task.update(work.get('task', {}))
        return main_config, create_config
    model = os.path.join(folder, 'model')
    main_config = EasyDict(
        env=dict(
            collector_env_num=rows,
            evaluator_env_num=1,
            n_evaluator_episode=1,
            task=dict(type='benchmark_game' if 'game' in work else 'benchmark', folder=folder),
            tokenizer=dict(pretrained=model),
            max_new_tokens=work['tokens'],
            max_prompt_length=work['prompt_tokens'],
            **(dict(max_turns=TURNS, max_reply_tokens=40) if 'game' in work else {}),
        ),
        policy=dict(
            cuda=False,
            group_size=work['group_size'],
            model=dict(pretrained=model, autocast='bfloat16' if work.get('bf16', False) else None),
            learn=dict(),
            collect=dict(groups=work['groups']),
            eval=dict(evaluator=dict()),
        ),
    )
    create_config = EasyDict(
        env=dict(type='token_env', import_names=['ding_grpo']),
        env_manager=dict(type='base'),
        policy=dict(type='grpo'),
        collector=dict(type='group'),
    )
    return main_config, create_config


def main(folder: str, threads: int) -> None:
    """Make an update for each line of standard input."""
    torch.set_num_threads(threads)
    Alternate.gate, work = Gate(), read_work(folder)
    os.chdir(own_folder())  # DI-engine makes its folder below the current one
    Alternate.rows = work['groups'] * work['group_size']
    register_learner_hook('note', Note)
    register_learner_hook('done', Done)
    collect = GroupCollector.collect

    def check(model):
        tokenizer = None if 'checked_prompts' in work else load_tokenizer(os.path.join(folder, 'model'))
        data, tokens = equal_data(work, tokenizer), model.output_tokens
        model.output_tokens = work['vocabulary']  # the peer's loss is over all tokens, whatever was sampled from
        prompts = PromptBatch.of([p[m == 1] for p, m in zip(data['prompt'], data['prompt_mask'])], model.device)
        logp = linear_log_prob(
            model.completion_hidden(prompts, data['completion'], data['mask'].sum(1)),
            index=data['completion'],
            mask=data['mask'],
            **model.output_head()._asdict()
        )
        loss, _ = grpo_error(grpo_data(logp, data['logp_old'], None, data['adv'], data['mask'].float()), beta=0.0)
        loss.backward()
        model.output_tokens = tokens
        return loss.item(), gradient_norm(model)

    def gated(self, *args, **kwargs):
        model = group_policy(self._policy).whole_model
        Alternate.gate.check, Alternate.gate.record = lambda: check(model), lambda: recorder(model)
        Alternate.gate.profile = Profile
        Alternate.gate.save = lambda path: model.save_pretrained(path, None)
        Alternate.gate.wait()
        return collect(self, *args, **kwargs)

    def recorder(model):
        found = Recorder({p.data_ptr() for p in model.parameters()})
        generate = sampler.generate

        def marked(*args, **options):
            found.sampling = True
            try:
                return generate(*args, **options)
            finally:
                found.sampling = False

        sampler.generate = marked
        return found

    def words_alone(self, size):
        self.output_tokens = size - 3  # no special tokens, so that both sides make completions of the same length

    for owner, name in ((sampler, 'generate'), (token_actor, 'linear_log_prob'), (CausalLM, 'completion_states'),
                        (Updater, 'loss'), (torch.Tensor, 'backward'), (torch.nn.utils, 'get_total_norm'),
                        (torch.nn.utils, 'clip_grads_with_norm_'), (torch.optim.AdamW, 'step')):
        Clock.measure(owner, name)
    watch.EACH_BEFORE, watch.EVERY = 10 ** 6, 10 ** 6  # each update is looked at, see ``as_in_a_run``
    for name in ('look', '_change'):
        Looks.measure(name)
    LOG_PROB_FNS['linear_log_prob'] = token_actor.linear_log_prob  # the policy tells it by identity
    GroupCollector.collect = gated
    if 'low' in work:
        CausalLM.limit_vocabulary = words_alone
    if work.get('endless', False):
        TokenEnv.eos_token_ids = property(lambda self: (), lambda self, ids: None)
    note = dict(name='note', type='note', position='after_iter', priority=11, ext_args=dict())
    done = dict(name='done', type='done', position='after_iter', priority=1000, ext_args=dict())
    main_config, create_config = configs(folder, work)
    main_config.exp_name = 'run'
    main_config.env.stop_value = 1e9
    main_config.policy.learn.update(
        batch_groups=work['groups'],
        micro_batch_tokens=work.get('micro_batch_tokens', 'auto'),
        learning_rate=LEARNING_RATE,
        learner=dict(hook=dict(note=note, done=done, save_ckpt_after_iter=10 ** 6)),
    )
    main_config.policy.collect.collector = dict(table_freq=10 ** 6)
    main_config.policy.eval.evaluator.eval_freq = 10 ** 6
    with contextlib.nullcontext() if work.get('beginnings', True) else without_beginnings():
        serial_pipeline_onpolicy((main_config, create_config), seed=0, max_train_iter=10 ** 6)


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
