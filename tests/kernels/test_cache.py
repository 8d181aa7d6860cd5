"""Cached rows: which are kept, and attention to them behind a gate. Queries and rows fill more than one block."""

from __future__ import annotations

import os

import pytest
import torch

from recur_tune.recurrences.cache import kernels as attention_kernels
from recur_tune.recurrences.cache import row_kernels
from recur_tune.recurrences.cache.quantised import dequantised, quantised
from tests.kernels import CLOSE, KINDS, Numbers, assert_close, launches
from tests.kernels.window_passes import assert_as_operations

# Triton's interpreter has the bits of a bfloat16 as an integer, and a product of matrices multiplies these integers. So
# half precision is left to a GPU, where what goes into a softmax's gradient is rounded, and then subtracted.
_RIGHT = [torch.float32] if os.environ.get("TRITON_INTERPRET") == "1" else [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few queries and rows are several of them."""
    for kernels, name, size in (
        (attention_kernels, "_ROWS", 16),
        (attention_kernels, "_KEYS", 16),
        (row_kernels, "_COPIED", 64),
        (row_kernels, "_COMPARED", 128),
    ):
        monkeypatch.setattr(kernels, name, size)


@pytest.mark.filterwarnings("ignore:overflow")  # of a lane that sees nothing
@pytest.mark.parametrize("kind", _RIGHT, ids=str)
@pytest.mark.parametrize(("rows", "group"), [(19, 2), (6, 1)], ids=["some filled", "all filled"])
@launches("_attend", "_attend_backward", "_keep")
def test_rows_behind_a_gate(rows, group, kind, device):
    fields = {"cache_rows": rows, "cache_join": "gate"}
    close = CLOSE[kind] if kind == torch.float32 else 5e-2
    assert_as_operations("cache", fields, kind, device, close, positions=17, overlap=2, group=group)


@pytest.mark.filterwarnings("ignore:overflow")
@launches("_attend", "_attend_backward", "_dequantise", "_keep")
def test_quantised_rows_behind_a_gate(device):
    fields = {"cache_rows": 6, "cache_join": "gate", "cache_bits": 4}
    assert_as_operations("cache", fields, torch.float32, device, positions=17, overlap=2)


_KEPT = pytest.mark.parametrize(
    ("kind", "bits", "form"),
    [
        (torch.float32, 16, {}),
        (torch.bfloat16, 16, {"placed": True}),
        (torch.float32, 16, {"placed": True}),
        (torch.float32, 16, {"placed": True, "begins": True}),
        (torch.float32, 4, {}),
        (torch.bfloat16, 8, {"placed": True}),
        (torch.float32, 4, {"placed": True, "begins": True}),
    ],
    ids=[
        "rotary", "learned, half", "learned", "learned, first", "rotary, 4 bits", "learned, half, 8 bits",
        "learned, first, 4 bits",
    ],
)  # fmt: skip


@_KEPT
@launches("_keep")
def test_rows_that_are_kept(kind, bits, form, device):
    fields = {"cache_rows": 11, "cache_sinks": 2, "cache_bits": bits}
    assert_as_operations("cache", fields, kind, device, positions=8, overlap=2, layers=2, **form)


@_KEPT
@launches("_differ", "_keep")
def test_rows_with_keys_that_differ_most(kind, bits, form, device):
    fields = {"cache_rows": 11, "cache_sinks": 2, "cache_keep": "keydiff", "cache_bits": bits}
    assert_as_operations("cache", fields, kind, device, positions=17, overlap=2, layers=2, **form)


@pytest.mark.parametrize(("keep", "bits", "form"), [("tova", 4, {"group": 2}), ("h2o", 16, {"placed": True})])
@launches("_keep")
def test_rows_that_get_most_attention(keep, bits, form, device):
    fields = {"cache_rows": 11, "cache_sinks": 2, "cache_keep": keep, "cache_bits": bits}
    assert_as_operations("cache", fields, torch.float32, device, positions=17, overlap=2, layers=2, **form)


@pytest.mark.parametrize(("size", "bits"), [(64, 4), (96, 8), (48, 4)], ids=["two groups", "three", "no whole groups"])
@launches("_differ", "_keep")
def test_heads_of_several_groups(size, bits, device, monkeypatch):
    for name in ("_COPIED", "_COMPARED"):
        monkeypatch.setattr(row_kernels, name, 512)
    fields = {"cache_rows": 7, "cache_sinks": 1, "cache_keep": "keydiff", "cache_bits": bits}
    assert_as_operations("cache", fields, torch.float32, device, positions=9, overlap=2, size=size)


@KINDS
@pytest.mark.parametrize(("size", "bits"), [(6, 4), (48, 8), (64, 4), (96, 8)])
@launches("_dequantise")
def test_numbers_of_quantised_rows(size, bits, kind, device, monkeypatch):
    monkeypatch.setattr(row_kernels, "_COPIED", 256)
    numbers = Numbers(torch.float32, device, exactly=False)
    # Of two layers, as a state has them. The kernel copies neither the rows nor the other layer.
    rows_B2MP = quantised(numbers.summed(3, 2, 5, 4 * size), size, bits)
    found_BMC = row_kernels.dequantised(rows_B2MP[:, 1], size, bits, kind)
    assert found_BMC.dtype == kind
    expected_BMC = dequantised(rows_B2MP[:, 1], size, bits, torch.float64)
    assert_close({"rows": found_BMC}, {"rows": expected_BMC}, CLOSE[kind])
