"""The operations of `reference.py` as fused Triton kernels, each of which reads and writes memory once.

Without them a training step on a GPU spends as long between its matrix products as in them. A kernel is compiled for a
hidden size and dtypes, in about half a second; it serves any number of layers and every recurrence, and Triton caches
it on disk. Kernels compute in single precision. The forward pass is deterministic to the bit. Gradients of biases and
norms are sums over rows by atomic additions, whose order varies.

Shape suffixes: B batch rows, T positions, K hidden size, N rows, V vocabulary, padded.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

import torch

from recur_tune.common.windowing import NOT_SCORED
from recur_tune.ops.body import Module
from recur_tune.ops.reference import Total, is_rms
from recur_tune.ops.triton.attention import apply_rotary, grad_extra, grad_places, join, move, pack
from recur_tune.ops.triton.jit import kernel, tl, triton
from recur_tune.ops.triton.means import stretch_means, stretch_means_backward, stretch_of

__all__ = [
    "add_columns",
    "add_norm",
    "add_norm_backward",
    "apply_rotary",
    "cross_entropy",
    "gelu",
    "gelu_backward",
    "grad_extra",
    "grad_places",
    "join",
    "move",
    "pack",
    "stretch_means",
    "stretch_means_backward",
    "swiglu",
    "swiglu_backward",
]  # fmt: skip

# Block shapes: the fastest on an H200 for LayerNorm and GELU at a hidden size of 768.
_ROWS = 4  # of norms
_PARTS, _COLUMNS = 32, 64  # of sums over parts
_PROGRAMS = 528  # that share a norm's rows: four for each multiprocessor
# Columns that a warp loads at once, 16 bytes of half precision a thread. With more warps than that a row's columns
# would not fill them: they would share out rows, and sums over rows would go through shared memory.
_OF_A_WARP = 256
_TALL, _WIDE = 32, 64  # of sums over rows
_LOGITS = 2048


def add_norm(
    x_BTK: torch.Tensor, added_BTK: torch.Tensor | None, norm: Module, dtype: torch.dtype, means: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Residual addition and norm, with the results of `reference.add_norm`."""
    batch_size, positions, size = x_BTK.shape
    x_BTK = x_BTK.contiguous()
    total_BTK = x_BTK if added_BTK is None else torch.empty_like(x_BTK)
    added, stride = (x_BTK, size) if added_BTK is None else _rows_apart(added_BTK)
    normed_BTK = torch.empty_like(x_BTK, dtype=dtype)
    moments = x_BTK.new_empty(1 if is_rms(norm) else 2, batch_size, positions, dtype=torch.float32)
    blocks = triton.cdiv(positions, _ROWS)
    means_BPK = x_BTK.new_empty(batch_size, blocks if means == 1 else 0, size)  # each block's part
    _add_norm[(batch_size, blocks)](
        x_BTK, added, *_vectors(norm), total_BTK, normed_BTK, means_BPK, moments, positions, size, stride,
        norm.variance_epsilon if is_rms(norm) else norm.eps,
        IS_RMS=is_rms(norm), HAS_ADDED=added_BTK is not None, HAS_MEAN=means == 1,
        ROWS=_ROWS, BLOCK=triton.next_power_of_2(size),
    )  # fmt: skip
    means_BMK = None
    if means:
        means_BMK = _sum_of_parts(means_BPK) if means == 1 else stretch_means(total_BTK, means)
    return total_BTK, normed_BTK, means_BMK, moments


