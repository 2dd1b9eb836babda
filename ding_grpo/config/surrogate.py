"""Finds the surrogate that a config names: a registered one, or a function of a user's module."""
import inspect
from typing import Any, Dict, Tuple, Union

import torch

from ding_common import ConfigError, config_errors, import_name, nearest
from ding_grpo.rl_utils import (
    SURROGATES, Surrogate, check_surrogate_options, surrogate_arguments, surrogate_function, surrogate_traits
)

_KEY = 'policy.learn.surrogate'


def find_surrogate(name: str, options: Dict[str, Any] = {}) -> Union[str, Surrogate]:
    """Look up a surrogate by a key of ``SURROGATES`` or by ``'module:function'``, and try it on small tensors with
    ``policy.learn.surrogate_options``, so that a wrong function fails before training. Returns the name or the
    function, as an argument for ``grpo_error``."""
    if name in SURROGATES:
        _try(SURROGATES[name], name, options)
        return name
    if ':' not in name:
        raise ConfigError(f"{_KEY} = {name!r}: unknown surrogate; {nearest(name, [*SURROGATES, 'module:function'])}")
    found = import_name(name, _KEY)
    _try(found, name, options)
    return found


def needs_advantage(surrogate: Union[str, Surrogate], options: Dict[str, Any] = {}) -> bool:
    """Whether the loss of a token is 0 if its advantage is 0, whatever the advantages of other tokens are, for what
    ``find_surrogate`` returns."""
    function, traits = surrogate_function(surrogate), surrogate_traits(surrogate)
    if traits.of_batch or traits.of_row:
        return False
    (ratio, adv, *others), keywords = _small_tensors(function)
    return not function(ratio, torch.zeros_like(adv), *others, **keywords, **options).any()


def _try(surrogate: Surrogate, name: str, options: Dict[str, Any]) -> None:
    if not callable(surrogate):
        raise ConfigError(f'{_KEY} = {name!r}: must be a function, not {type(surrogate).__name__}.')
    arguments, keywords = _small_tensors(surrogate)
    logp = arguments[2]
    try:
        inspect.signature(surrogate).bind(*arguments, **keywords)
    except TypeError as error:
        raise ConfigError(
            f'{_KEY} = {name!r}: must take the arguments (ratio, adv, logp_new, low, high) ({error}).'
        ) from error
    except ValueError:  # some built-in functions have no signature
        pass
    _check_options(surrogate, name, options)
    with config_errors(f'{_KEY} = {name!r}: fails on small tensors'):
        objective = surrogate(*arguments, **keywords, **options)
    shape = (len(logp), 1) if surrogate_traits(surrogate).of_row else tuple(logp.shape)
    if not isinstance(objective, torch.Tensor):
        found = type(objective).__name__
    else:
        gradient = 'with' if objective.requires_grad else 'without'
        found = f'{objective.dtype} {tuple(objective.shape)} {gradient} a gradient'
    if found != f'{logp.dtype} {shape} with a gradient':
        raise ConfigError(
            f'{_KEY} = {name!r}: must return the objective of each token, floats of shape (B, S) with a gradient. For '
            f'(B, S) = {tuple(logp.shape)} it returns {found}.'
        )


def _small_tensors(surrogate: Surrogate) -> Tuple[Tuple, Dict[str, torch.Tensor]]:
    """Arguments for a trial: (ratio, adv, logp_new, low, high), and the tensors that the surrogate needs by name."""
    logp = torch.tensor([[0., 0.5, -0.5], [1., -1., 0.]]).requires_grad_()  # (B, S)
    tensors = dict(logp_old=torch.zeros_like(logp), weight=torch.ones_like(logp), group=torch.tensor([0, 0]))
    given, _ = surrogate_arguments(surrogate)
    return (logp.exp(), torch.tensor([[1.], [-1.]]), logp, 0.8, 1.2), {key: tensors[key] for key in given}


def _check_options(surrogate: Surrogate, name: str, options: Dict[str, Any]) -> None:
    if 'generator' in options:
        raise ConfigError(
            "policy.learn.surrogate_options['generator']: the policy draws tokens from the seed of the run. Remove it."
        )
    try:
        check_surrogate_options(name if name in SURROGATES else surrogate, options)
    except ValueError as error:
        raise ConfigError(f'policy.learn.{error}.') from error
