"""The data of the PPO functions: their namedtuples, and the forms that DI-engine accepts."""
from collections import namedtuple
from typing import Any, Dict, Optional, Sequence, Tuple

from torch import Tensor

from ding_grpo.rl_utils.check import check_floats, check_tensor

_POLICY, _VALUE = ['action', 'adv', 'weight', 'logit_pretrained'], ['value_new', 'value_old']
ppo_data = namedtuple(
    'ppo_data', ['logit_new', 'logit_old', 'action', *_VALUE, 'adv', 'return_', 'weight', 'logit_pretrained'],
    defaults=[None]
)
ppo_data_continuous = namedtuple(
    'ppo_data_continuous',
    ['mu_sigma_new', 'mu_sigma_old', 'action', *_VALUE, 'adv', 'return_', 'weight', 'logit_pretrained'],
    defaults=[None]
)
ppo_policy_data = namedtuple('ppo_policy_data', ['logit_new', 'logit_old', *_POLICY], defaults=[None])
ppo_policy_data_continuous = namedtuple(
    'ppo_policy_data_continuous', ['mu_sigma_new', 'mu_sigma_old', *_POLICY], defaults=[None]
)
ppo_value_data = namedtuple('ppo_value_data', [*_VALUE, 'return_', 'weight'])
_ALL = {*ppo_data._fields, *ppo_data_continuous._fields}


def read(kind: Any, data: Sequence) -> namedtuple:
    """Convert the data of a call to ``kind``: a namedtuple by its field names, any other tuple by position. As in
    DI-engine, the discrete ``ppo_data`` may contain continuous actions."""
    if not hasattr(data, '_fields'):
        if not isinstance(data, (tuple, list)) or len(data) not in (len(kind._fields), len(_required(kind))):
            given = f'{len(data)} fields' if isinstance(data, (tuple, list)) else type(data).__name__
            raise ValueError(f'data of {given}: must be a tuple of {", ".join(kind._fields)}')
        return kind(*data)
    values = dict(zip(data._fields, data))
    for name in ('new', 'old'):
        if f'mu_sigma_{name}' in kind._fields and f'logit_{name}' in values:
            values[f'mu_sigma_{name}'] = values.pop(f'logit_{name}')
    wrong = [('no', f)
             for f in _required(kind) if f not in values] + [('the unknown', f) for f in values if f not in _ALL]
    if wrong:
        raise ValueError(
            f'{type(data).__name__} has {wrong[0][0]} field {wrong[0][1]}: must have {", ".join(kind._fields)}'
        )
    return kind(**{name: value for name, value in values.items() if name in kind._fields})


def _required(kind: Any) -> Sequence[str]:
    return [name for name in kind._fields if name not in kind._field_defaults]


def part(kind: Any, data: namedtuple) -> namedtuple:
    """Some of the fields of ``data``."""
    return kind(*(getattr(data, f) for f in kind._fields))


def select(data: namedtuple, rows: Tensor) -> namedtuple:
    """Every field at the positions ``rows``, a mask of the leading shape."""

    def at(x: Any) -> Any:
        return {k: v[rows] for k, v in x.items()} if isinstance(x, dict) else None if x is None else x[rows]

    return type(data)(*map(at, data))


def check_discrete(data: namedtuple) -> namedtuple:
    """Check all shapes and types; return the data with actions of type int64."""
    check_floats('logit_new', data.logit_new)
    shape, lead = tuple(data.logit_new.shape), tuple(data.logit_new.shape[:-1])
    if not shape:
        raise ValueError('logit_new (): must be of shape (..., N)')
    check_tensor('logit_old', data.logit_old, shape, 'that of logit_new')
    check_tensor('logit_pretrained', data.logit_pretrained, shape, 'that of logit_new', optional=True)
    check_tensor('action', data.action, lead, 'that of logit_new without the last', 'numbers')
    action = data.action.long()
    if (action != data.action).any():
        raise ValueError(f'action of {data.action.dtype}: must contain integers')
    agents = isinstance(data.adv, Tensor) and len(lead) > 1 and data.adv.dim() < len(lead)
    expected = lead[:1] + lead[2:] if agents else lead
    check_tensor(
        'adv', data.adv, expected, 'that of action without dimension 1' if agents else 'that of action', 'numbers'
    )
    check_tensor('weight', data.weight, expected, 'that of adv', 'numbers', optional=True)
    return data._replace(action=action)


def in_rows(data: namedtuple) -> namedtuple:
    """Merge leading dimensions until (B, N), (B, S, V) or, for agents, (B, A, N) is left. No mean depends on them."""
    dims = data.action.dim()
    if dims == 1:
        return data
    agents = data.adv.dim() < dims

    def merged(name: str, x: Optional[Tensor]) -> Optional[Tensor]:
        if x is None or dims == 0:
            return x if x is None else x.unsqueeze(0)
        if agents and name not in ('adv', 'weight'):
            x = x.movedim(1, dims - 1)
        return x.flatten(0, dims - 2)

    return data._replace(**{name: merged(name, x) for name, x in data._asdict().items()})


def check_continuous(data: namedtuple) -> namedtuple:
    """Check all shapes and types; return the data with every mu and sigma of the shape of the actions."""
    if not isinstance(data.action, Tensor) or data.action.dim() < 2 or data.action.is_complex():
        given = tuple(data.action.shape) if isinstance(data.action, Tensor) else f'of {type(data.action).__name__}'
        raise ValueError(f'action {given}: must be numbers of shape (..., N) with at least one leading dimension')
    shape = tuple(data.action.shape)
    check_tensor('adv', data.adv, shape[:-1], 'that of action without the last', 'numbers')
    check_tensor('weight', data.weight, shape[:-1], 'that of adv', 'numbers', optional=True)
    pretrained = data.logit_pretrained
    return data._replace(
        mu_sigma_new=_mu_sigma('mu_sigma_new', data.mu_sigma_new, shape),
        mu_sigma_old=_mu_sigma('mu_sigma_old', data.mu_sigma_old, shape),
        logit_pretrained=None if pretrained is None else _mu_sigma('logit_pretrained', pretrained, shape),
    )


def _mu_sigma(name: str, mu_sigma: Dict[str, Tensor], shape: Tuple[int, ...]) -> Dict[str, Tensor]:
    try:
        if isinstance(mu_sigma, Tensor):
            raise TypeError
        parts = dict(mu=mu_sigma['mu'], sigma=mu_sigma['sigma'])  # of a dict, or of a tree of tensors
    except (KeyError, TypeError):
        raise ValueError(f'{name} of {type(mu_sigma).__name__}: must be a dict of mu and sigma') from None
    for part, x in parts.items():
        check_floats(f'{name}[{part!r}]', x)
    if name == 'mu_sigma_old' and parts['mu'].dim() == 1:  # (B, ), as in DI-engine
        parts = {part: x.unsqueeze(-1) for part, x in parts.items()}
    for part, x in parts.items():
        try:
            parts[part] = x.expand(shape)
        except RuntimeError:
            raise ValueError(
                f'{name}[{part!r}] {tuple(x.shape)}: must broadcast to the shape of action, {shape}'
            ) from None
    return parts
