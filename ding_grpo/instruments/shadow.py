"""
Shadow losses: what other presets would do with the batch in use. Their gradients with respect to log-probabilities
need no model: the loss is differentiated at the log-probabilities that learning has computed anyway.
"""
from dataclasses import replace
from typing import Callable, Dict, List, Sequence, Tuple

import torch
from easydict import EasyDict
from torch import Tensor

from ding_common import ConfigError
from ding_grpo.config.loss_options import loss_config, with_preset
from ding_grpo.data.batch import Batch
from ding_grpo.learn.advantage import Advantage
from ding_grpo.learn.metrics import SHADOW
from ding_grpo.learn.observer import Observer, View
from ding_grpo.rl_utils import LOSS_PRESETS, Preset

from .weight_gradients import dot, weight_gradients

IN_USE, TOKENS = 'in_use', 'tokens'  # names beside those of presets: the loss in use, and the tokens that count


class Shadow(Observer):
    """Measures losses beside the one in use. A preset has its own choices and advantages; coefficients of the KL and
    all other keys are those of the run."""

    def __init__(self, view: View) -> None:
        """With ``instruments.shadow='all'``, ``notices`` names each preset that the run cannot have. Raises
        ``ConfigError`` if the config names such a preset."""
        self._updater, self._actor, self._every = view.updater, view.actor, view.cfg.instruments.shadow_every
        self.presets, self.notices = presets_of(view.cfg, view.check_run)
        self.weights_due = False  # whether this update measures gradients in the weights

    def compared(self, batch: Batch, advantage: Advantage) -> Dict[str, Tensor]:
        methods = dict.fromkeys(preset.adv_method for preset in self.presets.values())
        return {m: batch.adv if m == advantage.method else advantage._replace(method=m).of(batch) for m in methods}

    def before(self, update: int, batch: Batch, learned: Batch) -> Dict[str, float]:
        self.weights_due = self._every > 0 and update % self._every == 0
        return {}

    def step(self, batch: Batch, logp: Tensor) -> Dict[str, float]:
        if not self.presets:
            return {}
        with self._actor.aside():
            metrics, slopes = self._measure(batch, logp)
            if self.weights_due:
                metrics.update(self._measure_weights(batch, slopes))
        return metrics

    def _measure(self, batch: Batch, logp: Tensor) -> Tuple[Dict[str, float], Tensor]:
        """Metrics (docs/guides/instruments.md) of the loss in use and of each preset, and their gradients (K + 1, B, S)
        with respect to log-probabilities ``logp`` (B, S), that of the loss in use first. ``batch`` has ``other_adv``.
        """
        advs = [batch.adv, *(batch.other_adv[preset.adv_method] for preset in self.presets.values())]
        configs = [None, *self.presets.values()]
        leaf = logp.detach().repeat(len(advs), 1, 1).requires_grad_()  # (K + 1, B, S): one backward for all
        losses = [
            self._updater.loss(replace(batch, adv=adv), x, None, config, with_info=False)[0]
            for adv, x, config in zip(advs, leaf.unbind(0), configs)
        ]
        slopes, = torch.autograd.grad(torch.stack(losses).sum(), leaf)
        signs = torch.stack([(adv.unsqueeze(1) if adv.dim() == 1 else adv).sign().expand_as(logp) for adv in advs])
        found = dict(
            loss=torch.stack(losses).detach().double(), **compare(slopes), **shares(slopes, signs, batch.weight)
        )
        of_tokens = shares((batch.weight != 0).unsqueeze(0), signs[:1], batch.weight)
        names = (IN_USE, *self.presets)
        return {**_named(found, names), **_named(of_tokens, (TOKENS, ))}, slopes

    def _measure_weights(self, batch: Batch, slopes: Tensor) -> Dict[str, float]:
        """Norms of the gradients in the weights, and cosines with that of the loss in use, for the slopes of
        ``_measure``. One backward pass for each loss."""
        gradients = weight_gradients(slopes, batch, self._updater)
        first = next(gradients)
        products = [[dot(first, first)] * 2, *([dot(x, x), dot(x, first)] for x in gradients)]
        square, product = torch.tensor(products, dtype=torch.double).unbind(1)  # (K + 1, ) each
        cosine = product / (square.sqrt() * square[0].sqrt())
        return _named(dict(weights_norm=square.sqrt(), weights_cosine=cosine), (IN_USE, *self.presets))


def presets_of(cfg: Dict, check: Callable[[Dict], None]) -> Tuple[Dict[str, Preset], List[str]]:
    """The shadow losses of a config by name, and one line for each that it asks for by 'all' and cannot have. ``check``
    raises a ``ConfigError`` if a section ``policy`` cannot run."""
    asked, presets, left_out = cfg.instruments.shadow, {}, []
    for name in LOSS_PRESETS if asked == 'all' else dict.fromkeys(asked):
        learn = with_preset(cfg.learn, name)
        unwatched = dict(cfg.instruments, shadow=[], shadow_every=0)
        try:
            check(EasyDict(cfg, learn=learn, instruments=unwatched))
        except ConfigError as error:
            if asked != 'all':
                raise ConfigError(
                    f'policy.instruments.shadow = {list(asked)!r}: this run cannot have {name!r} ({error})'
                ) from error
            left_out.append(f'policy.instruments.shadow: without {name!r} ({error})')
        else:
            presets[name] = loss_config(learn)
    return presets, left_out


def compare(slopes: Tensor) -> Dict[str, Tensor]:
    """``norm`` (K, ) of gradients (K, B, S), and their ``cosine`` (K, ) with the first one, NaN if either is 0."""
    flat = slopes.flatten(1).double()
    norm = flat.norm(dim=1)
    return dict(norm=norm, cosine=flat @ flat[0] / (norm * norm[0]))


def shares(slopes: Tensor, signs: Tensor, weight: Tensor) -> Dict[str, Tensor]:
    """
    Shares (K, ) of the squared norms of gradients (K, B, S), NaN if the norm is 0. By sign (K, B, S) of the advantage:
    ``positive``, ``negative``; the rest is a KL where the advantage is 0. By third of the row's steps that count in
    ``weight`` (B, S): ``first``, ``middle``, ``last``. By length: ``long``, the rows with more steps than the median
    row.
    """
    square = slopes.double().square()
    counted = weight != 0  # (B, S)
    length = counted.sum(1, keepdim=True)  # (B, 1)
    third = 3 * (counted.cumsum(1) - 1) // length.clamp(min=1)  # (B, S): 0, 1 or 2 on steps that count
    rows = length[length > 0]
    long = length > (rows.median() if rows.numel() else 0)  # (B, 1); the lower median
    fixed = torch.stack([third == 0, third == 1, third == 2, long.expand_as(counted)])  # (4, B, S)
    total = square.sum((1, 2))
    first, middle, last, of_long = (square.flatten(1) @ fixed.flatten(1).T.double()).unbind(1)
    positive, negative = ((square * (signs == sign)).sum((1, 2)) for sign in (1, -1))
    parts = dict(positive=positive, negative=negative, first=first, middle=middle, last=last, long=of_long)
    return {name: part / total for name, part in parts.items()}


def _named(found: Dict[str, Tensor], losses: Sequence[str]) -> Dict[str, float]:
    """Values (K, ) as metrics, without NaN, and without what is known of the loss in use."""
    values = torch.stack([x.cpu() for x in found.values()]).tolist()
    return {
        f'{SHADOW}{loss}/{name}': value
        for name, of_losses in zip(found, values) for loss, value in zip(losses, of_losses)
        if value == value and not (loss == IN_USE and name in ('loss', 'cosine', 'weights_cosine'))
    }
