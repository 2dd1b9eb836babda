"""``linear_log_prob`` with what a sampler does to logits, against the whole (B, S, V) tensor."""
import pytest
import torch
from textbook import OPTIONS, B, S, V, assert_same, inputs, plain

from ding_grpo.rl_utils import TokenRules, linear_log_prob, unpack_bits

PENALTY = 1.6
# The first position at whose prediction each row contains each token: 0 for the prompt, 9 for never.
FIRST = torch.tensor([[0, 9, 1, 2, 9, 0, 3], [9, 2, 9, 0, 1, 9, 9]], dtype=torch.int32)
BIAS = torch.tensor([0.3, -2., 0., 1.5, 0., 0., -0.4], dtype=torch.float64)
CASES = {
    'bias': dict(bias=True),
    'penalty': dict(penalty=True),
    'kept': dict(kept=True),
    'all': dict(bias=True, penalty=True, kept=True),
    'none': dict(),
}


def kept_of(index):
    kept = torch.rand(B, S, V, generator=torch.Generator().manual_seed(1)) < 0.4
    kept[1, 1] = True
    return kept.scatter(2, index.unsqueeze(-1), True)


def rules_of(index, bias=False, penalty=False, kept=False):
    bits = (kept_of(index) * (1 << torch.arange(V))).sum(-1, keepdim=True).to(torch.uint8) if kept else None
    return TokenRules(BIAS if bias else None, PENALTY if penalty else 1.0, FIRST if penalty else None, bits)


def changed_by(index, bias=False, penalty=False, kept=False):
    """What the rules of a case do to logits."""

    def change(logit):
        logit = logit + BIAS if bias else logit
        if penalty:
            seen = torch.stack([FIRST <= t for t in range(S)], 1)
            logit = torch.where(seen, torch.where(logit < 0, logit * PENALTY, logit / PENALTY), logit)
        return logit.masked_fill(~kept_of(index), float('-inf')) if kept else logit

    return change


@pytest.mark.unittest
@pytest.mark.usefixtures('tile')
class TestTokenRules:

    @pytest.mark.parametrize('options', OPTIONS, ids=str)
    @pytest.mark.parametrize('case', CASES)
    @pytest.mark.parametrize('chunk_size', [1, 4, None])
    def test_equals_the_textbook(self, options, case, chunk_size):
        hidden, weight, bias, index = inputs()
        found = linear_log_prob(
            hidden,
            weight,
            index,
            bias=bias,
            chunk_size=chunk_size,
            rules=rules_of(index, **CASES[case]),
            return_entropy=True,
            return_squares=True,
            **options
        )
        expected = plain(hidden, weight, bias, index, change=changed_by(index, **CASES[case]), **options)
        assert_same(found, expected, (hidden, weight, bias))

    @pytest.mark.parametrize('options', OPTIONS, ids=str)
    @pytest.mark.parametrize('case', [dict(bias=True), dict(penalty=True), dict(bias=True, penalty=True)], ids=str)
    @pytest.mark.parametrize('chunk_size', [2, None])
    def test_beside_kept_ids(self, options, case, chunk_size):
        hidden, weight, bias, index = inputs()
        ids = torch.stack([(index + 1 + torch.arange(S)) % V, index, torch.full_like(index, -1)], dim=-1)
        found = linear_log_prob(
            hidden,
            weight,
            index,
            bias=bias,
            chunk_size=chunk_size,
            kept=ids,
            rules=rules_of(index, **case),
            return_entropy=True,
            **options
        )
        expected = plain(hidden, weight, bias, index, kept=ids, change=changed_by(index, **case), **options)
        assert_same(found, expected, (hidden, weight, bias))

    def test_positions_without_a_weight_do_not_shift_the_rules_of_others(self):
        hidden, weight, bias, index = inputs()
        mask = torch.tensor([[1, 0, 1], [0, 1, 1]])
        found = linear_log_prob(hidden, weight, index, mask, bias, rules=rules_of(index, **CASES['all']))
        expected, *_ = plain(hidden, weight, bias, index, change=changed_by(index, **CASES['all']))
        assert torch.allclose(found, expected * mask, atol=1e-12)

    def test_no_rules_are_the_same_bits(self):
        hidden, weight, bias, index = inputs(torch.float32)
        plain_found = linear_log_prob(hidden, weight, index, bias=bias)
        assert torch.equal(linear_log_prob(hidden, weight, index, bias=bias, rules=TokenRules()), plain_found)


@pytest.mark.unittest
@pytest.mark.parametrize(
    'rules, message', [
        (dict(penalty=0.), 'rules.penalty = 0.0'),
        (dict(bias=torch.zeros(V + 1)), r'rules.bias \(8,\)'),
        (dict(first_seen=torch.zeros(B, V + 1).int()), 'rules.first_seen'),
        (dict(kept_bits=torch.zeros(B, S, 1).int()), 'rules.kept_bits .* of torch.int32'),
        (dict(kept_bits=torch.zeros(B, S, 0, dtype=torch.uint8)), 'at least V = 7'),
        (dict(kept_bits=torch.zeros(B, S, 1, dtype=torch.uint8)), 'must contain the sampled token'),
    ]
)
def test_wrong_rules(rules, message):
    hidden, weight, _, index = inputs()
    with pytest.raises(ValueError, match=message):
        linear_log_prob(hidden, weight, index, rules=TokenRules(**rules))


@pytest.mark.unittest
def test_unpack_bits_by_hand():
    bits = torch.tensor([[0b00000101, 0b10000000]], dtype=torch.uint8)
    assert unpack_bits(bits, slice(0, 16)).nonzero()[:, 1].tolist() == [0, 2, 15]
    assert unpack_bits(bits, slice(1, 9)).nonzero()[:, 1].tolist() == [1]
