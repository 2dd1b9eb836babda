from typing import Any, Dict, Optional, Tuple, Union

import torch
from ding.model.template.vac import VAC
from ding.utils import MODEL_REGISTRY, SequenceType
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from ding_common import ConfigError

_MEMORIES = dict(gru=nn.GRU, lstm=nn.LSTM)


@MODEL_REGISTRY.register('recurrent_vac')
class RecurrentVAC(VAC):
    """DI-engine's ``vac`` with a memory: a recurrent layer between the encoder, which actor and critic share, and the
    heads. It acts from all observations of an episode so far. Sampling gives it one step and the state before, learning
    whole episodes."""

    def __init__(
            self,
            obs_shape: Union[int, SequenceType],
            action_shape: Union[int, SequenceType, dict],
            action_space: str = 'discrete',
            memory: str = 'gru',
            encoder_hidden_size_list: SequenceType = [128, 128, 64],
            **options: Any,
    ) -> None:
        """
        Arguments:
            - memory (:obj:`str`): ``gru`` or ``lstm``, with as many units as the encoder's last layer.
            - options (:obj:`Any`): The others are those of ``vac``, except ``share_encoder=False``.
        """
        if memory not in _MEMORIES:
            raise ConfigError(f"policy.model.memory = {memory!r}: must be 'gru' or 'lstm'.")
        if not options.get('share_encoder', True):
            raise ConfigError("policy.model.share_encoder = False: not available with 'recurrent_vac'. Remove it.")
        super().__init__(
            obs_shape, action_shape, action_space, encoder_hidden_size_list=encoder_hidden_size_list, **options
        )
        size = encoder_hidden_size_list[-1]
        self.memory = _MEMORIES[memory](size, size)
        self.state_size = 2 * size if memory == 'lstm' else size
        # The methods of ``vac`` read what the memory returns.
        self.observer, self.encoder = self.encoder, nn.Identity()

    def forward(self, x: Any, mode: str, length: Optional[Tensor] = None, state: Optional[Tensor] = None) -> Dict:
        """
        Overview:
            As of ``vac``, for whole episodes with ``length``, or for one step of each row with ``state``.
        Arguments:
            - x (:obj:`Any`): M observations, row by row.
            - mode (:obj:`str`): ``compute_actor``, ``compute_critic`` or ``compute_actor_critic``.
            - length (:obj:`Optional[Tensor]`): Number of steps of each row (B, ).
            - state (:obj:`Optional[Tensor]`): Of the memory before the step (B, ``state_size``), 0 at the start.
        Returns:
            - output (:obj:`Dict`): ``logit`` and ``value`` of the M steps; of one step also ``state``, that after it.
        """
        if length is None and state is None:
            raise ConfigError(
                "policy.model.type = 'recurrent_vac': the policy gives it neither whole episodes nor states. Set "
                "policy.type to 'grpo', or use model type 'vac'."
            )
        if state is None:
            return super().forward(self._episodes(self.observer(x), length), mode)
        features, after = self._step(self.observer(x), state)
        return dict(super().forward(features, mode), state=after)

    def _episodes(self, features: Tensor, length: Tensor) -> Tensor:
        """What the memory returns for features (M, H) of whole episodes."""
        packed = pack_sequence(features.split(length.tolist()), enforce_sorted=False)
        return torch.cat(unpack_sequence(self.memory(packed)[0]))

    def _step(self, features: Tensor, state: Tensor) -> Tuple[Tensor, Tensor]:
        """What the memory returns for features (B, H) of one step, and its state after it."""
        before = state.unsqueeze(0)
        if isinstance(self.memory, nn.LSTM):  # hidden states and cells
            found, after = self.memory(features.unsqueeze(0), tuple(x.contiguous() for x in before.chunk(2, dim=2)))
            return found[0], torch.cat(after, dim=2)[0]
        found, after = self.memory(features.unsqueeze(0), before)
        return found[0], after[0]
