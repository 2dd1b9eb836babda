"""
Distributions over the actions of step models, from what DI-engine's models return as ``logit``: one discrete action,
several (``action_shape`` is a list), continuous ones (``mu`` and ``sigma``), or a discrete one with continuous
arguments (``action_type`` and ``action_args``). An action is a tensor row: its number; its numbers; its values; its
number and its arguments.
"""
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from ding_common import ConfigError, TaskError
from ding_grpo.rl_utils import entropy, naive_method, sum_of_squares
from ding_grpo.rl_utils.on_device import on_device
from ding_grpo.rollout import draw

NEVER = -1e9  # the logit of an action that is masked: its probability is 0, and its entropy too


class ToSpace(NamedTuple):
    """From actions as tensors to those of an environment's space."""
    shape: Optional[Tuple[int, ...]] = (-1, )  # of continuous actions
    start: Any = 0  # the first discrete action: a number, or one for each (N, )
    is_hybrid: bool = False

    def __call__(self, action: Tensor) -> List[Any]:
        action = action.cpu()
        if self.is_hybrid:
            return [dict(action_type=row[0].long() + self.start, action_args=row[1:]) for row in action]
        if action.is_floating_point():
            return list(action.view(len(action), *self.shape).unbind(0))
        return list(((action if action.dim() == 2 else action.unsqueeze(1)) + self.start).unbind(0))

    def values(self, action: Tensor) -> List[Any]:
        """Actions as Python numbers and NumPy arrays, which environments may change."""
        if self.is_hybrid:
            start = int(self.start)
            return [dict(action_type=int(r[0]) + start, action_args=r[1:].copy()) for r in action.cpu().numpy()]
        if action.is_floating_point():
            return list(action.cpu().view(len(action), *self.shape).numpy().copy())
        action = action.cpu() + self.start
        return action.tolist() if action.dim() == 1 else list(action.numpy())


