"""The chain of digests of a run, as its observer wrote it (``ding_grpo/instruments/digests.py``)."""
import os
from typing import Any, Dict, List, NamedTuple

from ding_common import ConfigError, check_links, read_json_lines, read_total_config

FILE = os.path.join('log', 'learner', 'digests.jsonl')
# Keys that decide where a run begins and ends, what it saves and shows, and no update.
_ASIDE = (
    'exp_name', 'policy.learn.resume_training', 'policy.learn.learner.', 'policy.run.', 'policy.instruments.',
    'policy.eval.', 'env.stop_value', 'env.n_evaluator_episode', 'env.evaluator_env_num', 'policy.import_names',
    'policy.multi_gpu'
)


class Chain(NamedTuple):
    """``begins`` are the lines of the starts of a run. ``updates`` are its updates by number; of one that was repeated,
    the last line counts."""
    run: str
    begins: List[Dict[str, Any]]
    updates: Dict[int, Dict[str, Any]]

    def name(self, number: int) -> str:
        """Of a tensor."""
        names = self.begins[0]['names'] if self.begins else []
        return names[number] if number < len(names) else f'tensor {number}'

    def begun(self, update: int) -> Dict[str, Any]:
        """The start of the run that an update followed."""
        before = [begin for begin in self.begins if begin['begin'] <= update]
        return before[-1] if before else dict(machine={}, settings={})

    def threads(self, update: int) -> int:
        """Of the process that made an update."""
        return int(self.begun(update)['machine'].get('threads', 1))


def read_chain(run: str) -> Chain:
    """Raises ``ConfigError`` if a folder has no chain."""
    path = os.path.join(run, FILE)
    if not os.path.isfile(path):
        kind = str(read_total_config(run)['policy']['type']).removesuffix('_command')
        raise ConfigError(
            f'RUN = {run!r}: contains no {FILE}. Runs of grpo write this file, unless policy.instruments.digests='
            f'False; this one has policy.type = {kind!r}.'
        )
    check_links(path, 'RUN')
    lines = read_json_lines(path)
    updates = {line['update']: line for line in lines if 'update' in line}
    if not updates:
        raise ConfigError(f'{path}: contains no update.')
    return Chain(run, [line for line in lines if 'begin' in line], updates)


def other_settings(a: Dict[str, Any], b: Dict[str, Any]) -> Dict[str, tuple]:
    """The keys of the config whose values differ between two starts, with both as text, without those that decide no
    update."""
    return {key: pair for key, pair in _other(a['settings'], b['settings']).items() if not key.startswith(_ASIDE)}


def other_machine(a: Dict[str, Any], b: Dict[str, Any]) -> Dict[str, tuple]:
    """The versions, and what else of the machine decides rounding, that differ between two starts."""
    return _other(a['machine'], b['machine'])


def pairs(found: Dict[str, tuple]) -> str:
    """What differs between a recorded start and this process."""
    return ', '.join(f'{key} {here}, but {recorded}' for key, (recorded, here) in found.items())


def _other(a: Dict[str, str], b: Dict[str, str]) -> Dict[str, tuple]:
    return {key: (a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)}
