"""
Divides a language model among the processes of a run by torch's FSDP2 (``torch.distributed.fsdp.fully_shard``): each
process keeps its part of every weight, of its gradient and of the optimizer's state. A layer is whole while it computes
and is freed afterwards. Sampling takes a different number of steps in each process, so that it needs a plain copy.
"""
import copy
from typing import List, Set, Union

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from ding_common import ConfigError, parallel

from .causal_lm import CausalLM
from .fast_linear import forget_casts


class Sharding:
    """A model whose weights are divided among the processes, and a plain copy with whole weights for sampling,
    evaluation and export. The copy is empty while the model learns."""

    def __init__(self, model: CausalLM, cuda: bool, shard: Union[bool, str] = True) -> None:
        """Divide ``model`` in place, which is the same in all processes, on the CPU. ``cuda``: whether the parts are on
        GPUs, one GPU per process. ``shard`` is ``policy.shard``: with 'machine', each machine has all parts, so that
        only gradients travel between machines; with True, the parts are divided among the processes of all."""
        check_layers(model, shard)
        self._shard, self.mesh = shard, _mesh('cuda' if cuda else 'cpu', shard == 'machine')
        self.copy, self._model = _alias(model), model
        self._divide(model)
        self.copy.to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the parts are."""
        return next(self._model.parameters()).device

    def check_reading(self) -> None:
        """Check that the model reads a part of a batch in one pass. Each pass gathers the layers from all processes,
        and other ways of reading take as many passes as the lengths of rows ask for."""
        if not self.copy.shares_prompts:
            raise ConfigError(
                f'policy.shard = {self._shard!r}: {type(self.copy.lm).__name__} cannot share prompts, so that '
                'processes would read their rows in different numbers of passes. Set it to False.'
            )

    def duplicate(self, model: CausalLM) -> CausalLM:
        """Another model with the current weights, without gradients, divided as ``model`` is."""
        other = _alias(self.copy).requires_grad_(False)
        self._divide(other)
        return other

    def _divide(self, model: CausalLM) -> None:
        # Under autocast, layers are gathered in its type: half as many bytes. Their inputs stay in float32.
        dtype = model.autocast.dtype_on(self.mesh.device_type)  # the model may still be on the CPU
        policy = MixedPrecisionPolicy(dtype, None if dtype is None else torch.float32, cast_forward_inputs=False)
        for layer in layers_of(model):
            fully_shard(layer, mesh=self.mesh, mp_policy=policy)
        fully_shard(model, mesh=self.mesh)  # embeddings, last norm and output matrix, which may be tied
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # The loss of a process is divided by the normalisers of all processes, so that gradients are summed.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
        register_fsdp_forward_method(model, 'completion_states')  # this, not ``forward``, is what learning calls

    @torch.no_grad()
    def gather(self) -> None:
        """Give the copy the current weights, one after the other. All processes call it together."""
        copies = dict(self.copy.named_parameters())
        for name, p in self._model.named_parameters():
            with parallel.watched():
                copies[name].data = whole(p.detach())
            torch.autograd.graph.increment_version(copies[name])  # so that an engine gets them

    def release(self) -> None:
        """Free the weights of the copy."""
        for p in self.copy.parameters():
            p.data = p.data.new_empty(0)
        forget_casts(self.copy)


def _mesh(device: str, within_machine: bool) -> DeviceMesh:
    """The processes, by machine and part, or by part alone."""
    processes = parallel.world_size()
    parts = parallel.processes_per_machine() if within_machine else processes
    if parts == processes:
        return init_device_mesh(device, (parts, ))
    return init_device_mesh(device, (processes // parts, parts), mesh_dim_names=('machine', 'part'))


def _alias(model: CausalLM) -> CausalLM:
    """A copy of a model with the same storage of weights, but parameters of its own."""
    shared = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, shared)


def layers_of(model: CausalLM) -> List[nn.Module]:
    """The layers of a model, each of which is divided and gathered by itself."""
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


def check_layers(model: CausalLM, shard: Union[bool, str] = True) -> None:
    """Check that a model has layers, and that every token needs all of their weights. Otherwise processes that read
    other tokens would have gradients of other weights, which they could not sum. ``shard`` is ``policy.shard``."""
    name = type(model.lm).__name__
    if not layers_of(model):
        raise ConfigError(f'policy.shard = {shard!r}: {name} has no layers that can be divided one by one.')
    with torch.enable_grad():
        hidden = model.trunk(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=False).last_hidden_state
    used = _leaves(hidden)
    for parameter, p in model.trunk.named_parameters():
        if p.requires_grad and p not in used:
            raise ConfigError(
                f'policy.shard = {shard!r}: in {name} some tokens do not use the weight {parameter}, so that processes '
                'with different tokens could not sum their gradients.'
            )


def _leaves(result: Tensor) -> Set[Tensor]:
    """The tensors that a result was computed from and that get a gradient."""
    seen, todo = set(), [result.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
    return {node.variable for node in seen if hasattr(node, 'variable')}


def is_sharded(model: nn.Module) -> bool:
    """Whether a model is divided among processes."""
    return isinstance(model, FSDPModule)


def reshard(model: nn.Module) -> None:
    """Free the weights outside of layers, which stay whole after a pass without gradients; no effect otherwise."""
    if is_sharded(model) and not torch.is_grad_enabled():
        model.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be divided. All processes call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own(tensor: Tensor) -> Tensor:
    """This process's part of a tensor that may be divided."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gradient_norm(gradients: List[Tensor]) -> Tensor:
    """The norm of all gradients together, the same in all processes; gradients may be divided."""
    norm = torch.nn.utils.get_total_norm([own(g) for g in gradients])
    mesh = next((g.device_mesh for g in gradients if isinstance(g, DTensor)), None)
    if mesh is None:
        return norm
    squares = norm.double().square()
    parallel.all_reduce([squares])
    squares = squares * mesh.size(mesh.ndim - 1) / mesh.size()  # every machine has all parts
    return squares.sqrt().to(norm.dtype)
