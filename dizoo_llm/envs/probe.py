"""What the scorer of a token environment pays for texts that no policy wrote."""
import copy
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from ding_common import ConfigError, TaskError, describe

from .token_env import TokenEnv


def probe(env: TokenEnv, problems: int) -> List[Dict[str, Any]]:
    """
    Overview:
        Score, for some problems, the demonstration and four texts that answer nothing: the empty text, the prompt \
        copied, random tokens, and one token repeated. They go through tokens as those of a policy do, and all end \
        with an end-of-sequence token. Does not change the environment.
    Arguments:
        - env (:obj:`TokenEnv`): The environment.
        - problems (:obj:`int`): Number of problems, spread over the training problems.
    Returns:
        - probes (:obj:`List[Dict]`): Of each text ``problem``, ``kind``, ``text``, ``tokens`` (number, None if it \
            cannot be encoded), ``reward``, ``value`` (what evaluation reports), ``ended`` (False if a limit cut it) \
            and ``failed``, why it has no reward, else None. The demonstration is absent unless the task ``demonstrates``.
    Raises:
        - TaskError: If a problem has no prompt.
    """
    env = copy.copy(env)
    number = min(problems, len(env.problems))
    probes = []
    for index in sorted({i * len(env.problems) // number for i in range(number)}):
        for kind, tokens, failed in _texts(env, index):
            found = dict(reward=None, value=None, text='', ended=None)
            if failed is None:
                try:
                    found = _run(env, index, kind, tokens)
                    failed = found.pop('failed')
                except (TaskError, ConfigError) as error:
                    failed = error.message
            of_text = dict(problem=index, kind=kind, tokens=None if tokens is None else len(tokens), failed=failed)
            probes.append(dict(of_text, **found))
    return probes


def _texts(env: TokenEnv, index: int) -> Iterator[Tuple[str, Optional[List[int]], Optional[str]]]:
    """Kind, tokens, and why there are none, of each text."""
    obs, _ = env.reset(seed=0, options=dict(index=index))
    prompt, end, room = obs[obs >= 0].tolist(), env.tokenizer.eos_token_id, env.max_new_tokens - 1
    if env.task.demonstrates:
        try:
            yield 'demonstration', _demonstration(env, []), None
        except (ConfigError, TaskError) as error:  # such as a text of too many tokens
            yield 'demonstration', None, error.message
    drawn = np.random.default_rng(0)
    special = {end, *env.eos_token_ids, *env.tokenizer.all_special_ids}
    plain = np.array([i for i in range(int(env.action_space.n)) if i not in special])
    yield 'empty', [end], None
    yield 'prompt', [i for i in prompt if i not in env.eos_token_ids][:room] + [end], None
    yield 'junk', drawn.choice(plain, room).tolist() + [end], None
    yield 'repeated', [int(drawn.choice(plain))] * room + [end], None


def _demonstration(env: TokenEnv, turns: List[Tuple[str, str]]) -> List[int]:
    try:
        text = env.task.demonstration(*[env.problem, turns][:1 + env.has_turns])
    except Exception as error:  # a user's task may raise anything
        raise TaskError(f'{type(env.task).__name__}.demonstration raised {describe(error)}') from error
    return env.encode_answer(text)


def _run(env: TokenEnv, index: int, kind: str, tokens: List[int]) -> Dict[str, Any]:
    """Reward, value and text of an episode whose turns are all ``tokens``, or demonstrations."""
    env.reset(seed=0, options=dict(index=index))
    total, done = 0.0, False
    while not done:
        if kind == 'demonstration':
            tokens = _demonstration(env, env.turns)
        _, reward, terminated, truncated, info = env.step(tokens)
        total, done = total + reward, terminated or truncated
    failed = info['failed']
    scores = dict(reward=None, value=None) if failed is not None else dict(reward=total, value=info['return'])
    return dict(scores, text=info['completion'], failed=failed, ended=not truncated)
