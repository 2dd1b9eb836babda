from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, Optional, Tuple, Union

import torch

from .check import check_choice, check_number
from .kl import KL_TYPES
from .reduce import REDUCTIONS
from .surrogates import (
    Surrogate, Traits, check_surrogate_options, surrogate_arguments, surrogate_function, surrogate_traits
)

RATIOS = ('token', 'sequence', 'sequence_token')


@dataclass(frozen=True)
class LossConfig:
    """
    Overview:
        The options of ``grpo_error``. The defaults are equation 3 of https://arxiv.org/abs/2402.03300. \
        ``LOSS_PRESETS`` contains the combinations of the papers; ``dataclasses.replace`` changes single options.
    Arguments:
        - ratio (:obj:`str`): ``token``, or ``sequence`` for the geometric mean over the row's tokens, GSPO, \
            https://arxiv.org/abs/2507.18071. ``sequence_token`` has the value of that and the gradient of each \
            token's own probability, GSPO-token of the same paper: it differs where tokens have different advantages.
        - surrogate (:obj:`Union[str, Surrogate]`): A key of ``SURROGATES``, or a function.
        - clip_ratio (:obj:`float`): Clipping range of the probability ratio below 1, and also above 1 unless \
            ``clip_ratio_high`` is given.
        - clip_ratio_high (:obj:`Optional[float]`): Clipping range above 1. For ``cispo`` the bound itself, as in TRL.
        - delta (:obj:`Optional[float]`): Upper bound of the ratio for negative advantages, which clipping does not \
            bound, https://arxiv.org/abs/2505.07291. Must exceed 1 + the clipping range; ``clip`` only.
        - reduction (:obj:`str`): ``sequence``, ``token``, ``constant`` or ``sum``, see ``reduce_loss``. The surrogate \
            ``geo_mean`` has one objective per row, and the loss is the mean over rows whatever the reduction.
        - beta (:obj:`float`): Coefficient of the KL to the reference policy.
        - kl_type (:obj:`str`): Estimator of that KL, ``k1``, ``k2`` or ``k3``.
        - kl_ratio_correction (:obj:`bool`): Whether to multiply the KL by the ratio. It is then an estimate under the \
            trained policy even if another policy sampled the tokens.
    """
    ratio: str = 'token'
    surrogate: Union[str, Surrogate] = 'clip'
    surrogate_options: Dict[str, Any] = field(default_factory=dict)
    clip_ratio: float = 0.2
    clip_ratio_high: Optional[float] = None
    delta: Optional[float] = None
    reduction: str = 'sequence'
    max_length: Optional[int] = None
    beta: float = 0.1
    kl_type: str = 'k3'
    kl_ratio_correction: bool = False

    def __post_init__(self) -> None:
        check_number('clip_ratio', self.clip_ratio)
        if self.clip_ratio_high is not None:
            check_number('clip_ratio_high', self.clip_ratio_high)
        check_number('beta', self.beta)
        for name, choices in (('kl_type', KL_TYPES), ('ratio', RATIOS), ('reduction', REDUCTIONS)):
            check_choice(name, getattr(self, name), choices)
        surrogate = getattr(self.surrogate, '__name__', self.surrogate)
        if self.ratio != 'token' and self.traits.token_ratio:
            raise ValueError(f"ratio = {self.ratio!r}: must be 'token' for surrogate {surrogate!r}")
        check_surrogate_options(self.surrogate, self.surrogate_options)
        if self.delta is None:
            return
        if self.surrogate != 'clip':
            raise ValueError(f"delta = {self.delta}: must be None for surrogate {surrogate!r}; only 'clip' uses it")
        if not self.delta > self.bounds[1]:
            raise ValueError(
                f'delta = {self.delta}: must be greater than 1 + the clipping range above 1, {self.bounds[1]}'
            )

    @property
    def objective(self) -> Surrogate:
        """The function of the surrogate."""
        return surrogate_function(self.surrogate)

    @property
    def traits(self) -> Traits:
        """The properties of the surrogate."""
        return surrogate_traits(self.surrogate)

    @property
    def bounds(self) -> Tuple[float, float]:
        """The lower and the upper bound of the ratio."""
        high = 1 + (self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high)
        return 1 - self.clip_ratio, high - 1 if self.traits.high_alone else high

    @property
    def draws(self) -> bool:
        """Whether the surrogate draws tokens."""
        return 'generator' in surrogate_arguments(self.objective)[1]

    def drawing_from(self, generator: torch.Generator) -> 'LossConfig':
        """The same loss, whose surrogate draws tokens from a generator; unchanged if the surrogate draws nothing."""
        if not self.draws:
            return self
        return replace(self, surrogate_options=dict(self.surrogate_options, generator=generator))


def with_options(config: LossConfig, options: Dict[str, Any]) -> LossConfig:
    """A config in which options are replaced, by name."""
    if not isinstance(config, LossConfig):
        raise ValueError(f'config of {type(config).__name__}: must be a LossConfig; pass single options by name')
    known = [option.name for option in fields(LossConfig)]
    for name, value in options.items():
        if name not in known:
            raise ValueError(f'{name} = {value!r}: is not an option of the loss; its options are {", ".join(known)}')
    return replace(config, **options) if options else config
