from typing import Any, Dict, Optional, Tuple

import click
import transformers
from transformers import PreTrainedModel

from ding_common import ConfigError

from . import shared_prompt
from .architecture import architecture_of
from .reading import PADDED, SHARED, Trial, choose, length_limit

UNLIMITED = 65536  # maximum number of tokens of a row, if neither config nor model sets one
_SLOWER = dict(
    padded='every row reads its prompt again, which takes longer',
    by_length='every row reads its prompt again, in one batch per prompt length, which takes longer',
    reread='every row is read from its start for every token, which takes much longer',
)

# Results of trials by architecture: a trial does not depend on weights. Further models of a process, such as a
# reference or a critic, need none.
_FOUND: Dict[Tuple, Trial] = {}


class Reader:
    """
    Overview:
        How a model reads rows: the result of the trial, and the facts that it depends on.
    Interfaces:
        ``limit_length``, ``check_length``, ``way``, ``state_dict``, ``load_state_dict``
    """

    def __init__(self) -> None:
        self._longest: Optional[int] = None  # maximum number of tokens of a prompt and its completion
        self._trial: Optional[Trial] = None

    def limit_length(self, tokens: int) -> None:
        """Set the maximum number of tokens of a prompt and its completion; a new number needs a new trial."""
        if tokens != self._longest:
            self._longest, self._trial = tokens, None

    @staticmethod
    def check_length(lm: PreTrainedModel, tokens: int) -> None:
        """
        Overview:
            Check that rows are not so long that the architecture reads them differently.
        Raises:
            - ConfigError: If a prompt and its completion may have more tokens than the architecture allows.
        """
        reason, most = length_limit(lm.config.get_text_config())
        if most is not None and tokens > most:
            raise ConfigError(
                f'policy.model: in {type(lm).__name__} {reason} beyond {most} tokens. A prompt and its completion may '
                f'have {tokens}. Lower env.max_prompt_length or env.max_new_tokens.'
            )

    def way(self, model: Any) -> str:
        """How a ``CausalLM`` reads rows, one of ``WAYS``; a trial at the first call determines it."""
        if self._trial is None:
            key = self._key(model)
            found = None if key is None else _FOUND.get(key)
            if found is None or found.way == SHARED and not shared_prompt.install(model.lm):
                with model.without_adapters():
                    found = choose(model, self._longest or model.max_positions or UNLIMITED)
                if found is None:  # every way gives NaN; the policy reports where
                    return PADDED
                if key is not None:
                    _FOUND[key] = found
            self._trial = found
            if self._trial.way != SHARED:
                click.echo(f'{type(model.lm).__name__}: {_SLOWER[self._trial.way]} ({self._trial.reason})')
        return self._trial.way

    def _key(self, model: Any) -> Optional[Tuple]:
        """What a trial depends on; None if no other model can have the same."""
        architecture = architecture_of(model.lm)
        if architecture is None:
            return None
        attention = self._depends_on(model.lm)['attention']
        return architecture, attention, self._longest, model.output_tokens, model.device.type

    def state_dict(self, model: Any) -> Dict[str, Any]:
        """The way, and the facts that its choice depends on; empty if a resumed run should try again."""
        way = self.way(model)
        certain = self._trial is None or self._trial.certain
        return dict(way=way, **self._depends_on(model.lm)) if certain else {}

    def load_state_dict(self, model: Any, state: Dict[str, Any]) -> None:
        """Use the way of a checkpoint, unless the facts that its choice depends on have changed."""
        if not state or state != dict(way=state['way'], **self._depends_on(model.lm)):
            return
        if state['way'] != SHARED or shared_prompt.install(model.lm):
            self._trial = Trial(state['way'], 'as in the checkpoint')

    def _depends_on(self, lm: PreTrainedModel) -> Dict[str, Any]:
        attention = lm.config._attn_implementation.removeprefix(f'{shared_prompt.NAME}_')
        return dict(attention=attention, longest=self._longest, transformers=transformers.__version__)
