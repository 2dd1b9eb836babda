"""How the output layer of an architecture computes logits."""
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from ding_common import ConfigError, describe
from ding_grpo.model.read.output_head import softcapped

from .architecture import once_for_architecture
from .float64 import in_float64


def measure_head(model: Any) -> Tuple[float, Optional[float]]:
    """Measure the scale and the soft cap of a ``CausalLM``. Architectures name them differently, and the same name
    means a factor in one and a divisor in another (``logits_scaling`` of HyperCLOVA X and of Granite). Chosen numbers
    replace the output layer's product, and both values follow from the resulting logits. Then the model's own logits
    must match the formula. Changes to the logits are not detected if they occur only beyond the eight tokens and the
    chosen numbers. Models of one architecture are measured once in a process."""
    lm, trunk, layer = model.lm, model.trunk, model.lm.get_output_embeddings()
    if type(layer) is not nn.Linear:
        raise _refusal(lm, f'its output layer is {type(layer).__name__}, not a torch.nn.Linear')
    known = {*trunk.parameters(), *layer.parameters()}
    if any(p.requires_grad and p not in known for p in lm.parameters()):
        raise _refusal(lm, 'it has trainable weights besides its trunk and its output layer')
    # peft's adapters on experts do not run in float64, in which this measures
    with model.without_autocast(), model.without_adapters():
        what = 'output layer', layer.weight.dtype
        return once_for_architecture(lm, what, lambda: _measure(lm, trunk, layer))


def _measure(lm: PreTrainedModel, trunk: nn.Module, layer: nn.Linear) -> Tuple[float, Optional[float]]:
    """``measure_head`` by running the model."""
    ids = torch.arange(8, device=lm.device).remainder(layer.out_features).unsqueeze(0)  # (1, 8)
    try:
        with torch.no_grad():
            hidden = getattr(trunk(input_ids=ids, use_cache=False), 'last_hidden_state', None)
    except Exception as error:  # with an inconsistent config, an architecture may raise any exception
        raise ConfigError(f'policy.model: {type(lm).__name__} fails to read tokens: {describe(error)}') from error
    if hidden is None or hidden.dtype != layer.weight.dtype or hidden.shape[-1] != layer.in_features:
        raise _refusal(lm, 'its output layer does not read the last hidden states directly')
    try:
        with in_float64():  # otherwise scale and soft cap would have the precision of the weights
            hidden, logits = trunk(input_ids=ids, use_cache=False).last_hidden_state, lm(ids, use_cache=False).logits
            scale, softcap = _scale_and_softcap(lm, layer, ids)
            expected = softcapped(F.linear(hidden, layer.weight, layer.bias), scale, softcap)
    except ConfigError:
        raise
    except Exception as error:  # an operation does not support float64, as in a quantised layer
        raise _refusal(lm, f'it does not run in float64 ({describe(error)})') from error
    if logits.shape != expected.shape or (logits -
                                          expected).abs().max() > 1e-9 * max(expected.abs().max().item(), 1e-6):
        raise _refusal(lm, 'its output layer and its last hidden states do not give its logits')
    return scale, softcap


def _scale_and_softcap(lm: PreTrainedModel, layer: nn.Linear, ids: Tensor) -> Tuple[float, Optional[float]]:
    tried = torch.tensor([2. ** -7, 8192., -64., -1., 0.5, 8.], dtype=torch.double, device=lm.device)
    product: List[Tensor] = []

    def replace(module: nn.Module, args: Tuple[Tensor, ...], output: Tensor) -> Tensor:
        product.append(tried.repeat(output.numel() // len(tried) + 1)[:output.numel()].view(output.shape))
        return product[-1]

    hook = layer.register_forward_hook(replace)
    try:
        logits = lm(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    if len(product) != 1 or logits.shape != product[0].shape:
        raise _refusal(lm, 'it does not compute its logits with one call of its output layer')
    x, z = logits.flatten(), product[0].flatten()
    scale = (x[0] / z[0]).item()
    softcap = None
    if not torch.isclose(x[1], scale * z[1], rtol=1e-3):
        softcap = x[1].item()
        scale = (torch.atanh(x[0] / softcap) * softcap / z[0]).item()
    if not scale > 0 or not torch.allclose(x, softcapped(z, scale, softcap), rtol=1e-9, atol=0):
        raise _refusal(lm, 'its logits are neither the scaled nor the soft-capped product of its output layer')
    return scale, softcap


def _refusal(lm: PreTrainedModel, reason: str) -> ConfigError:
    return ConfigError(
        f"policy.learn.log_prob_fn = 'linear_log_prob': does not fit {type(lm).__name__}: {reason}. Use "
        "log_prob_fn='efficient_method', which takes the logits from the model. (The model causal_lm_vac, for PPO, "
        'does not have this option.)'
    )
