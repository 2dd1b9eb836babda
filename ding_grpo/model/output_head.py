from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ding_common import ConfigError


class OutputHead(NamedTuple):
    """
    Overview:
        How logits come of hidden states: ``softcap * tanh(scale * (hidden weight^T + bias) / softcap)``, without the \
        tanh if ``softcap`` is None. These are arguments of ``ding_grpo.rl_utils.linear_log_prob``.
    Shapes:
        - weight (:obj:`torch.FloatTensor`): :math:`(V, H)`
        - bias (:obj:`Optional[torch.FloatTensor]`): :math:`(V, )`
    """
    weight: Tensor
    bias: Optional[Tensor]
    scale: float
    softcap: Optional[float]


def measure_head(lm: PreTrainedModel) -> Tuple[float, Optional[float]]:
    """
    Overview:
        Find scale and soft cap of a model by trying: architectures name them differently, and the same name means a \
        factor in one and a divisor in another (``logits_scaling`` of HyperCLOVA X and of Granite).
    Arguments:
        - lm (:obj:`PreTrainedModel`): A causal language model of ``transformers``.
    Returns:
        - scale (:obj:`float`): Factor of the product of hidden states and output matrix.
        - softcap (:obj:`Optional[float]`): Bound of the logits, None without one.
    Raises:
        - ConfigError: If its logits come of its hidden states in any other way; what does not fit is named.
    """
    head = lm.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise _refusal(lm, f'its output layer is {type(head).__name__}, not a torch.nn.Linear')
    ids = torch.arange(8, device=lm.device).remainder(head.out_features).unsqueeze(0)  # (1, 8)
    tried = torch.tensor([2. ** -7, 8192., -64., -1., 0.5, 8.], device=lm.device)
    inputs: List[Tensor] = []
    product: List[Tensor] = []

    def watch_and_replace(module: nn.Module, args: Tuple[Tensor, ...], output: Tensor) -> Tensor:
        inputs.append(args[0])
        product.append(tried.repeat(output.numel() // len(tried) + 1)[:output.numel()].view(output.shape))
        return product[0]

    hook = head.register_forward_hook(watch_and_replace)
    try:
        with torch.no_grad():
            logits = lm(input_ids=ids, use_cache=False).logits
            hidden = getattr(lm.base_model(input_ids=ids, use_cache=False), 'last_hidden_state', None)
    finally:
        hook.remove()
    if len(inputs) != 1 or hidden is None or hidden.shape != inputs[0].shape or not torch.allclose(hidden, inputs[0]):
        raise _refusal(lm, 'its output layer does not read the last hidden states as they are')
    if logits.shape != product[0].shape:
        raise _refusal(lm, f'its logits {tuple(logits.shape)} are not those of its output layer')
    x, z = logits.double().flatten(), product[0].double().flatten()
    scale = (x[0] / z[0]).item()
    softcap = None if torch.isclose(x[1], scale * z[1], rtol=1e-3) else x[1].item()
    expected = scale * z if softcap is None else softcap * torch.tanh(scale * z / softcap)
    if not torch.allclose(x, expected, rtol=1e-4, atol=1e-6):
        raise _refusal(lm, 'its logits are neither the scaled nor the soft-capped product of its output layer')
    return scale, softcap


def _refusal(lm: PreTrainedModel, reason: str) -> ConfigError:
    return ConfigError(
        f"policy.learn.log_prob_fn = 'linear_log_prob': does not fit {type(lm).__name__}: {reason}. Write "
        "log_prob_fn='efficient_method', which takes the logits as the model gives them."
    )
