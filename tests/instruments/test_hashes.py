"""Hashes of tensors find every single bit, and do not depend on what a run does not compute with."""
import zlib

import numpy as np
import pytest
import torch

from ding_grpo.instruments.hashes import COLUMNS, coded, decoded, digest_parts, digests, digests_of, of_rows, on_host


def tensor_hash(x):
    return digests([x])[0][0]


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize('size', [1, 7, 3 * COLUMNS * 8 + 5, 50_001])
def test_a_single_bit(size, dtype):
    """Also in the last elements, which make no whole row of columns."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = tensor_hash(x)
    assert tensor_hash(x.clone()) == before
    for at in {0, size // 2, size - 1}:
        y = x.clone()
        y.view(torch.uint8)[at * x.element_size()] ^= 1
        assert tensor_hash(y) != before


def test_two_changes_that_cancel_in_a_sum():
    """One number a bit higher and another one a bit lower: a sum of all bit patterns does not see them."""
    x = torch.ones(100_000)
    y = x.clone()
    y.view(torch.int32)[5] += 1
    y.view(torch.int32)[4321] -= 1
    assert tensor_hash(x) != tensor_hash(y) and tensor_hash(x) != tensor_hash(x.flip(0) * torch.linspace(1, 2, 100_000))


def test_neither_threads_nor_strides_nor_offsets():
    x = torch.randn(300, 401, generator=torch.Generator().manual_seed(1))
    threads = torch.get_num_threads()
    try:
        found = set()
        for number in (1, 2):
            torch.set_num_threads(number)
            found |= {
                tensor_hash(x),
                tensor_hash(x.t().contiguous().t()),
                tensor_hash(torch.cat([x[:1, :1].flatten(), x.flatten()])[1:])
            }
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


def test_a_small_one_is_a_crc_of_its_bytes_with_sums_in_float64():
    x = torch.tensor([1.5, -2.25, 2 ** -30])
    assert digests([x]) == [(f'{zlib.crc32(x.numpy().tobytes()):08x}', -0.749999999069, 3.75000000093)]
    first, = digests_of(on_host(digest_parts([x], 1)))
    assert first == (f'{zlib.crc32(x[:1].numpy().tobytes()):08x}', 1.5, 1.5)


def test_rows_end_where_they_end():
    x = torch.tensor([[1., 2., 4.], [8., 16., 32.]])
    found = of_rows(x.numpy(), [2, 3])
    assert decoded(found['sum']) == [3., 56.]
    assert decoded(found['hash']) == [zlib.crc32(row.numpy().tobytes()) for row in (x[0, :2], x[1])]
    assert decoded(of_rows(x[:, 0].numpy(), [2, 3])['sum']) == [1., 8.]


@pytest.mark.parametrize('numbers', [[], [0, 255], [-1, 300], [70_000], [[1, 2], [3, 4]]])
def test_arrays_as_text(numbers):
    assert decoded(coded(np.array(numbers, np.int64))) == numbers
    assert decoded(coded(np.array(numbers, np.float64))) == numbers
