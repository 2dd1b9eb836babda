"""
Surrogates: the objective of each token, to be maximised. They depart from their papers and peers in two points:

1. ``kl_cov`` penalises only tokens of positive covariance. verl fills up the share with others, so that rewards that
   are all equal would still move the policy.
2. ``cpgd`` does not clip the policy drift, and by default it has none, as in LightRFT.
"""
import inspect
import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from .check import check_number
from .kl import bounded, kl_estimate
from .reduce import masked, masked_mean, row_mean

# (ratio, adv, logp_new, low, high) -> objective of each token; low and high bound the ratio. Two kinds of keyword-only
# arguments may follow. Those of ``GIVEN`` have no default and get the tensor of that name, (B, S), in which log-
# probabilities are 0 where the weight is 0. Those with a default are the options that ``surrogate_options`` may set.
Surrogate = Callable[..., Tensor]
GIVEN = ('logp_old', 'weight')


def clip_surrogate(
        ratio: Tensor,
        adv: Tensor,
        logp_new: Tensor,
        low: float,
        high: float,
        delta: Optional[float] = None,
        *,
        dual_clip: Optional[float] = None,
) -> Tensor:
    """min(min(r, delta) A, clip(r, low, high) A), https://arxiv.org/abs/1707.06347; no bound for ``delta`` None. With
    ``dual_clip`` c it is at least c A for negative A, https://arxiv.org/abs/1912.09729; equal to ``delta`` c above
    ``high``."""
    capped = ratio if delta is None else ratio.clamp(max=delta)
    objective = torch.min(capped * adv, ratio.clamp(low, high) * adv)
    return objective if dual_clip is None else torch.where(adv < 0, objective.max(dual_clip * adv), objective)


def cispo_surrogate(ratio: Tensor, adv: Tensor, logp_new: Tensor, low: float, high: float) -> Tensor:
    """sg(min(r, high)) A log pi, https://arxiv.org/abs/2506.13585: every token keeps its gradient."""
    return ratio.clamp(max=high).detach() * adv * logp_new


def sapo_surrogate(ratio: Tensor, adv: Tensor, logp_new: Tensor, low: float, high: float) -> Tensor:
    """(4 / t) sigmoid(t (r - 1)) A, t = 1 for positive and 1.05 for other A, https://arxiv.org/abs/2511.20347."""
    temperature = torch.where(adv > 0, 1.0, 1.05).to(ratio.dtype)
    return torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * adv


def dppo_tv_surrogate(
        ratio: Tensor,
        adv: Tensor,
        logp_new: Tensor,
        low: float,
        high: float,
        *,
        logp_old: Tensor,
        ratio_cap: float = 20.0,
) -> Tensor:
    """sg(min(r, cap)) A log pi, and 0 for a token whose probability has already moved in the direction of A by more
    than the clipping range, DPPO with total variation, https://arxiv.org/abs/2602.04879."""
    moved = (logp_new.exp() - logp_old.exp()).detach()
    inside = torch.where(adv > 0, moved <= high - 1, moved >= low - 1)
    return ratio.clamp(max=ratio_cap).detach() * adv * logp_new * inside


def dppo_kl_surrogate(
        ratio: Tensor,
        adv: Tensor,
        logp_new: Tensor,
        low: float,
        high: float,
        *,
        logp_old: Tensor,
        ratio_cap: float = 20.0,
) -> Tensor:
    """As ``dppo_tv``, where the clipping range bounds KL(old || new) between taking the token and any other."""
    with torch.no_grad():
        old, new = logp_old.exp(), logp_new.exp()
        others = ((1 - old).clamp(min=0) + 1e-8).log() - ((1 - new).clamp(min=0) + 1e-8).log()  # 1e-8 as in verl
        divergence = old * (logp_old - logp_new) + (1 - old) * others
        risen = torch.where(adv > 0, new > old, new < old)  # in the direction of A
        inside = ~risen | (divergence <= torch.where(adv > 0, high - 1, 1 - low))
    return ratio.clamp(max=ratio_cap).detach() * adv * logp_new * inside


def geo_mean_surrogate(
        ratio: Tensor,
        adv: Tensor,
        logp_new: Tensor,
        low: float,
        high: float,
        *,
        logp_old: Tensor,
        weight: Tensor,
) -> Tensor:
    """(B, 1): A exp(mean of the row's log r), GMPO, https://arxiv.org/abs/2507.20673. The clipping range bounds log r
    in the direction of A. A is the row's mean advantage."""
    log_ratio = logp_new - logp_old
    clipped = torch.where(adv > 0, log_ratio.clamp(max=high - 1), log_ratio.clamp(min=low - 1)) * (adv != 0)
    objective = row_mean(adv.expand_as(logp_new), weight) * bounded(row_mean(clipped, weight)).exp()
    return objective.unsqueeze(1)


