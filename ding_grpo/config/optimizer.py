"""The optimizer that a config names: one of ``torch.optim``, or a class of another package."""
import inspect
from typing import Any, Collection, Dict, List, Type

import torch
from torch import nn
from torch.optim import Optimizer

from ding_common import ConfigError, check_arguments, config_errors, import_name, nearest

from .on_host import OnHost, host_copies

KEY = 'policy.learn.optimizer'
OPTIMIZERS = ('AdamW', 'Adam', 'Adafactor', 'Muon', 'NAdam', 'RAdam', 'RMSprop', 'SGD')  # of torch.optim
OF_KEYS = dict(lr='learning_rate', weight_decay='weight_decay')  # arguments that have keys of their own
SHARDED = ('AdamW', 'Adam', 'SGD')  # tested with ``policy.shard``


class MuonWithAdamW(Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon) for the matrices of hidden layers, and AdamW for all other
    weights, as one optimizer with the sections of both."""

    def __init__(self, matrices: List[nn.Parameter], others: List[nn.Parameter], **args) -> None:
        common = {name: args[name] for name in OF_KEYS}
        args = dict(dict(adjust_lr_fn='match_rms_adamw'), **args)  # steps as large as AdamW's at the same rate
        self._parts = [torch.optim.Muon(matrices, **args)] if matrices else []
        self._parts += [torch.optim.AdamW(others, fused=True, **common)] if others else []
        super().__init__([section for part in self._parts for section in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the parts have the state and the sections of this optimizer."""
        sections = iter(self.param_groups)
        for part in self._parts:
            part.state, part.param_groups = self.state, [next(sections) for _ in part.param_groups]

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for part in self._parts:
            part.step()


def optimizer_class(kind: str) -> Type[Optimizer]:
    """The class of a type: a name of ``OPTIMIZERS``, or ``'module:Class'``."""
    if kind in OPTIMIZERS:
        return getattr(torch.optim, kind)
    if ':' not in kind:
        raise ConfigError(f"{KEY}.type = {kind!r}: unknown optimizer; {nearest(kind, [*OPTIMIZERS, 'module:Class'])}")
    found = import_name(kind, f'{KEY}.type')
    if not (inspect.isclass(found) and issubclass(found, Optimizer)):
        raise ConfigError(f'{KEY}.type = {kind!r}: must be a subclass of torch.optim.Optimizer.')
    return found


def make_optimizer(
        learn: Dict[str, Any], weights: List[nn.Parameter], matrices: Collection[nn.Parameter] = ()
) -> Optimizer:
    """The optimizer of a section ``policy.learn`` for what is trained. ``matrices`` are the weights that Muon trains,
    see ``hidden_matrices``. A step is fused, one pass over the weights, where a class of torch has such a step. Raises
    ``ConfigError`` if the class does not take an argument, or refuses its value."""
    args = dict(learn['optimizer'])
    kind, offload = args.pop('type'), args.pop('offload', False)
    if offload:
        copies, chosen = host_copies(weights), set(matrices)
        matrices = [copy for copy, p in zip(copies, weights) if p in chosen]
        on_host = make_optimizer(dict(learn, optimizer=dict(args, type=kind)), copies, matrices)
        return OnHost(on_host, weights, copies)
    made, given = optimizer_class(kind), {name: learn[key] for name, key in OF_KEYS.items()}
    known = inspect.signature(made).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for name, value in args.items():
        if name in OF_KEYS:
            raise ConfigError(f'{KEY}.{name} = {value!r}: set policy.learn.{OF_KEYS[name]} instead.')
        if name not in known and not takes_any:
            allowed = [*(each for each in known if each not in ('params', *OF_KEYS)), 'offload']
            raise ConfigError(f'{KEY}.{name} = {value!r}: unknown key; {nearest(name, allowed)}')
    check_arguments(args, made, KEY)
    if 'weight_decay' not in known and not takes_any and given.pop('weight_decay') != 0:
        raise ConfigError(f"policy.learn.weight_decay = {learn['weight_decay']}: {kind} has none. Set it to 0.")
    if kind in OPTIMIZERS and 'fused' in known and not (args.get('foreach') or args.get('differentiable')):
        given['fused'] = True
    with config_errors(f"{KEY} = {dict(learn['optimizer'])!r}: {kind} cannot be made with these arguments"):
        if kind == 'Muon':
            chosen = set(matrices)
            parts = [p for p in weights if p in chosen], [p for p in weights if p not in chosen]
            return MuonWithAdamW(*parts, **{**given, **args})
        return made(weights, **{**given, **args})


def check_optimizer(learn: Dict[str, Any], cuda: bool, sharded: bool) -> None:
    """Raise a ``ConfigError`` if an optimizer cannot be made of the section ``policy.learn``."""
    if not isinstance(learn['optimizer'].get('type'), str):
        raise ConfigError(f"{KEY}.type = {learn['optimizer'].get('type')!r}: must be a name.")
    offload = learn['optimizer'].get('offload', False)
    if not isinstance(offload, bool):
        raise ConfigError(f'{KEY}.offload = {offload!r}: must be True or False.')
    if offload and (sharded or not cuda):
        reason = 'not available with policy.shard' if sharded else 'needs policy.cuda = True'
        raise ConfigError(f'{KEY}.offload = True: {reason}.')
    weight = nn.Parameter(torch.zeros(2, 2))
    make_optimizer(learn, [weight], [weight])
    kind = learn['optimizer']['type']
    if sharded and kind not in SHARDED:
        raise ConfigError(f"{KEY}.type = {kind!r}: must be one of {', '.join(SHARDED)} with policy.shard.")


def stepping(optimizer: Optimizer) -> Optimizer:
    """The optimizer that takes the steps of another one."""
    return optimizer.optimizer if isinstance(optimizer, OnHost) else optimizer


def hidden_matrices(model: nn.Module) -> List[nn.Parameter]:
    """The weights with two dimensions, without embeddings and the output layer."""
    heads = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    language_model = getattr(model, 'lm', model)
    output = getattr(language_model, 'get_output_embeddings', lambda: None)()
    heads += [output.weight] if output is not None else []
    return [p for p in model.parameters() if p.dim() == 2 and not any(p is head for head in heads)]
