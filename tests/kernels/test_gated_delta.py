"""gated_delta: matrices that answer queries. Positions fill more than one block."""

from __future__ import annotations

import os

import pytest
import torch

from recur_tune.recurrences.gated_delta import kernels as gated_delta_kernels
from tests.kernels import CLOSE, launches
from tests.kernels.window_passes import assert_as_operations

# A GPU rounds what single operations multiply to the ten bits of TF32.
_ON_A_GPU = 1e-2


# Triton's interpreter has the bits of a bfloat16 as an integer, so half precision is left to a GPU.
_KINDS = [torch.float32] if os.environ.get("TRITON_INTERPRET") == "1" else [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("kind", _KINDS, ids=str)
@pytest.mark.parametrize(("programs", "group"), [(1, 1), (512, 2)])
@launches("_answer", "_answer_backward")
def test_matrices_answer(kind, programs, group, device, monkeypatch):
    monkeypatch.setattr(gated_delta_kernels, "_ROWS", 16)  # so that a few positions are several blocks
    monkeypatch.setattr(gated_delta_kernels, "_PROGRAMS", programs)  # with one, it goes over all of them
    close = _ON_A_GPU if device.type == "cuda" and kind == torch.float32 else CLOSE[kind]
    assert_as_operations("gated_delta", {}, kind, device, close, positions=20, overlap=3, group=group, layers=2)
