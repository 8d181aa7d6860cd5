"""gated_delta: matrices that answer queries, and positions that are written into them, in more than one block."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

from recur_tune.recurrences.gated_delta import kernels as gated_delta_kernels
from recur_tune.recurrences.gated_delta import rule, write_kernels
from tests.kernels import CLOSE, assert_close, launches
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
    monkeypatch.setattr(write_kernels, "WIDEST", 0)  # these have tests of their own
    close = _ON_A_GPU if device.type == "cuda" and kind == torch.float32 else CLOSE[kind]
    assert_as_operations("gated_delta", {}, kind, device, close, positions=20, overlap=3, group=group, layers=2)


@launches("_write_chunks", "_write_chunks_backward")
def test_a_window_is_written(device):
    close = _ON_A_GPU if device.type == "cuda" else CLOSE[torch.float32]
    assert_as_operations("gated_delta", {}, torch.float32, device, close, positions=6, overlap=1)


@pytest.mark.parametrize(
    ("positions", "chunk", "size", "begins"), [(20, 11, 6, False), (33, 16, 24, False), (20, 11, 6, True)]
)
@launches("_write_chunks", "_write_chunks_backward")
def test_positions_are_written_by_the_rule(positions, chunk, size, begins, device):
    """Keys of a text are alike, which a chunk's triangular system has to bear."""
    random = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(device)

    keys = F.normalize(some(2, 1, size) + 0.3 * some(2, positions, size), dim=-1)
    begin, values, weights = some(2, size, size), some(2, positions, size), some(2, size, size)
    beta, log_alpha = some(2, positions).sigmoid(), -some(2, positions).abs()

    def made(write, kind: torch.dtype) -> dict[int, torch.Tensor]:
        learned = [one.to(kind).clone().requires_grad_() for one in (beta, log_alpha, begin)]
        given = None if begins else learned[2], keys.to(kind), values.to(kind), *learned[:2]
        left = write(*given, chunk=chunk)
        with torch.no_grad():  # where a chunk's beginnings are not stored
            torch.testing.assert_close(write(*given, chunk=chunk), left.detach(), rtol=0, atol=0)
        gradients = torch.autograd.grad((left * weights.to(kind)).sum(), learned[: 2 if begins else 3])
        return dict(enumerate([left, *gradients]))

    assert_close(made(write_kernels.written, torch.float32), made(rule.written, torch.float64), close=1e-5)