def gpg_surrogate(ratio: Tensor, adv: Tensor, logp_new: Tensor, low: float, high: float) -> Tensor:
    """A log pi, the plain policy gradient of GPG, https://arxiv.org/abs/2504.02546."""
    return adv * logp_new


def dro_surrogate(
        ratio: Tensor,
        adv: Tensor,
        logp_new: Tensor,
        low: float,
        high: float,
        *,
        logp_old: Tensor,
        beta: float = 0.1
) -> Tensor:
    """A log pi - beta / 2 (log r)^2, as in verl after DRO, https://arxiv.org/abs/2405.19107."""
    return adv * logp_new - beta / 2 * (logp_new - logp_old) ** 2


def clip_cov_surrogate(
        ratio: Tensor,
        adv: Tensor,
        logp_new: Tensor,
        ratio_low: float,
        ratio_high: float,
        *,
        weight: Tensor,
        share: float = 0.0002,
        low: float = 1.0,
        high: float = 5.0,
        generator: Optional[torch.Generator] = None,
) -> Tensor:
    """The ``clip`` objective, and 0 for a share of the tokens (at least one) that ``generator`` draws among those that
    are not clipped and whose covariance of A and log pi is between low and high, https://arxiv.org/abs/2505.22617."""
    objective = clip_surrogate(ratio, adv, logp_new, ratio_low, ratio_high)
    covariance = _covariance(adv, logp_new, weight)
    candidate = (covariance > low) & (covariance < high) & (ratio * adv <= objective) & (weight != 0)
    places = candidate.flatten().nonzero().squeeze(1)
    order = torch.randperm(len(places), generator=generator)[:_count(share, weight)].to(places.device)
    return objective * torch.ones_like(objective).flatten().index_fill(0, places[order], 0).view_as(objective)


def kl_cov_surrogate(
        ratio: Tensor,
        adv: Tensor,
        logp_new: Tensor,
        low: float,
        high: float,
        *,
        logp_old: Tensor,
        weight: Tensor,
        share: float = 0.0002,
        coefficient: float = 1.0,
) -> Tensor:
    """r A, minus coefficient |log r| for the share of the tokens (at least one) with the largest covariance of A and
    log pi, https://arxiv.org/abs/2505.22617. Nothing is clipped."""
    covariance = _covariance(adv, logp_new, weight).masked_fill(weight == 0, 0).flatten()
    value, place = covariance.topk(min(_count(share, weight), len(covariance)))
    penalised = torch.zeros_like(covariance).index_fill(0, place[value > 0], 1).view_as(logp_new)
    return ratio * adv - coefficient * (logp_new - logp_old).abs() * penalised


def vespo_surrogate(
        ratio: Tensor,
        adv: Tensor,
        logp_new: Tensor,
        low: float,
        high: float,
        *,
        logp_old: Tensor,
        weight: Tensor,
        k_pos: float = 2.0,
        lambda_pos: float = 3.0,
        k_neg: float = 3.0,
        lambda_neg: float = 2.0,
) -> Tensor:
    """sg(phi(w)) A log pi with phi(w) = w^k exp(lambda - lambda w), where w is the ratio of the whole row, bounded as
    in TRL, https://arxiv.org/abs/2602.10693. ``pos`` is for advantages of at least 0, ``neg`` for others."""
    with torch.no_grad():
        of_tokens = masked((logp_new - logp_old).clamp(-20, 20), weight)
        log_w = of_tokens.sum(1, keepdim=True).clamp(math.log(1e-8), 20)  # (B, 1)
        positive, (k, slope, k_other, slope_other) = adv >= 0, adv.new_tensor([k_pos, lambda_pos, k_neg, lambda_neg])
        k, slope = torch.where(positive, k, k_other), torch.where(positive, slope, slope_other)
        phi = (slope + k * log_w - slope * log_w.exp()).exp()
    return phi * adv * logp_new


def cpgd_surrogate(
        ratio: Tensor,
        adv: Tensor,
        logp_new: Tensor,
        low: float,
        high: float,
        *,
        logp_old: Tensor,
        drift: float = 0.0
) -> Tensor:
    """A log pi, without a gradient once r has left the clipping range in the direction of A, minus ``drift`` times the
    estimate r - 1 - log r of KL(old || new), https://arxiv.org/abs/2505.12504."""
    most, least = logp_old + math.log(high), logp_old + (math.log(low) if low > 0 else -math.inf)
    objective = adv * torch.where(adv > 0, logp_new.min(most), logp_new.max(least))
    return objective if drift == 0 else objective - drift * kl_estimate(logp_old, logp_new, 'k3')


