"""Finds the first NaN or infinite value, and describes it as facts of one line each; and tokens of other ids."""
import os
import sys
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import click
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from ding_common import NumericError, parallel
from ding_grpo.model.sharding import whole

from .batch import Batch
from .row_generators import RowKey

# The values of a group, in the order in which learning uses them.
_TENSORS = dict(
    obs='an observation',
    reward='a reward',
    adv='an advantage (adv)',
    logp_old='a log-probability of the sampler (logp_old)',
    logp_ref='a log-probability of the reference (logp_ref)',
    logp_new='a log-probability of the policy (logp_new)',
)
_SHOWN = 8  # number of a prompt's tokens in a message


def check_weights(model: nn.Module, what: str) -> None:
    """Raise a ``NumericError`` if a weight is NaN or infinite. ``what``: where the weights are from."""
    facts = _of_weights(model)
    if facts:
        raise NumericError('\n'.join([f'{what}: weights are NaN or infinite', *facts]))


class BadUpdates:
    """Counts consecutive updates in which a step was skipped because its loss or gradient was NaN or infinite."""

    def __init__(self, most: int) -> None:
        """``most``: number of consecutive updates that stops the run, ``policy.learn.max_bad_updates``."""
        self._most = most
        self.in_a_row = 0

    def add(self, update: int, step: Dict[str, float], facts: Callable[[], List[str]]) -> None:
        """Count an update, report the first of consecutive ones, and stop the run at the limit. Must be called before
        another step changes the weights or clears their gradient. ``step`` has ``total_loss`` and ``grad_norm`` of the
        skipped step; ``facts`` finds the first NaN or infinite value, see ``diagnose``; called only if needed."""
        self.in_a_row += 1
        if self.in_a_row not in (1, self._most):
            return
        lines = [f"loss {step['total_loss']}, norm of the gradient {step['grad_norm']}", *facts()]
        if self.in_a_row == self._most:
            told = (
                f'policy.learn.max_bad_updates = {self._most}: that many updates in a row skipped a step, because its '
                'loss or gradient is NaN or infinite'
            )
            raise NumericError('\n'.join([told, *lines]))
        if parallel.rank() == 0:
            told = f'update {update} had a step that was skipped, for its loss or gradient is not finite'
            # on a terminal, start a new line, because the progress line does not end with one
            click.echo('\n' * sys.stdout.isatty() + '\n  '.join([told, *lines]))


def check_sampled(
        finite: Tensor,
        model: nn.Module,
        env_ids: Sequence[int],
        row_keys: Dict[int, RowKey] = {},
        prompts: Optional[List[Tensor]] = None,
        obs: Any = None,
) -> None:
    """Raise a ``NumericError`` if an action was sampled from NaN or infinite logits. ``finite``: whether a row's logits
    were finite, (B, ), or (B, S) for each token, on the CPU. ``row_keys`` are absent or of another form in evaluation.
    A language model has ``prompts``, other models have ``obs``, a tensor (B, *) or a dict of them."""
    if finite.all():
        return
    row, *column = (~finite).nonzero()[0].tolist()
    key = row_keys.get(env_ids[row], ())
    where = 'evaluation'
    if len(key) in (3, 4):  # five numbers in evaluation
        where = f'row {key[2]} of group {key[1]}, sampled after update {key[0]}'
    elif len(key) == 2:  # without a collector
        where = f'episode {key[1]} after {key[0]} optimizer steps'
    where = f'in environment {env_ids[row]} ({where})' + ''.join(f', column {c}' for c in column)
    facts = ['the logits at sampling are NaN or infinite', where]
    if prompts is not None:
        facts.append(_start_of(prompts[row]))
    elif not _finite_rows(obs)[row]:
        facts.append('its observation is NaN or infinite')
    raise NumericError('\n'.join(facts + (_of_weights(model) or ['all parameters are finite'])))


def diagnose(batch: Batch, model: nn.Module, read: Callable[[], Tensor]) -> List[str]:
    """Find why a loss or a gradient is NaN or infinite, as facts of one line each. Reports the first NaN or infinite
    value of the batch and the first such parameter. If there is neither, it reports the first such gradient. ``read``
    computes the log-probabilities (B, S) of the batch under the model."""
    facts = _of_batch(batch, read) + _of_weights(model)
    if not facts:
        gradients = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        facts = _first_of(gradients, 'gradient of')
    return facts or ['the batch, the weights and the gradients are finite, but a sum of them is NaN or infinite']


def _of_batch(batch: Batch, read: Callable[[], Tensor]) -> List[str]:
    counted = batch.weight != 0  # (B, S)
    for name, what in _TENSORS.items():
        values = read() if name == 'logp_new' else getattr(batch, name)
        if values is None:
            continue
        if name == 'obs':
            finite = torch.ones_like(counted).masked_scatter(counted, _finite_rows(values))
        else:  # (B, S), or (B, ) for advantages; after a row's end log-probabilities have no meaning
            finite = values.isfinite() | (~counted if name.startswith('logp') else False)
        if not finite.all():
            place = tuple((~finite).nonzero()[0].tolist())
            value = '' if name == 'obs' else f' = {values[place].item()}'
            return [f'the first NaN or infinite value: {what}{value}', *_where(batch, *place)]
    return []


def _where(batch: Batch, row: int, column: Optional[int] = None) -> List[str]:
    where = f'in row {batch.row[row]}'
    if column is not None:
        action = batch.action[row, column].tolist()
        where += f", column {column}, {'action' if batch.prompts is None else 'token'} {action}"
    facts = [f'{where} of group {batch.group_id[row]}, sampled after update {batch.collect_iter[row]}']
    return facts if batch.prompts is None else facts + [_start_of(batch.prompts[row])]


def _start_of(prompt: Tensor) -> str:
    shown = ' '.join(map(str, prompt[:_SHOWN].tolist()))
    return f"its prompt begins with the tokens {shown}{' ...' if len(prompt) > _SHOWN else ''}"


def _of_weights(model: nn.Module) -> List[str]:
    return _first_of(model.named_parameters(), 'parameter')


def _first_of(tensors: Iterable[Tuple[str, Tensor]], what: str) -> List[str]:
    for name, x in tensors:
        x = whole(x)
        wrong = x.numel() - int(x.isfinite().sum())
        if wrong:
            return [f'{what} {name}: {wrong} of {x.numel()} numbers are NaN or infinite']
    return []


def _finite_rows(obs: Any) -> Tensor:
    """(M, ): whether all numbers of a row are neither NaN nor infinite."""
    if isinstance(obs, dict):
        return torch.stack([_finite_rows(x) for x in obs.values()]).all(0)
    return obs.isfinite().reshape(len(obs), -1).all(1).cpu()


def tokenizer_notice(pretrained: str, tokenizer: Any) -> Optional[str]:
    """A warning if tokens have other ids than in the folder ``pretrained``, with which a model was trained."""
    file = os.path.join(pretrained, 'tokenizer.json')
    if tokenizer.name_or_path == pretrained or not os.path.isfile(file):
        return None
    own, given = Tokenizer.from_file(file).get_vocab(), tokenizer.get_vocab()
    different = sum(own.get(token) != i for token, i in given.items())
    return None if different == 0 else (
        f'env.tokenizer: {different} of its {len(given)} tokens have other ids in the tokenizer of '
        f'policy.model.pretrained = {pretrained!r}, which the model was trained with. Set '
        f'env.tokenizer = dict(pretrained={pretrained!r}).'
    )
