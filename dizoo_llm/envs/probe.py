"""What the scorer of a token environment pays for texts that no policy wrote."""
import copy
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from ding_common import ConfigError, TaskError

from .demonstrations import demonstrated_turn
from .token_env import TokenEnv


def probe(env: TokenEnv, problems: int) -> List[Dict[str, Any]]:
    """
    Score, for some problems spread over all, the demonstration and four texts that answer nothing: the empty text, the
    prompt copied, random tokens, and one token repeated. They go through tokens as those of a policy do, and all end
    with an end-of-sequence token. The environment does not change. Each text has ``problem``, ``kind``, ``text``,
    ``prompt_tokens`` and ``tokens`` (numbers), ``reward``, ``value`` (what evaluation reports), ``ended`` (False if a
    limit cut it) and ``failed``, why it has no reward. The demonstration is absent unless the task ``demonstrates``.
    """
    env = copy.copy(env)
    number, probes = min(problems, len(env.problems)), []
    for index in sorted({i * len(env.problems) // number for i in range(number)}):
        probes += [_run(env, index, *text) for text in _texts(env, index)]
    waiting = [found for found in probes if 'unscored' in found]
    rows = [found.pop('unscored') for found in waiting]
    for found, outcome in zip(waiting, env.scoring.outcomes(env.problems, rows) if rows else ()):
        found.update(_scores(*outcome))
    return probes


def _texts(env: TokenEnv, index: int) -> Iterator[Tuple[str, Optional[List[int]]]]:
    """Kind and tokens of each text; None for those of the demonstration."""
    env.reset(seed=0, options=dict(index=index))
    end, room = env.tokenizer.eos_token_id, env.max_new_tokens - 1
    special = {end, *env.eos_token_ids, *env.tokenizer.all_special_ids}
    plain = np.array([i for i in range(int(env.action_space.n)) if i not in special])
    drawn = np.random.default_rng(0)
    if env.task.demonstrates:
        yield 'demonstration', None
    yield 'empty', [end]
    yield 'prompt', [i for i in env.encode(env.problem) if i not in env.eos_token_ids][:room] + [end]
    yield 'junk', drawn.choice(plain, room).tolist() + [end]
    yield 'repeated', [int(drawn.choice(plain))] * room + [end]


def _run(env: TokenEnv, index: int, kind: str, tokens: Optional[List[int]]) -> Dict[str, Any]:
    """Run an episode whose turns are all ``tokens``, or demonstrations. A task of one turn leaves it ``unscored``."""
    env.reset(seed=0, options=dict(index=index, defer_score=not env.has_turns))
    length = len(env.encode(env.problem))
    found = dict(problem=index, kind=kind, text='', prompt_tokens=length, tokens=0, reward=None, value=None, ended=None)
    total, done = 0.0, False
    try:
        while not done:
            turn = demonstrated_turn(env) if tokens is None else tokens
            _, reward, terminated, truncated, info = env.step(turn)
            total, done = total + reward, terminated or truncated
    except (ConfigError, TaskError) as error:  # such as a demonstration of too many tokens
        return dict(found, failed=error.message)
    found.update(text=info['completion'], tokens=env.own_length, ended=not truncated)
    return dict(found, unscored=info['unscored']) if 'unscored' in info else dict(found, **_scores(total, info))


def _scores(reward: float, info: Dict[str, Any]) -> Dict[str, Any]:
    failed = info['failed']
    known = dict(reward=reward, value=info['return']) if failed is None else dict(reward=None, value=None)
    return dict(known, failed=failed)
