"""Finds the surrogate that a config names: a registered one, or a function of a user's module."""
import inspect
from importlib import import_module
from typing import Union

import torch

from ding_common import ConfigError, Rule, describe, nearest
from ding_grpo.rl_utils import SURROGATES, Surrogate

_KEY = 'policy.learn.surrogate'


def find_surrogate(name: str) -> Union[str, Surrogate]:
    """
    Overview:
        Look up a surrogate and try it on small tensors, so that a wrong function fails before training.
    Arguments:
        - name (:obj:`str`): A current key of ``SURROGATES``, or ``'module:function'``.
    Returns:
        - surrogate (:obj:`Union[str, Surrogate]`): The name or the function, as an argument for ``grpo_error``.
    Raises:
        - ConfigError: If no surrogate has that name, or if it cannot be used.
    """
    if name in SURROGATES:
        _try(SURROGATES[name], name)
        return name
    if ':' not in name:
        raise ConfigError(f"{_KEY} = {name!r}: unknown surrogate; {nearest(name, [*SURROGATES, 'module:function'])}")
    found = _import(name)
    _try(found, name)
    return found


def _import(name: str) -> Surrogate:
    module_name, function = name.split(':', 1)
    if not Rule.modules().holds([module_name]):
        raise ConfigError(f'{_KEY} = {name!r}: there is no module {module_name!r} that can be imported.')
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise any exception
        raise ConfigError(f'{_KEY} = {name!r}: the module cannot be imported ({describe(error)}).') from error
    if not hasattr(module, function):
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(f'{_KEY} = {name!r}: the module has no {function!r}; {nearest(function, functions)}')
    return getattr(module, function)


def _try(surrogate: Surrogate, name: str) -> None:
    if not callable(surrogate):
        raise ConfigError(f'{_KEY} = {name!r}: must be a function, not {type(surrogate).__name__}.')
    logp = torch.tensor([[0., 0.5, -0.5], [1., -1., 0.]]).requires_grad_()  # (B, S)
    arguments = (logp.exp(), torch.tensor([[1.], [-1.]]), logp, 0.8, 1.2)
    try:
        inspect.signature(surrogate).bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f'{_KEY} = {name!r}: must take the arguments (ratio, adv, logp_new, low, high) ({error}).'
        ) from error
    except ValueError:  # some built-in functions have no signature
        pass
    try:
        objective = surrogate(*arguments)
    except Exception as error:  # as in _import
        raise ConfigError(f'{_KEY} = {name!r}: fails on small tensors ({describe(error)}).') from error
    if not isinstance(objective, torch.Tensor):
        given = type(objective).__name__
    else:
        gradient = 'with' if objective.requires_grad else 'without'
        given = f'{objective.dtype} {tuple(objective.shape)} {gradient} a gradient'
    if given != f'{logp.dtype} {tuple(logp.shape)} with a gradient':
        raise ConfigError(
            f'{_KEY} = {name!r}: must return the objective of each token, floats of shape (B, S) with a gradient. For '
            f'(B, S) = {tuple(logp.shape)} it returns {given}.'
        )
