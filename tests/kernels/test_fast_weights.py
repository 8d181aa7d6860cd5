"""Fast weights: memories that are read and written. Positions fill more than one block."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recur_tune.recurrences.fast_weights import kernels as fast_weight_kernels
from tests.kernels import CLOSE, launches
from tests.kernels.window_passes import assert_as_operations

# A GPU rounds what it multiplies to the ten bits of TF32, where results end in half precision anyway.
_ON_A_GPU = 1e-2


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few positions are several of them."""
    monkeypatch.setattr(fast_weight_kernels, "_ROWS", 16)


@pytest.mark.parametrize(
    ("rule", "kind", "form"),
    [
        ("linear", torch.float32, {"layers": 2}),
        ("gated", torch.float32, {}),
        ("gated", torch.bfloat16, {"group": 2}),
    ],
    ids=["linear", "gated", "gated, half"],
)
@launches("_read", "_read_backward", "_write", "_write_backward")
def test_memories_are_read_and_written(rule, kind, form, device):
    _assert_as_operations(rule, kind, device, **form)


@launches("_read_backward", "_write", "_write_backward")
def test_a_program_goes_over_all_positions(device, monkeypatch):
    monkeypatch.setattr(fast_weight_kernels, "_PROGRAMS", 1)  # where there are more memories, of each one
    _assert_as_operations("delta", torch.float32, device)


def _assert_as_operations(rule: str, kind: torch.dtype, device: torch.device, **form: Any) -> None:
    close = _ON_A_GPU if device.type == "cuda" and kind == torch.float32 else CLOSE[kind]
    assert_as_operations("fast_weights", {"write_rule": rule}, kind, device, close, positions=20, overlap=3, **form)
