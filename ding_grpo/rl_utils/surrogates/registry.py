"""Finds surrogates by name, and what the loss has to know of them beside their formula."""
import inspect
import math
from functools import lru_cache
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

from torch import Tensor

from ding_grpo.rl_utils.check import check_number

# (ratio, adv, logp_new, low, high) -> objective of each token (B, S), to be maximised. ratio and logp_new are (B, S),
# adv is (B, S) or (B, 1), and the numbers low and high bound the ratio. Two kinds of keyword-only arguments may follow.
# Those of ``GIVEN`` have no default and get the tensor of that name, (B, S), in which log-probabilities are 0 where the
# weight is 0; ``group`` is (B, ). Those with a default are the options that ``surrogate_options`` may set.
Surrogate = Callable[..., Tensor]
GIVEN = ('logp_old', 'weight', 'group')
SURROGATES: Dict[str, Surrogate] = {}


class Limits(NamedTuple):
    """Allowed numbers of an option: finite, at least ``low``, or above it with ``open_low``, and at most ``high``."""
    low: float = 0
    open_low: bool = False
    high: float = math.inf


class Traits(NamedTuple):
    """Properties of a surrogate. The defaults are those of a function that is not registered."""
    token_ratio: bool = False  # needs, or defines, the ratio of each token: not with ``ratio='sequence'``
    of_row: bool = False  # returns one objective per row, (B, 1); the loss is then the mean over rows
    whole_rows: bool = False  # needs all tokens of a row, so that single steps are not enough
    of_batch: bool = False  # chooses among the tokens of all rows, so that a batch cannot be divided
    high_alone: bool = False  # ``clip_ratio_high`` is the bound of the ratio itself, not of its distance from 1
    probabilities: bool = False  # compares probabilities themselves, which densities are not
    limits: Dict[str, Limits] = {}  # allowed numbers of its options
    check: Optional[Callable[[Dict[str, Any]], None]] = None  # gets all options by name, raises ``ValueError``


def register_surrogate(name: str, **traits: Any) -> Callable[[Surrogate], Surrogate]:
    """Decorator that makes a surrogate available under a name, with the fields of ``Traits``."""

    def register(surrogate: Surrogate) -> Surrogate:
        surrogate.traits = Traits(**traits)
        SURROGATES[name] = surrogate
        return surrogate

    return register


def surrogate_function(surrogate: Union[str, Surrogate]) -> Surrogate:
    """The function of a surrogate: a key of ``SURROGATES``, or the function itself."""
    if callable(surrogate):
        return surrogate
    if not isinstance(surrogate, str) or surrogate not in SURROGATES:
        raise ValueError(f'surrogate = {surrogate!r}: must be one of {tuple(SURROGATES)} or a function')
    return SURROGATES[surrogate]


def surrogate_traits(surrogate: Union[str, Surrogate]) -> Traits:
    """What ``register_surrogate`` was given for a surrogate; the defaults for other functions."""
    return getattr(surrogate_function(surrogate), 'traits', Traits())


def surrogate_arguments(surrogate: Surrogate) -> Tuple[Tuple[str, ...], Dict[str, Any]]:
    """The keyword-only arguments of a surrogate: the names of the tensors that it needs, of ``GIVEN``, and its options
    with their defaults."""
    return _kept_arguments(surrogate) if inspect.isfunction(surrogate) else _arguments(surrogate)


def _arguments(surrogate: Surrogate) -> Tuple[Tuple[str, ...], Dict[str, Any]]:
    try:
        parameters = inspect.signature(surrogate).parameters.values()
    except ValueError:  # some built-in functions have no signature
        return (), {}
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    given = tuple(name for name, default in keywords.items() if default is inspect.Parameter.empty and name in GIVEN)
    return given, {name: d for name, d in keywords.items() if d is not inspect.Parameter.empty}


_kept_arguments = lru_cache(maxsize=64)(_arguments)  # reading a signature takes as long as a small loss


def check_surrogate_options(surrogate: Union[str, Surrogate], options: Dict[str, Any]) -> None:
    """Check names and values of options against the surrogate that takes them."""
    _, known = surrogate_arguments(surrogate_function(surrogate))
    traits = surrogate_traits(surrogate)
    for name, value in options.items():
        if name not in known:
            allowed = f'its options are {", ".join(sorted(known))}' if known else 'it has no options'
            raise ValueError(f'surrogate_options = {options!r}: {name!r} is not an option of {surrogate!r}; {allowed}')
        limits, where = traits.limits.get(name), f'surrogate_options[{name!r}]'
        if limits is not None and (value is not None or known[name] is not None):
            check_number(where, value, *limits)
    if traits.check is not None:
        traits.check({**known, **options})
