"""What a checkpoint contains beside the policy, so that a run resumes from it bit-identically."""
import glob
import os
from typing import Any, Dict, NamedTuple

from ding_common.processes.ding_private import restore_priorities
from ding_common.processes.random_state import random_state, set_random_state
from ding_grpo.data.plain import plain
from ding_grpo.evaluate.evaluator import END_SUFFIX

from .checkpoint import number_of, numbered
from .parts import Parts

# Files under log/ that a run appends to. A resumed run truncates them to their size at the checkpoint.
LOGS = (
    'learner/metrics.jsonl', 'learner/tokens.jsonl', 'learner/digests.jsonl', 'evaluator/evaluations.jsonl',
    'collector/completions.jsonl', 'collector/completions.txt', '../findings.jsonl'
)
RESULT = 'result.pkl'  # DI-engine writes it last
BEFORE_END = '.before_end'  # ending of the best checkpoint before the evaluation at the end


class RunState(NamedTuple):
    """The state of collector, evaluator, metrics, replay buffer and random numbers, and the sizes of the logs."""
    folder: str  # of the run
    cuda: bool
    parts: Parts

    @property
    def _parts(self) -> Dict[str, Any]:
        parts = self.parts
        found = dict(collector=parts.collector, evaluator=parts.evaluator, metrics=parts.metrics)
        return {name: part for name, part in found.items() if hasattr(part, 'state_dict')}

    def state_dict(self, waits: bool = True) -> Dict[str, Any]:
        """All but ``buffer``; unless it ``waits``, also without what is being sampled ahead."""
        sizes = {name: os.path.getsize(path) for name, path in self._logs().items()}
        state = dict(seed=self.parts.seed, random=random_state(self.cuda), logs=sizes)
        for name, part in self._parts.items():
            state[name] = part.state_dict(waits) if name == 'collector' else part.state_dict()
        return state

    def buffer(self) -> Dict[str, Any]:
        """The replay buffer's, as an entry of ``state_dict``."""
        if self.parts.buffer is None:
            return {}
        # the trees of priorities are rebuilt from the data
        kept = {k: v for k, v in self.parts.buffer.state_dict().items() if k not in ('sum_tree', 'min_tree')}
        return dict(buffer=plain(kept))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore ``state_dict``, but not the logs."""
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        if self.parts.buffer is not None and 'buffer' in state:
            self.parts.buffer.load_state_dict(state['buffer'])
            restore_priorities(self.parts.buffer, state['buffer']['data'])
        set_random_state(state['random'])

    def _logs(self) -> Dict[str, str]:
        paths = {name: os.path.join(self.folder, 'log', name) for name in LOGS}
        return {name: path for name, path in paths.items() if os.path.exists(path)}

    def cut_logs(self, sizes: Dict[str, int]) -> None:
        for name, path in self._logs().items():
            os.truncate(path, min(sizes.get(name, 0), os.path.getsize(path)))

    def return_to(self, update: int, sizes: Dict[str, int]) -> None:
        """Remove what the run wrote after a checkpoint: the resumed run writes it again."""
        self.cut_logs(sizes)
        for path in numbered(os.path.join(self.folder, 'ckpt')):
            if number_of(path) > update:
                os.replace(path, f'{path}.left')
        folder = glob.escape(self.folder)
        for path in glob.glob(f'{folder}/log/serial/*{END_SUFFIX}') + glob.glob(f'{folder}/{RESULT}'):
            os.remove(path)
        for path in glob.glob(f'{folder}/ckpt/*{BEFORE_END}'):
            os.replace(path, path.removesuffix(BEFORE_END))
