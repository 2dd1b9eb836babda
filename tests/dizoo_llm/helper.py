"""Data files and environments that several tests read."""
import json

from easydict import EasyDict

from dizoo_llm.envs import DingTokenEnv

CHARS = ''.join(map(chr, range(32, 127))) + '\n'


def write(path, rows):
    path.write_text('\n'.join(json.dumps(row) for row in rows), encoding='utf-8')
    return str(path)


def questions(number, long=()):
    return [dict(question=f'{n}?' + ' how' * 20 * (n in long), answer=str(n)) for n in range(number)]


def section(path, **changes):
    """The ``env`` section of a config."""
    return EasyDict(
        dict(
            task=dict(type='file', path=path, **changes.pop('task', {})),
            tokenizer=dict(chars=CHARS),
            collector_env_num=6,
            evaluator_env_num=3,
            n_evaluator_episode=3,
            **changes
        )
    )


def environments(cfg):
    """All environments of a run."""
    collects = [DingTokenEnv(c) for c in DingTokenEnv.create_collector_env_cfg(cfg)]
    return collects, [DingTokenEnv(c) for c in DingTokenEnv.create_evaluator_env_cfg(cfg)]
