import pytest
import torch

from ding_grpo.rollout import KeptSets


def masks(number, size, seed=0):
    """Sets of all sizes from 1 to V, the sampled token among them."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(number, 1, generator=generator) ** 3
    kept = torch.rand(number, size, generator=generator) < share
    kept[torch.arange(number), torch.randint(0, size, (number, ), generator=generator)] = True
    kept[0] = True
    return kept


def unpacked(bits, size):
    return torch.stack([bits[..., i // 8] >> (i % 8) & 1 for i in range(size)], -1).bool()


@pytest.mark.parametrize('size', [1, 32, 33, 257])
def test_bits_are_the_sets(size):
    kept = masks(50, size)
    sets = KeptSets.of(kept)
    assert torch.equal(unpacked(sets.bits(size), size), kept)
    words = -(-size // 32)
    assert torch.equal(sets.width, kept.sum(1).clamp(max=words)) and sets.words.dtype == torch.int32
    assert len(sets.words) == sets.width.sum() <= 50 * words  # never more than V / 8 bytes


def test_by_hand():
    kept = torch.zeros(3, 70, dtype=torch.bool)  # 70 entries have 3 words of bits
    kept[0, [4, 69]] = True
    kept[1, [0, 31, 32, 69]] = True
    kept[2, [7, 8]] = True
    sets = KeptSets.of(kept)
    assert sets.width.tolist() == [2, 3, 2]
    assert sets.words.tolist() == [4, 69, 1 - 2 ** 31, 1, 32, 7, 8]
    assert sets.first(2).words.tolist() == [4, 69, 1 - 2 ** 31, 1, 32] and sets.first(0).words.tolist() == []


def test_a_position_without_a_set_keeps_everything():
    # otherwise its distribution would be empty, and its NaN would reach the gradient
    bits = KeptSets(torch.tensor([3], dtype=torch.int32), torch.tensor([[0, 1]])).bits(40)
    assert unpacked(bits, 40)[0, 0].all() and unpacked(bits, 40)[0, 1].nonzero().tolist() == [[3]]


def test_steps_are_joined_by_row():
    kept = masks(10, 70)
    rows = [torch.tensor([0, 1, 2, 3]), torch.tensor([0, 2, 3]), torch.tensor([3, 2]), torch.tensor([2])]
    steps, start, expected = [], 0, {row: [] for row in range(5)}
    for of_step in rows:
        steps.append(KeptSets.of(kept[start:start + len(of_step)]))
        for i, row in enumerate(of_step.tolist()):
            expected[row].append(kept[start + i])
        start += len(of_step)
    found = KeptSets.join(steps, rows, 5)
    assert len(found) == 5
    for row, sets in enumerate(found):
        assert len(sets.width) == len(expected[row])
        assert not expected[row] or torch.equal(unpacked(sets.bits(70), 70), torch.stack(expected[row]))
