"""Triton kernels for means over stretches of a window: 1, 2, 4, ... positions from its end, and all that are left.

Shape suffixes: B batch rows, T positions, M stretches, K hidden size.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

import torch

from recur_tune.ops.triton.jit import kernel, tl, triton

_PARTS, _COLUMNS = 32, 64  # block of sums over positions


@triton.jit
def stretch_of(position, positions, stretches):
    """The stretch that a position is in, and how many positions that has."""
    back = positions - position  # of the last one, 1
    stretch = tl.zeros_like(position)
    for number in range(1, stretches):
        stretch += (back >= (1 << number)).to(tl.int32)
    return stretch, _width(stretch, positions, stretches)


@triton.jit
def _width(stretch, positions, stretches):
    """Positions of a stretch; fewer than 1, 2, 4, ... in a short window."""
    nearest = 1 << stretch  # to the end, counted as above
    left = tl.maximum(positions - nearest + 1, 0)
    return tl.where(stretch < stretches - 1, tl.minimum(left, nearest), left)


def stretch_means(x_BTK: torch.Tensor, count: int) -> torch.Tensor:
    """Means over so many stretches of positions, [B, M, K]; of an empty one, zeros."""
    batch_size, positions, size = x_BTK.shape
    means_BMK = x_BTK.new_empty(batch_size, count, size)
    _stretch_means[(batch_size, count, triton.cdiv(size, _COLUMNS))](
        x_BTK.contiguous(), means_BMK, positions, size, PARTS=_PARTS, BLOCK=_COLUMNS
    )
    return means_BMK


@kernel
def _stretch_means(x_at, means_at, positions, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    batch, stretch, stretches = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    width, total = _width(stretch, positions, stretches), tl.zeros([PARTS, BLOCK], tl.float32)
    end = positions - (1 << stretch) + 1
    for first in range(end - width, end, PARTS):
        position = first + tl.arange(0, PARTS)
        inside = (position < end)[:, None] & (column < size)[None, :]
        at = (batch * positions + position[:, None]) * size + column[None, :]
        total += tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / tl.maximum(width, 1)
    tl.store(means_at + (batch * stretches + stretch) * size + column, mean, mask=column < size)


def stretch_means_backward(grad_means_BMK: torch.Tensor, positions: int) -> torch.Tensor:
    """The gradient with respect to so many positions."""
    batch_size, count, size = grad_means_BMK.shape
    gradient = grad_means_BMK.new_empty(batch_size, positions, size)
    _spread[(batch_size, triton.cdiv(positions, _PARTS), triton.cdiv(size, _COLUMNS))](
        grad_means_BMK.contiguous(), gradient, positions, size, count, PARTS=_PARTS, BLOCK=_COLUMNS
    )
    return gradient


@kernel
def _spread(grad_means_at, gradient_at, positions, size, stretches, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    batch, position = tl.program_id(0).to(tl.int64), tl.program_id(1) * PARTS + tl.arange(0, PARTS)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = (position < positions)[:, None] & (column < size)[None, :]
    stretch, width = stretch_of(position, positions, stretches)
    at = (batch * stretches + stretch[:, None]) * size + column[None, :]
    grad_mean = tl.load(grad_means_at + at, mask=inside, other=0.0).to(tl.float32) / width[:, None]
    tl.store(gradient_at + (batch * positions + position[:, None]) * size + column[None, :], grad_mean, mask=inside)