SURROGATES: Dict[str, Surrogate] = dict(
    clip=clip_surrogate,
    cispo=cispo_surrogate,
    sapo=sapo_surrogate,
    dppo_tv=dppo_tv_surrogate,
    dppo_kl=dppo_kl_surrogate,
    geo_mean=geo_mean_surrogate,
    gpg=gpg_surrogate,
    dro=dro_surrogate,
    clip_cov=clip_cov_surrogate,
    kl_cov=kl_cov_surrogate,
    vespo=vespo_surrogate,
    cpgd=cpgd_surrogate,
)
# They need the ratio of each token, or define one themselves: not for ``ratio='sequence'``.
TOKEN_RATIO_SURROGATES = tuple(f for name, f in SURROGATES.items() if name not in ('clip', 'cispo', 'sapo'))
ROW_SURROGATES = (geo_mean_surrogate, )  # one objective per row, (B, 1)
BATCH_SURROGATES = (clip_cov_surrogate, kl_cov_surrogate)  # they choose among the tokens of all rows


class _Bounds(NamedTuple):
    low: float = 0
    open_low: bool = False
    high: float = math.inf


_POSITIVE, _SHARE = _Bounds(open_low=True), _Bounds(open_low=True, high=1)
_BOUNDS: Dict[Surrogate, Dict[str, _Bounds]] = {
    clip_surrogate: dict(dual_clip=_Bounds(1, open_low=True)),
    dppo_tv_surrogate: dict(ratio_cap=_Bounds(1)),
    dppo_kl_surrogate: dict(ratio_cap=_Bounds(1)),
    dro_surrogate: dict(beta=_Bounds()),
    clip_cov_surrogate: dict(share=_SHARE, low=_Bounds(), high=_POSITIVE),
    kl_cov_surrogate: dict(share=_SHARE, coefficient=_Bounds()),
    vespo_surrogate: dict(k_pos=_POSITIVE, lambda_pos=_POSITIVE, k_neg=_POSITIVE, lambda_neg=_POSITIVE),
    cpgd_surrogate: dict(drift=_Bounds()),
}


def surrogate_arguments(surrogate: Surrogate) -> Tuple[Tuple[str, ...], Dict[str, Any]]:
    """
    Overview:
        The keyword-only arguments of a surrogate.
    Arguments:
        - surrogate (:obj:`Surrogate`): A function.
    Returns:
        - given (:obj:`Tuple[str, ...]`): The names of the tensors that it needs, of ``GIVEN``.
        - options (:obj:`Dict[str, Any]`): Its options with their defaults.
    """
    try:
        parameters = inspect.signature(surrogate).parameters.values()
    except ValueError:  # some built-in functions have no signature
        return (), {}
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    given = tuple(name for name, default in keywords.items() if default is inspect.Parameter.empty and name in GIVEN)
    return given, {name: d for name, d in keywords.items() if d is not inspect.Parameter.empty}


def check_surrogate_options(surrogate: Union[str, Surrogate], options: Dict[str, Any]) -> None:
    """
    Overview:
        Check names and values of options against the surrogate that takes them.
    Arguments:
        - surrogate (:obj:`Union[str, Surrogate]`): A key of ``SURROGATES``, or a function.
        - options (:obj:`Dict[str, Any]`): Its options by name.
    Raises:
        - ValueError: If the surrogate has no such option, or not with this value.
    """
    function = surrogate if callable(surrogate) else SURROGATES[surrogate]
    _, known = surrogate_arguments(function)
    of_option = next((bounds for f, bounds in _BOUNDS.items() if f is function), {})
    for name, value in options.items():
        if name not in known:
            allowed = f'its options are {", ".join(sorted(known))}' if known else 'it has no options'
            raise ValueError(f'surrogate_options = {options!r}: {name!r} is not an option of {surrogate!r}; {allowed}')
        bounds, where = of_option.get(name), f'surrogate_options[{name!r}]'
        if bounds is not None and (value is not None or known[name] is not None):
            check_number(where, value, bounds.low, bounds.open_low)
            if value > bounds.high:
                raise ValueError(f'{where} = {value!r}: must be at most {bounds.high:g}')
    chosen = {**known, **options}
    if function is clip_cov_surrogate and not isinstance(chosen['generator'], (torch.Generator, type(None))):
        given = type(chosen['generator']).__name__
        raise ValueError(f"surrogate_options['generator'] of {given}: must be a torch.Generator, or None")
    if function is clip_cov_surrogate and not chosen['low'] < chosen['high']:
        raise ValueError(f"surrogate_options['low'] = {chosen['low']}: must be below 'high', {chosen['high']}")


@torch.no_grad()
def _covariance(adv: Tensor, logp_new: Tensor, weight: Tensor) -> Tensor:
    """(B, S): (A - mean A) (log pi - mean log pi), with means over the tokens that count."""
    adv = adv.expand_as(logp_new)
    return (adv - masked_mean(adv, weight)) * (logp_new - masked_mean(logp_new, weight))


def _count(share: float, weight: Tensor) -> int:
    """The number of tokens in a share of those that count, at least 1."""
    return max(1, int(share * int((weight != 0).sum())))