def _rows_apart(x_BTK: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The same with rows that are each in one piece, equally far apart, and how far: what a product leaves that has
    more columns may be read as it is."""
    stride = x_BTK.stride(1)
    is_rows = x_BTK.stride(2) == 1 and x_BTK.stride(0) == x_BTK.shape[1] * stride
    return (x_BTK, stride) if is_rows else (x_BTK.contiguous(), x_BTK.shape[2])


def _vectors(norm: Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias; RMSNorm has no bias, so its weight stands there and is not read."""
    return norm.weight, norm.weight if is_rms(norm) else norm.bias


@kernel
def _add_norm(
    x_at, added_at, weight_at, bias_at, total_at, normed_at, means_at, moments_at, positions, size, added_stride, eps,
    IS_RMS: tl.constexpr, HAS_ADDED: tl.constexpr, HAS_MEAN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, position = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (position < positions)[:, None] & (column < size)[None, :]
    row = batch * positions + position
    at = row[:, None] * size + column[None, :]
    x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADDED:
        added = row[:, None] * added_stride + column[None, :]
        x += tl.load(added_at + added, mask=inside, other=0.0).to(tl.float32)
        tl.store(total_at + at, x, mask=inside)
    if HAS_MEAN:
        block = batch * tl.num_programs(1) + tl.program_id(1)
        tl.store(means_at + block * size + column, tl.sum(x, 0) / positions, mask=column < size)
    if not IS_RMS:
        mean = tl.sum(x, 1) / size
        tl.store(moments_at + row, mean, mask=position < positions)
        moments_at += tl.num_programs(0).to(tl.int64) * positions
        x = tl.where(inside, x - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(x * x, 1) / size + eps)
    tl.store(moments_at + row, scale, mask=position < positions)
    weight = tl.load(weight_at + column, mask=column < size, other=0.0).to(tl.float32)[None, :]
    normed = x * scale[:, None] * weight
    if not IS_RMS:
        normed += tl.load(bias_at + column, mask=column < size, other=0.0).to(tl.float32)[None, :]
    tl.store(normed_at + at, normed, mask=inside)


def _sum_of_parts(x_BPK: torch.Tensor) -> torch.Tensor:
    """The sum over the second dimension, in a third of the time that torch takes."""
    batch_size, parts, size = x_BPK.shape
    sum_B1K = x_BPK.new_empty(batch_size, 1, size)
    _sum_parts[(batch_size, triton.cdiv(size, _COLUMNS))](x_BPK, sum_B1K, parts, size, PARTS=_PARTS, BLOCK=_COLUMNS)
    return sum_B1K


@kernel
def _sum_parts(x_at, sum_at, parts, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    batch, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([PARTS, BLOCK], tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & (column < size)[None, :]
        total += tl.load(x_at + (batch * parts + part[:, None]) * size + column[None, :], mask=inside, other=0.0)
    tl.store(sum_at + batch * size + column, tl.sum(total, 0), mask=column < size)


def add_norm_backward(
    grad_normed_BTK: torch.Tensor,
    grad_x_BTK: torch.Tensor | None,
    grad_means_BMK: torch.Tensor | None,
    x_BTK: torch.Tensor,
    moments: torch.Tensor,
    norm: Module,
    dtype: torch.dtype,
    norm_dtype: torch.dtype | None,
    totals: tuple[Total, Total, Total],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The gradient with respect to the sum, the same in `dtype`, and the recomputed norm."""
    rows, size = _shape(x_BTK)
    gradient = torch.empty_like(x_BTK)
    low = gradient if dtype == x_BTK.dtype else torch.empty_like(x_BTK, dtype=dtype)
    normed = None if norm_dtype is None else torch.empty_like(x_BTK, dtype=norm_dtype)
    of_weight, of_bias, of_added = (x_BTK if total is None else total for total in totals)
    grad_normed_BTK, stride = _rows_apart(grad_normed_BTK)
    block = triton.next_power_of_2(size)
    _add_norm_backward[(min(_PROGRAMS, triton.cdiv(rows, _ROWS)),)](
        grad_normed_BTK, x_BTK if grad_x_BTK is None else grad_x_BTK.contiguous(),
        x_BTK if grad_means_BMK is None else grad_means_BMK.contiguous(), x_BTK, moments, *_vectors(norm),
        gradient, low, x_BTK if normed is None else normed, of_weight, of_bias, of_added,
        rows, size, stride, x_BTK.shape[1], 1 if grad_means_BMK is None else grad_means_BMK.shape[1],
        IS_RMS=is_rms(norm), HAS_GRAD_X=grad_x_BTK is not None, HAS_GRAD_MEANS=grad_means_BMK is not None,
        HAS_LOW=low is not gradient, HAS_NORMED=normed is not None, HAS_WEIGHT=totals[0] is not None,
        HAS_BIAS=totals[1] is not None, HAS_ADDED=totals[2] is not None,
        ROWS=_ROWS, BLOCK=block, num_warps=max(1, min(8, block // _OF_A_WARP)),
    )  # fmt: skip
    return gradient, low, normed


@kernel
def _add_norm_backward(
    grad_normed_at, grad_x_at, grad_means_at, x_at, moments_at, weight_at, bias_at, gradient_at, low_at, normed_at,
    of_weight_at, of_bias_at, of_added_at, rows, size, grad_normed_stride, positions, stretches,
    IS_RMS: tl.constexpr, HAS_GRAD_X: tl.constexpr, HAS_GRAD_MEANS: tl.constexpr, HAS_LOW: tl.constexpr,
    HAS_NORMED: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_ADDED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    weight = tl.load(weight_at + column, mask=column < size, other=0.0).to(tl.float32)[None, :]
    bias = 0.0
    if not IS_RMS:
        bias = tl.load(bias_at + column, mask=column < size, other=0.0).to(tl.float32)[None, :]
    of_weight, of_bias = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    of_added = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < size)[None, :]
        at = row.to(tl.int64)[:, None] * size + column[None, :]
        x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
        skew = row.to(tl.int64) * (grad_normed_stride - size)
        grad_normed = tl.load(grad_normed_at + skew[:, None] + at, mask=inside, other=0.0).to(tl.float32)
        grad_unit = grad_normed * weight
        if IS_RMS:
            scale = tl.load(moments_at + row, mask=row < rows, other=0.0)[:, None]
            unit = x * scale
            along = tl.sum(grad_unit * unit, 1)
            gradient = (grad_unit - unit * (along / size)[:, None]) * scale
        else:
            mean = tl.load(moments_at + row, mask=row < rows, other=0.0)[:, None]
            scale = tl.load(moments_at + rows + row, mask=row < rows, other=0.0)[:, None]
            unit = tl.where(inside, (x - mean) * scale, 0.0)
            of_bias += tl.sum(grad_normed, 0)
            along, level = tl.reduce((grad_unit * unit, grad_unit), 1, _add_both)
            gradient = (grad_unit - unit * (along / size)[:, None] - (level / size)[:, None]) * scale
        of_weight += tl.sum(grad_normed * unit, 0)
        if HAS_GRAD_X:
            gradient += tl.load(grad_x_at + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_GRAD_MEANS:
            stretch, width = stretch_of(row % positions, positions, stretches)
            at_mean = ((row // positions) * stretches + stretch).to(tl.int64)[:, None] * size + column[None, :]
            gradient += tl.load(grad_means_at + at_mean, mask=inside, other=0.0).to(tl.float32) / width[:, None]
        gradient = tl.where(inside, gradient, 0.0)
        of_added += tl.sum(gradient, 0)
        tl.store(gradient_at + at, gradient, mask=inside)
        if HAS_LOW:
            tl.store(low_at + at, gradient, mask=inside)
        if HAS_NORMED:
            tl.store(normed_at + at, unit * weight + bias, mask=inside)
    if HAS_WEIGHT:
        tl.atomic_add(of_weight_at + column, of_weight, mask=column < size, sem="relaxed")
    if HAS_BIAS:
        tl.atomic_add(of_bias_at + column, of_bias, mask=column < size, sem="relaxed")
    if HAS_ADDED:
        tl.atomic_add(of_added_at + column, of_added, mask=column < size, sem="relaxed")


def add_columns(gradient: torch.Tensor, total: Total) -> None:
    """Add the sum over all rows to an accumulator, if there is one."""
    if total is None:
        return
    gradient = gradient.contiguous()
    rows, size = _shape(gradient)
    _add_columns[(triton.cdiv(size, _WIDE), triton.cdiv(rows, _TALL))](
        gradient, total, rows, size, TALL=_TALL, WIDE=_WIDE, num_warps=2
    )


@kernel
def _add_columns(gradient_at, total_at, rows, size, TALL: tl.constexpr, WIDE: tl.constexpr):
    column, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1) * TALL + tl.arange(0, TALL)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    at = row.to(tl.int64)[:, None] * size + column[None, :]
    of_columns = tl.sum(tl.load(gradient_at + at, mask=inside, other=0.0).to(tl.float32), 0)
    tl.atomic_add(total_at + column, of_columns, mask=column < size, sem="relaxed")


@triton.jit
def _add_both(one, other, another_one, another_other):
    return one + another_one, other + another_other


def gelu(hidden: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh approximation."""
    hidden = hidden.contiguous()
    active, block = torch.empty_like(hidden), 2048
    _gelu[(triton.cdiv(hidden.numel(), block),)](hidden, active, hidden.numel(), BLOCK=block)
    return active


@kernel
def _gelu(hidden_at, active_at, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    hidden = tl.load(hidden_at + at, mask=at < count).to(tl.float32)
    tl.store(active_at + at, hidden * _gate(hidden), mask=at < count)


@triton.jit
def _gate(hidden):
    """GELU's factor: (1 + tanh(u)) / 2, which is the sigmoid of 2 u."""
    return tl.sigmoid(1.5957691216057308 * (hidden + 0.044715 * hidden * hidden * hidden))


def gelu_backward(hidden: torch.Tensor, grad_active: torch.Tensor, total: Total) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient with respect to `hidden`, and the recomputed activation."""
    hidden, grad_active = hidden.contiguous(), grad_active.contiguous()
    rows, size = _shape(hidden)
    gradient, active = torch.empty_like(hidden), torch.empty_like(hidden)
    _gelu_backward[(triton.cdiv(size, _WIDE), triton.cdiv(rows, _TALL))](
        hidden, grad_active, gradient, active, hidden if total is None else total, rows, size,
        HAS_TOTAL=total is not None, TALL=_TALL, WIDE=_WIDE, num_warps=2,
    )  # fmt: skip
    return gradient, active


@kernel
def _gelu_backward(
    hidden_at, grad_active_at, gradient_at, active_at, total_at, rows, size,
    HAS_TOTAL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    column, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1) * TALL + tl.arange(0, TALL)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    at = row.to(tl.int64)[:, None] * size + column[None, :]
    hidden = tl.load(hidden_at + at, mask=inside, other=0.0).to(tl.float32)
    grad_active = tl.load(grad_active_at + at, mask=inside, other=0.0).to(tl.float32)
    gate = _gate(hidden)
    slope = 1.5957691216057308 * (1 + 3 * 0.044715 * hidden * hidden)
    gradient = grad_active * (gate + hidden * gate * (1 - gate) * slope)
    tl.store(gradient_at + at, gradient, mask=inside)
    tl.store(active_at + at, hidden * gate, mask=inside)
    if HAS_TOTAL:
        tl.atomic_add(total_at + column, tl.sum(gradient, 0), mask=column < size, sem="relaxed")


def swiglu(hidden: torch.Tensor) -> torch.Tensor:
    """SwiGLU: SiLU of the first half, times the other."""
    hidden = hidden.contiguous()
    rows, size = _shape(hidden)
    units = size // 2
    active = hidden.new_empty(*hidden.shape[:-1], units)
    _swiglu[(triton.cdiv(units, _WIDE), triton.cdiv(rows, _TALL))](hidden, active, rows, units, TALL=_TALL, WIDE=_WIDE)
    return active


@kernel
def _swiglu(hidden_at, active_at, rows, units, TALL: tl.constexpr, WIDE: tl.constexpr):
    column, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1) * TALL + tl.arange(0, TALL)
    inside = (row < rows)[:, None] & (column < units)[None, :]
    at = row.to(tl.int64)[:, None] * 2 * units + column[None, :]
    gate = tl.load(hidden_at + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(hidden_at + units + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(active_at + row.to(tl.int64)[:, None] * units + column[None, :], gate * tl.sigmoid(gate) * up, mask=inside)


def swiglu_backward(hidden: torch.Tensor, grad_active: torch.Tensor, total: Total) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient with respect to `hidden`, and the recomputed activation."""
    hidden, grad_active = hidden.contiguous(), grad_active.contiguous()
    rows, units = _shape(grad_active)
    gradient, active = torch.empty_like(hidden), torch.empty_like(grad_active)
    _swiglu_backward[(triton.cdiv(units, _WIDE), triton.cdiv(rows, _TALL))](
        hidden, grad_active, gradient, active, hidden if total is None else total, rows, units,
        HAS_TOTAL=total is not None, TALL=_TALL, WIDE=_WIDE, num_warps=2,
    )  # fmt: skip
    return gradient, active


@kernel
def _swiglu_backward(
    hidden_at, grad_active_at, gradient_at, active_at, total_at, rows, units,
    HAS_TOTAL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    column, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1) * TALL + tl.arange(0, TALL)
    inside = (row < rows)[:, None] & (column < units)[None, :]
    at = row.to(tl.int64)[:, None] * 2 * units + column[None, :]
    at_active = row.to(tl.int64)[:, None] * units + column[None, :]
    gate = tl.load(hidden_at + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(hidden_at + units + at, mask=inside, other=0.0).to(tl.float32)
    grad_active = tl.load(grad_active_at + at_active, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    grad_gate = grad_active * up * share * (1 + gate * (1 - share))
    grad_up = grad_active * gate * share
    tl.store(gradient_at + at, grad_gate, mask=inside)
    tl.store(gradient_at + units + at, grad_up, mask=inside)
    tl.store(active_at + at_active, gate * share * up, mask=inside)
    if HAS_TOTAL:
        tl.atomic_add(total_at + column, tl.sum(grad_gate, 0), mask=column < units, sem="relaxed")
        tl.atomic_add(total_at + units + column, tl.sum(grad_up, 0), mask=column < units, sem="relaxed")


def cross_entropy(logits_NV: torch.Tensor, target_N: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Cross-entropy, summed over rows. Its gradient overwrites the logits: softmax minus one-hot, zero where a row is
    not scored or a column is padding."""
    rows, size = logits_NV.shape
    loss_N = torch.empty(rows, device=logits_NV.device)
    block = min(_LOGITS, triton.next_power_of_2(size))
    _cross_entropy[(rows,)](logits_NV, target_N, loss_N, vocabulary, size, NOT_SCORED, BLOCK=block, num_warps=8)
    return loss_N.sum()


@kernel
def _cross_entropy(logits_at, target_at, loss_at, vocabulary, size, not_scored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits_at += row * size
    target = tl.load(target_at + row)
    scored = target != not_scored
    wanted = tl.load(logits_at + target, mask=scored, other=0.0).to(tl.float32)
    # Every element of the block has its own maximum and sum, so that threads need not wait for each other.
    top, total = tl.full([BLOCK], -1e30, tl.float32), tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        column = first + tl.arange(0, BLOCK)
        logits = tl.load(logits_at + column, mask=column < vocabulary, other=-1e30).to(tl.float32)
        higher = tl.maximum(top, logits)
        total = total * tl.exp(top - higher) + tl.exp(logits - higher)
        top = higher
    highest = tl.max(top, 0)
    normaliser = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))
    tl.store(loss_at + row, tl.where(scored, normaliser - wanted, 0.0))
    for first in range(0, size, BLOCK):
        column = first + tl.arange(0, BLOCK)
        logits = tl.load(logits_at + column, mask=column < size, other=0.0).to(tl.float32)
        gradient = tl.exp(logits - normaliser) - tl.where(column == target, 1.0, 0.0)
        tl.store(logits_at + column, tl.where((column < vocabulary) & scored, gradient, 0.0), mask=column < size)


def _shape(x: torch.Tensor) -> tuple[int, int]:
    """Rows and columns."""
    return x.numel() // x.shape[-1], x.shape[-1]
