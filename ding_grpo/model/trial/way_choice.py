from typing import Any, Dict, Optional

import click
import transformers
from transformers import PreTrainedModel

from ding_grpo.model.read.decoding import BY_LENGTH, PADDED, REREAD, SHARED
from ding_grpo.model.read.packed_row import NAME, install

from .architecture import once_for_architecture
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
            longest = self._longest or model.max_positions or UNLIMITED
            facts = (*self._depends_on(model.lm).values(), model.output_tokens, model.device.type)
            self._trial = once_for_architecture(model.lm, ('way', facts), lambda: choose(model, longest))
            if self._trial is None:  # every way gives NaN; the policy reports where
                return PADDED
            if self._trial.way == SHARED:
                install(model.lm)
            else:
                click.echo(f'{type(model.lm).__name__}: {SLOWER[self._trial.way]} ({self._trial.reason})')
        return self._trial.way

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
