from typing import Any, Dict, Optional, Tuple

import click
import transformers
from transformers import PreTrainedModel

from ding_grpo.model.read.decoding import BY_LENGTH, PADDED, REREAD, SHARED
from ding_grpo.model.read.packed_row import NAME, install

from .architecture import RESULTS, architecture_of
from .choose import Trial, choose

UNLIMITED = 65536  # maximum number of tokens of a row, if neither config nor model sets one
SLOWER = {
    PADDED: 'every row reads its prompt again, which takes longer',
    BY_LENGTH: 'every row reads its prompt again, in one batch per prompt length, which takes longer',
    REREAD: 'every row is read from its start for every token, which takes much longer',
}


class WayChoice:
    """The way in which a model reads rows. A trial finds it at the first use, or a checkpoint has it."""

    def __init__(self) -> None:
        self._longest: Optional[int] = None  # maximum number of tokens of a prompt and its completion
        self._trial: Optional[Trial] = None

    def limit_length(self, tokens: int) -> None:
        """Set the maximum number of tokens of a prompt and its completion; a new number needs a new trial."""
        if tokens != self._longest:
            self._longest, self._trial = tokens, None

    def way(self, model: Any) -> str:
        """How a ``CausalLM`` reads rows, one of ``WAYS``."""
        if self._trial is None:
            trial = self._found(model)
            if trial is None:  # every way gives NaN; the policy reports where
                return PADDED
            self._trial = trial
            if trial.way != SHARED:
                click.echo(f'{type(model.lm).__name__}: {SLOWER[trial.way]} ({trial.reason})')
        return self._trial.way

    def _found(self, model: Any) -> Optional[Trial]:
        key = self._key(model)
        found = RESULTS.get(key)
        if found is not None and (found.way != SHARED or install(model.lm)):
            return found
        with model.without_adapters():
            found = choose(model, self._longest or model.max_positions or UNLIMITED)
        if found is not None and key is not None:
            RESULTS[key] = found
        return found

    def _key(self, model: Any) -> Optional[Tuple]:
        """What a trial depends on; None if no other model can have the same."""
        architecture = architecture_of(model.lm)
        if architecture is None:
            return None
        attention = self._depends_on(model.lm)['attention']
        return 'way', architecture, attention, self._longest, model.output_tokens, model.device.type

    def state_dict(self, model: Any) -> Dict[str, Any]:
        """The way, and the facts that its choice depends on; empty if a resumed run should try again."""
        way = self.way(model)
        certain = self._trial is None or self._trial.certain
        return dict(way=way, **self._depends_on(model.lm)) if certain else {}

    def load_state_dict(self, model: Any, state: Dict[str, Any]) -> None:
        """Use the way of a checkpoint, unless the facts that its choice depends on have changed."""
        if not state or state != dict(way=state['way'], **self._depends_on(model.lm)):
            return
        if state['way'] != SHARED or install(model.lm):
            self._trial = Trial(state['way'], 'as in the checkpoint')

    def _depends_on(self, lm: PreTrainedModel) -> Dict[str, Any]:
        attention = lm.config._attn_implementation.removeprefix(f'{NAME}_')
        return dict(attention=attention, longest=self._longest, transformers=transformers.__version__)
