"""
Reads each prompt once for all rows that continue it, for any architecture of ``transformers`` whose attention uses its
``AttentionInterface``. All tokens of a batch form one packed row: first the prompts, then the tokens of the rows. Only
the attention uses padding. There, a token of a row sees its prompt and the preceding tokens of its row. The sums are
the same as for each row read alone, in another order.

``transformers`` requests the mask of each kind of layer. The function of ``_mask_like`` returns a ``_Mask``, which
passes the layout of the packed row to ``_attention``. An architecture that changes the mask in between, or needs an
argument that is unknown here, cannot share prompts and raises ``NotShared``.
"""
import sys
from contextvars import ContextVar
from typing import Callable, Optional, Tuple, Union

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention import Options
from .growing import Growing
from .whole import Whole

NAME = 'shared_prompt'


class NotShared(Exception):
    """The attention of an architecture needs more than ``Whole`` and ``Growing`` support."""


_Shared = Union[Whole, Growing]  # which tokens each token sees
_Check = Optional[Callable[[Callable, Optional[int], torch.device], None]]
_PASS: ContextVar[Optional[Tuple[_Shared, _Check]]] = ContextVar('_PASS', default=None)  # while ``read_packed`` runs


class _Mask(torch.Tensor):
    """Replaces the mask that a model passes to its attention. Operations on it return plain tensors."""
    __torch_function__ = torch._C._disabled_torch_function_impl
    shared: _Shared
    window: Optional[int]


# Arguments of an attention that have no effect here, whatever their values.
_IGNORED = {
    'is_causal', 'position_ids', 'use_cache', 'cache_position', 'output_attentions', 'output_hidden_states',
    'output_router_logits', 'return_dict', 'sliding_window'
}


def _attention(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor], **kwargs
) -> Tuple[Tensor, Optional[Tensor]]:
    """The attention that ``transformers`` calls in every layer; outside ``read_packed``, the model's own."""
    if not isinstance(attention_mask, _Mask):
        if _PASS.get() is not None:
            raise NotShared('the attention makes its own mask')
        own = module.config._attn_implementation[len(NAME) + 1:]
        function = sys.modules[type(module).__module__].eager_attention_forward if own == 'eager' else \
            ALL_ATTENTION_FUNCTIONS[own]
        return function(module, query, key, value, attention_mask, **kwargs)
    scale, softcap = kwargs.pop('scaling', None), kwargs.pop('softcap', None)
    if kwargs.pop('dropout', 0.0):
        raise NotShared('the attention has dropout')
    unknown = [name for name, value in kwargs.items() if value is not None and name not in _IGNORED]
    if unknown:
        raise NotShared(f'the attention has the argument {unknown[0]}')
    if torch.is_autocast_enabled(query.device.type):  # transformers' rotary embedding returns float32
        query, key, value = (x.to(torch.get_autocast_dtype(x.device.type)) for x in (query, key, value))
    options = Options(scale or query.shape[-1] ** -0.5, attention_mask.window, softcap)
    # transformers' own attentions return contiguous tensors, which AFMoE relies on
    return attention_mask.shared.attend(module.layer_idx, query, key, value, options).contiguous(), None


def _mask_like(own: Callable) -> Callable:
    """The mask function of each kind of layer for ``transformers``; outside ``read_packed``, it calls ``own``."""

    def mask(*args, **kwargs) -> Optional[Tensor]:
        running = _PASS.get()
        if running is None:
            return own(*args, **kwargs)
        (shared, check_mask), window = running, kwargs.get('local_size')
        device = torch.device(kwargs.get('device', 'cpu'))
        if check_mask is not None:
            check_mask(kwargs['mask_function'], window, device)
        found = torch.zeros(1, 1, 1, 1, device=device).as_subclass(_Mask)
        found.shared, found.window = shared, window
        return found

    return mask


for _own_name in ('sdpa', 'eager'):
    AttentionInterface.register(f'{NAME}_{_own_name}', _attention)
    AttentionMaskInterface.register(f'{NAME}_{_own_name}', _mask_like(ALL_MASK_ATTENTION_FUNCTIONS[_own_name]))


def install(lm: PreTrainedModel) -> bool:
    """Let a model's attention share prompts in ``read_packed``. Outside of it the attention does not change. Returns
    False if its attention is neither ``sdpa`` nor ``eager`` of ``transformers``."""
    own = lm.config._attn_implementation
    if own in (f'{NAME}_sdpa', f'{NAME}_eager'):
        return True
    if own not in ('sdpa', 'eager'):
        return False
    lm.set_attn_implementation(f'{NAME}_{own}')
    return True


def read_packed(
        trunk: torch.nn.Module, ids: Tensor, position: Tensor, shared: _Shared, check_mask: _Check = None
) -> Tensor:
    """Hidden states (N, H) of packed tokens and their positions, (N, ) each. ``trunk``: the part below the output layer
    of a model on which ``install`` was called. ``check_mask`` is called with the mask function, the window and the
    device of each kind of layer; it raises if they are inconsistent. Raises ``NotShared`` if the architecture cannot
    share prompts."""
    ids, mask = ids.unsqueeze(0), torch.ones_like(ids, dtype=torch.bool).unsqueeze(0)  # the type that masks have
    token = _PASS.set((shared, check_mask))
    try:
        out = trunk(input_ids=ids, position_ids=position.unsqueeze(0), attention_mask=mask, use_cache=False)
    finally:
        _PASS.reset(token)
    return out.last_hidden_state[0]