class Categorical:
    """B distributions of one discrete action. All distributions have these methods."""
    width = 1  # of an action, in columns

    def __init__(self, logit: Tensor, temperature: float = 1.0, mask: Optional[Tensor] = None) -> None:
        """``logit`` (B, N); ``mask`` (B, N) is 0 where an action is not allowed."""
        logit = logit if temperature == 1 else logit / temperature
        self.logit, self._mask = logit if mask is None else logit.masked_fill(mask == 0, NEVER), mask

    def _check_mask(self) -> None:
        if self._mask is not None and not (self._mask != 0).any(-1).all():
            raise TaskError('the environment gave an action_mask that allows no action')

    def sample(self, generators: List[np.random.Generator]) -> Tensor:
        """An action of each, (B, ) or (B, N), by its own random numbers."""
        self._check_mask()
        uniform = np.array([g.random() for g in generators])
        return draw(self.logit, on_device(uniform, self.logit.device))[0]

    def mode(self) -> Tensor:
        """The most probable action of each."""
        self._check_mask()
        return self.logit.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probabilities or log-densities (B, ), in nats."""
        return naive_method(self.logit, action)

    def entropy(self) -> Tensor:
        """In nats, (B, )."""
        return entropy(self.logit)

    def squares(self) -> Tensor:
        """Sums of the squared probabilities of all actions, (B, )."""
        return sum_of_squares(self.logit)

    def to_space(self, space: Any) -> ToSpace:
        """How the environment takes the actions; raises a ``ConfigError`` if it has others."""
        if hasattr(space, 'nvec'):
            raise ConfigError(
                f'policy.model.action_shape = {self.logit.shape[1]}: the actions of the environment are {space}. Set '
                f'it to {np.ravel(space.nvec).tolist()}.'
            )
        _check(space, 'discrete', self.logit.shape[1])
        return ToSpace(start=int(getattr(space, 'start', 0)))


class Gaussian:

    def __init__(self, mu: Tensor, sigma: Tensor) -> None:
        """Means and standard deviations (B, N) of independent values."""
        self.mu, self.sigma, self.width = mu, sigma, mu.shape[1]
        # Without validation: ``diagnose`` reports where NaN or infinite values first appear.
        self._normal = Independent(Normal(mu, sigma, validate_args=False), 1, validate_args=False)

    def sample(self, generators: List[np.random.Generator]) -> Tensor:
        noise = np.stack([g.standard_normal(self.mu.shape[1]) for g in generators])  # (B, N)
        return self.mu + self.sigma * torch.from_numpy(noise).to(self.mu)

    def mode(self) -> Tensor:
        return self.mu

    def log_prob(self, action: Tensor) -> Tensor:
        return self._normal.log_prob(action)

    def entropy(self) -> Tensor:
        return self._normal.entropy()

    def squares(self) -> Tensor:
        raise ConfigError('policy.model.action_space: continuous actions have densities, no probabilities.')

    def to_space(self, space: Any) -> ToSpace:
        _check(space, 'continuous', self.mu.shape[1])
        return ToSpace(shape=space.shape)


class Joint:
    """Independent parts of an action, in columns: several discrete actions, or a discrete one and the arguments of all
    discrete actions, of which the environment reads its own."""

    def __init__(self, parts: List[Union[Categorical, Gaussian]]) -> None:
        self.parts = parts

    def sample(self, generators: List[np.random.Generator]) -> Tensor:
        return self._join([part.sample(generators) for part in self.parts])

    def mode(self) -> Tensor:
        return self._join([part.mode() for part in self.parts])

    def _join(self, parts: List[Tensor]) -> Tensor:
        return torch.cat([x.view(-1, part.width) for part, x in zip(self.parts, parts)], 1)

    def log_prob(self, action: Tensor) -> Tensor:
        columns = zip(self.parts, action.split([part.width for part in self.parts], 1))
        found = [p.log_prob(x.squeeze(1).long() if isinstance(p, Categorical) else x) for p, x in columns]
        return torch.stack(found).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def squares(self) -> Tensor:
        return torch.stack([part.squares() for part in self.parts]).prod(0)

    def to_space(self, space: Any) -> ToSpace:
        *discrete, last = self.parts
        if isinstance(last, Gaussian):
            return self._to_hybrid_space(space, discrete[0].logit.shape[1], last.width)
        own = [part.logit.shape[1] for part in self.parts]
        if not hasattr(space, 'nvec') or np.ravel(space.nvec).tolist() != own:
            raise ConfigError(f'policy.model.action_shape = {own}: the actions of the environment are {space}.')
        start = torch.as_tensor(np.ravel(getattr(space, 'start', np.zeros(len(own)))), dtype=torch.long)
        return ToSpace(start=start)

    @staticmethod
    def _to_hybrid_space(space: Any, kinds: int, arguments: int) -> ToSpace:
        spaces = getattr(space, 'spaces', ())
        parts = list(spaces.values() if hasattr(spaces, 'values') else spaces)
        discrete = [part for part in parts if hasattr(part, 'n')]
        size = sum(int(np.prod(part.shape)) for part in parts if hasattr(part, 'low'))
        if len(discrete) != 1 or (int(discrete[0].n), size) != (kinds, arguments):
            raise ConfigError(
                f'policy.model.action_shape = dict(action_type_shape={kinds}, action_args_shape={arguments}): the '
                f'actions of the environment are {space}.'
            )
        return ToSpace(start=int(getattr(discrete[0], 'start', 0)), is_hybrid=True)


Distribution = Union[Categorical, Gaussian, Joint]


def distribution(logit: Any, temperature: float, mask: Optional[Tensor]) -> Optional[Distribution]:
    """That of what a model returns, None if it returns something else. ``temperature`` and ``mask`` concern discrete
    actions."""
    if isinstance(logit, (list, tuple)) and all(isinstance(part, Tensor) and part.dim() == 2 for part in logit):
        masks = [None] * len(logit) if mask is None else mask.split([part.shape[1] for part in logit], 1)
        return Joint([Categorical(part, temperature, m) for part, m in zip(logit, masks)])
    if isinstance(logit, dict) and {'mu', 'sigma'} <= set(logit):
        return Gaussian(logit['mu'], logit['sigma'])
    if isinstance(logit, dict) and {'action_type', 'action_args'} <= set(logit):
        args: Dict[str, Tensor] = logit['action_args']
        return Joint([Categorical(logit['action_type'], temperature, mask), Gaussian(args['mu'], args['sigma'])])
    if isinstance(logit, Tensor) and logit.dim() == 2:
        return Categorical(logit, temperature, mask)
    return None


def _check(space: Any, given: str, size: int) -> None:
    """Raise a ``ConfigError`` unless a space is of this kind and of this number of actions, or of values of one."""
    has = 'continuous' if hasattr(space, 'low') else 'discrete'
    start = int(getattr(space, 'start', 0)) if hasattr(space, 'n') else 0
    trial = np.clip(0, space.low, space.high).astype(np.float32) if has == 'continuous' else np.int64(start)
    if not space.contains(trial):
        raise ConfigError(
            f'create_config.env: the actions of the environment are {space}, and grpo gives {trial!r}. It needs '
            'Discrete, MultiDiscrete, or a Box of float32 or float64: wrap the environment, for example by '
            'gymnasium.wrappers.TransformAction.'
        )
    if given != has:
        raise ConfigError(f'policy.model.action_space = {given!r}: the actions of the environment are {has}.')
    needed = int(np.prod(space.shape) if has == 'continuous' else space.n)
    if size != needed:
        raise ConfigError(f'policy.model.action_shape = {size}: the environment has {needed}.')
