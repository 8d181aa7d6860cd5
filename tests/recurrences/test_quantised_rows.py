"""Quantised rows: how near they are to the numbers, and how many bytes they take."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.recurrences.cache.quantised import dequantised, quantised
from recur_tune.recurrences.cache.row_size import group_size, row_columns

SIZES = {6: 6, 32: 32, 48: 48, 64: 32}  # of heads, and of their groups


def there_and_back(rows_C: torch.Tensor, size: int, bits: int) -> torch.Tensor:
    return dequantised(quantised(rows_C, size, bits), size, bits, rows_C.dtype)


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(SIZES)), st.sampled_from((8, 4)), st.floats(-20, 20))
def test_a_number_is_within_a_step_of_its_groups_range(seed, size, bits, mean):
    generator = torch.Generator().manual_seed(seed)
    scale_1C = 10 ** torch.empty(1, 4 * size).uniform_(-2, 2, generator=generator)
    rows_5C = torch.randn(5, 4 * size, generator=generator) * scale_1C + mean
    error_5NS = (there_and_back(rows_5C, size, bits) - rows_5C).unflatten(-1, (-1, SIZES[size]))
    low_5N, high_5N = rows_5C.unflatten(-1, (-1, SIZES[size])).aminmax(dim=-1)
    # Half a step, and what rounding the least number and the step to 8 significant bits moves.
    allowed_5N = (high_5N - low_5N) * (0.5 / (2**bits - 1) + 2**-8) + low_5N.abs() * 2**-8
    assert (error_5NS.abs().amax(-1) <= allowed_5N).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_that_are_evenly_spaced_are_exact(bits):
    # Half of a group are its least and its largest number, between which there are as many steps as codes.
    generator = torch.Generator().manual_seed(bits)
    codes_5C = torch.randint(2**bits, (5, 512), generator=generator)
    codes_5C[:, ::4], codes_5C[:, 2::4] = 0, 2**bits - 1
    rows_5C = codes_5C / 16 - 3
    torch.testing.assert_close(there_and_back(rows_5C, 64, bits), rows_5C, rtol=0, atol=0)


def test_equal_numbers_stay_what_they_are_and_nothing_is_nan():
    rows_3C = torch.tensor([0.0, 1.5, -2.0])[:, None].expand(3, 128)
    for bits in (8, 4):
        torch.testing.assert_close(there_and_back(rows_3C, 64, bits), rows_3C, rtol=0, atol=0)
    assert not dequantised(torch.zeros(3, 80, dtype=torch.uint8), 64, 4, torch.bfloat16).any()  # an empty state's rows


def test_a_row_has_as_many_bytes_as_is_told():
    for (size, group), bits in ((pair, bits) for pair in SIZES.items() for bits in (8, 4)):
        rows_BMC = torch.randn(2, 3, 2 * 5 * size)
        assert group_size(size) == group
        assert quantised(rows_BMC, size, bits).shape[-1] == row_columns(size, 5, bits)
    assert row_columns(64, 3, 4) == 2 * 3 * (32 + 2 * 4)  # 4 bits, and 32 numbers share four bytes: 5 a number
    assert row_columns(64, 3, 16) == 2 * 3 * 64
