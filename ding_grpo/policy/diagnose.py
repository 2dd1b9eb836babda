"""Numbers that are not finite: where the first of them stands, as facts of a line each."""
import sys
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import click
import torch
from torch import Tensor, nn

from ding_common import NumericError, parallel

from .batch import Batch
from .row_generators import RowKey

# What a group holds, in the order in which learning comes upon it.
_TENSORS = dict(
    obs='an observation',
    reward='a reward',
    adv='an advantage (adv)',
    logp_old='a log-probability of the sampler (logp_old)',
    logp_ref='a log-probability of the reference (logp_ref)',
    logp_new='a log-probability of the policy (logp_new)',
)
_SHOWN = 8  # of a prompt's tokens


def check_weights(model: nn.Module, what: str) -> None:
    """
    Overview:
        Refuse weights that are not finite before anything is sampled by them.
    Arguments:
        - model (:obj:`nn.Module`): Has the weights.
        - what (:obj:`str`): Where they are from.
    Raises:
        - NumericError: If some are not; the message names the parameter.
    """
    facts = _of_weights(model)
    if facts:
        raise NumericError('\n'.join([f'{what}: weights are not finite', *facts]))


class BadUpdates:
    """
    Overview:
        The updates in a row in which a step was skipped, since its loss or gradient was not finite.
    Interfaces:
        ``add``
    """

    def __init__(self, most: int) -> None:
        """
        Overview:
            Begin at none.
        Arguments:
            - most (:obj:`int`): How many in a row end the run, ``policy.learn.max_bad_updates``.
        """
        self._most = most
        self.in_a_row = 0

    def add(self, update: int, step: Dict[str, float], facts: Callable[[], List[str]]) -> None:
        """
        Overview:
            Count an update; tell of the first in a row, end the run at the last that is allowed. To be called before \
            another step moves the weights, or their gradient is gone.
        Arguments:
            - update (:obj:`int`): Its number.
            - step (:obj:`Dict`): Its ``total_loss`` and ``grad_norm``.
            - facts (:obj:`Callable`): Finds the first number that is not finite, see ``diagnose``; asked if needed.
        Raises:
            - NumericError: If there were as many in a row as end the run.
        """
        self.in_a_row += 1
        if self.in_a_row not in (1, self._most):
            return
        lines = [f"loss {step['total_loss']}, norm of the gradient {step['grad_norm']}", *facts()]
        skipped = 'had a step that was skipped, for its loss or gradient is not finite'
        if self.in_a_row == self._most:
            raise NumericError(
                '\n'.join([f'policy.learn.max_bad_updates = {self._most}: so many updates in a row {skipped}', *lines])
            )
        if parallel.rank() == 0:
            # on a terminal behind the progress line, which has no end
            click.echo('\n' * sys.stdout.isatty() + '\n  '.join([f'update {update} {skipped}', *lines]))


def check_sampled(
        finite: Tensor,
        model: nn.Module,
        env_ids: Sequence[int],
        row_keys: Dict[int, RowKey] = {},
        prompts: Optional[List[Tensor]] = None,
        obs: Any = None,
) -> None:
    """
    Overview:
        Refuse actions that were drawn from no distribution.
    Arguments:
        - finite (:obj:`torch.BoolTensor`): Whether a row's logits were finite, on the processor.
        - model (:obj:`nn.Module`): What gave them.
        - env_ids (:obj:`Sequence[int]`): The rows' environments.
        - row_keys (:obj:`Dict[int, RowKey]`): (collect, group, row) by environment; none or another in evaluation.
        - prompts (:obj:`Optional[List[torch.LongTensor]]`): The rows' prompts, of a language model.
        - obs (:obj:`Any`): Else their observations, a tensor or a dict of such.
    Shapes:
        - finite (:obj:`torch.BoolTensor`): :math:`(B, )`, or :math:`(B, S)` for each token
        - obs (:obj:`torch.FloatTensor`): :math:`(B, *)`
    Raises:
        - NumericError: If one is not; the message names the row and what else is not finite.
    """
    if finite.all():
        return
    row, *column = (~finite).nonzero()[0].tolist()
    key = row_keys.get(env_ids[row], ())
    where = 'evaluation'
    if len(key) == 3:
        where = f'row {key[2]} of group {key[1]}, sampled after update {key[0]}'
    where = f'in environment {env_ids[row]} ({where})' + ''.join(f', column {c}' for c in column)
    facts = ['the logits at sampling are not finite', where]
    if prompts is not None:
        facts.append(_start_of(prompts[row]))
    elif not _finite_rows(obs)[row]:
        facts.append('its observation is not finite')
    raise NumericError('\n'.join(facts + (_of_weights(model) or ['all parameters are finite'])))


def diagnose(batch: Batch, model: nn.Module, read: Callable[[], Tensor]) -> List[str]:
    """
    Overview:
        Find why a loss or a gradient is not finite: the first such value of the batch, and the first such parameter or
        else the first such gradient.
    Arguments:
        - batch (:obj:`Batch`): What was learned from.
        - model (:obj:`nn.Module`): Has the gradients.
        - read (:obj:`Callable`): Computes the log-probabilities :math:`(B, S)` of the batch under the model.
    Returns:
        - facts (:obj:`List[str]`): One line each.
    """
    facts = _of_batch(batch, read) + _of_weights(model)
    if not facts:
        gradients = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        facts = _first_of(gradients, 'gradient of')
    return facts or ['what was learned from, weights and gradients are finite; their sums are not']


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
            return [f'the first that is not finite: {what}{value}', *_where(batch, *place)]
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
        wrong = x.numel() - int(x.isfinite().sum())
        if wrong:
            return [f'{what} {name}: {wrong} of {x.numel()} numbers are not finite']
    return []


def _finite_rows(obs: Any) -> Tensor:
    """(M, ): whether all numbers of a row are finite."""
    parts = [_finite_rows(x)
             for x in obs.values()] if isinstance(obs, dict) else [obs.isfinite().reshape(len(obs), -1).all(1)]
    return torch.stack(parts).all(0).cpu()
