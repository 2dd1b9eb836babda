"""``linear_log_prob``, alone and with what a sampler does to logits, against the whole (B, S, V) tensor."""
import pytest
import torch

from ding_grpo.rl_utils import TokenRules, linear_log_prob, unpack_bits
from tests.rl_utils.textbook import OPTIONS, B, S, V, assert_same, inputs, plain

PENALTY = 1.6
CASES = {
    'no rules': None,
    'empty rules': dict(),
    'bias': dict(bias=True),
    'penalty': dict(penalty=True),
    'bias and penalty': dict(bias=True, penalty=True),
    'kept bits': dict(kept=True),
    'all': dict(bias=True, penalty=True, kept=True),
}


def bias_and_first():
    """The bias, and the first position at whose prediction each row contains each token: 0 for the prompt."""
    never = 9
    first = [[0, never, 1, 2, never, 0, 3], [never, 2, never, 0, 1, never, never]]
    return torch.tensor([0.3, -2., 0., 1.5, 0., 0., -0.4]).double(), torch.tensor(first, dtype=torch.int32)


def kept_of(index):
    kept = torch.rand(B, S, V, generator=torch.Generator(index.device).manual_seed(1)) < 0.4
    kept[1, 1] = True
    return kept.scatter(2, index.unsqueeze(-1), True)


def rules_of(index, bias=False, penalty=False, kept=False):
    bits = (kept_of(index) * (1 << torch.arange(V))).sum(-1, keepdim=True).to(torch.uint8) if kept else None
    of_bias, first = bias_and_first()
    return TokenRules(of_bias if bias else None, PENALTY if penalty else 1.0, first if penalty else None, bits)


def changed_by(index, bias=False, penalty=False, kept=False):
    """What the rules of a case do to logits."""
    of_bias, first = bias_and_first()

    def change(logit):
        logit = logit + of_bias if bias else logit
        if penalty:
            seen = torch.stack([first <= t for t in range(S)], 1)
            logit = torch.where(seen, torch.where(logit < 0, logit * PENALTY, logit / PENALTY), logit)
        return logit.masked_fill(~kept_of(index), float('-inf')) if kept else logit

    return change


@pytest.mark.usefixtures('tile', 'on_device')
@pytest.mark.parametrize('options, chunk_size', [*zip(OPTIONS, (1, 4, None, 4, None))], ids=str)
@pytest.mark.parametrize(
    'case, with_ids',
    [(case, ids) for case in CASES for ids in (False, True) if not (ids and (CASES[case] or {}).get('kept'))]
)
def test_equals_the_textbook(options, case, with_ids, chunk_size):
    hidden, weight, bias, index = inputs()
    ids = torch.stack([(index + 1 + torch.arange(S)) % V, index, torch.full_like(index, -1)], dim=-1)
    given = CASES[case]
    found = linear_log_prob(
        hidden,
        weight,
        index,
        bias=bias,
        chunk_size=chunk_size,
        kept=ids if with_ids else None,
        rules=None if given is None else rules_of(index, **given),
        return_entropy=True,
        return_squares=True,
        **options
    )
    change = changed_by(index, **(given or {}))
    expected = plain(hidden, weight, bias, index, kept=ids if with_ids else None, change=change, **options)
    assert_same(found, expected, (hidden, weight, bias))
    assert not found[2].requires_grad


@pytest.mark.usefixtures('tile')
def test_positions_without_a_weight_do_not_shift_the_rules_of_others():
    hidden, weight, bias, index = inputs()
    mask = torch.tensor([[1, 0, 1], [0, 1, 1]])
    found = linear_log_prob(hidden, weight, index, mask, bias, rules=rules_of(index, **CASES['all']))
    expected, *_ = plain(hidden, weight, bias, index, change=changed_by(index, **CASES['all']))
    assert torch.allclose(found, expected * mask, atol=1e-12)


def test_no_rules_are_the_same_bits():
    hidden, weight, bias, index = inputs(torch.float32)
    plain_found = linear_log_prob(hidden, weight, index, bias=bias)
    assert torch.equal(linear_log_prob(hidden, weight, index, bias=bias, rules=TokenRules()), plain_found)


def test_unpack_bits_by_hand():
    bits = torch.tensor([[0b00000101, 0b10000000]], dtype=torch.uint8)
    assert unpack_bits(bits, slice(0, 16)).nonzero()[:, 1].tolist() == [0, 2, 15]
    assert unpack_bits(bits, slice(1, 9)).nonzero()[:, 1].tolist() == [1]
