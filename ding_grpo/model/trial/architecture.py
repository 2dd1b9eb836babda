"""Models of one architecture share the results of trials."""
from typing import Any, Callable, Dict, Tuple

from transformers import PreTrainedModel

RESULTS: Dict[Tuple, Any] = {}  # of the trials in this process


def once_for_architecture(lm: PreTrainedModel, what: Tuple, find: Callable[[], Any]) -> Any:
    """The result of ``find``, which models share in which the types of all modules, the config, and ``what`` are equal.
    A model in which a module computes something else than its class, by a hook or by a ``forward`` of its own, shares
    nothing. A result None is not kept."""
    modules = list(lm.modules())
    if any('forward' in vars(module) or module._forward_hooks or module._forward_pre_hooks for module in modules):
        return find()
    key = (what, tuple(map(type, modules)), lm.config.to_json_string(use_diff=False))
    if RESULTS.get(key) is None:
        RESULTS[key] = find()
    return RESULTS[key]
