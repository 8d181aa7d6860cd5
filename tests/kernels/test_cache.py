"""Cached rows: which are kept, and attention to them behind a gate. Queries and rows fill more than one block."""

from __future__ import annotations

import os

import pytest
import torch

from recur_tune.recurrences.cache import kernels as cache_kernels
from tests.kernels import CLOSE, launches
from tests.kernels.window_passes import assert_as_operations

# Triton's interpreter has the bits of a bfloat16 as an integer, and a product of matrices multiplies these integers. So
# half precision is left to a GPU, where what goes into a softmax's gradient is rounded, and then subtracted.
_RIGHT = [torch.float32] if os.environ.get("TRITON_INTERPRET") == "1" else [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few queries and rows are several of them."""
    for name, size in {"_ROWS": 16, "_KEYS": 16, "_WIDE": 16}.items():
        monkeypatch.setattr(cache_kernels, name, size)


@pytest.mark.filterwarnings("ignore:overflow")  # of a lane that sees nothing
@pytest.mark.parametrize("kind", _RIGHT, ids=str)
@pytest.mark.parametrize(("rows", "group"), [(19, 2), (6, 1)], ids=["some filled", "all filled"])
@launches("_attend", "_attend_backward", "_keep")
def test_rows_behind_a_gate(rows, group, kind, device):
    fields = {"cache_rows": rows, "cache_join": "gate"}
    close = CLOSE[kind] if kind == torch.float32 else 5e-2
    assert_as_operations("cache", fields, kind, device, close, positions=17, overlap=2, group=group)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (torch.float32, {}),
        (torch.bfloat16, {"placed": True}),
        (torch.float32, {"placed": True}),
        (torch.float32, {"placed": True, "begins": True}),
    ],
    ids=["rotary", "learned, half", "learned", "learned, first"],
)
@launches("_keep")
def test_rows_that_are_kept(kind, form, device):
    fields = {"cache_rows": 11, "cache_sinks": 2}
    assert_as_operations("cache", fields, kind, device, positions=8, overlap=2, layers=2, **form)
