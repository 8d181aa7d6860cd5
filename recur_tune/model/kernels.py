"""The passes of `passes.py` as Triton kernels, each of which goes over memory once.

Without them a training step on a GPU spends as long between its matrix products as in them. A kernel is compiled for a
hidden size and types of numbers, in about half a second, whatever the number of layers and the recurrence; Triton keeps
it on disk. Arithmetic is in single precision. The forward pass always gives the same bits; gradients of vectors are
sums over rows that end in atomic additions, whose order is not fixed.

Shape suffixes: B lanes, T positions, K hidden size, C columns, D head size, N rows, V vocabulary, padded.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from recur_tune.corpus.windows import NOT_SCORED
from recur_tune.model.body import Module, Turn
from recur_tune.model.passes import Total, add_columns, is_rms

__all__ = [
    "add_columns", "add_norm", "add_norm_backward", "cross_entropy", "gelu", "gelu_backward", "join", "move", "swiglu",
    "swiglu_backward", "turned",
]  # fmt: skip

# Shapes of blocks, as they were fastest on an H200 for a hidden size of 768.
_ROWS = 4  # of norms
_PARTS, _COLUMNS = 32, 64  # of sums over parts
_PROGRAMS = 528  # that share a norm's rows: four for each processor
_TALL, _TALLER, _WIDE = 32, 64, 64  # of sums over rows
_LOGITS = 2048


def add_norm(
    x_BTK: torch.Tensor, added_BTK: torch.Tensor | None, norm: Module, kind: torch.dtype, with_mean: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """A sum, its norm as a `kind` of number, the sum's mean over positions if it is wanted, and for the backward pass
    every row's mean and the inverse of its standard deviation; of an RMS norm, the inverse of the root mean square."""
    lanes, positions, size = x_BTK.shape
    x_BTK = x_BTK.contiguous()
    total_BTK = x_BTK if added_BTK is None else torch.empty_like(x_BTK)
    normed_BTK = torch.empty_like(x_BTK, dtype=kind)
    moments = x_BTK.new_empty(1 if is_rms(norm) else 2, lanes, positions, dtype=torch.float32)
    blocks = triton.cdiv(positions, _ROWS)
    means_BPK = x_BTK.new_empty(lanes, blocks if with_mean else 0, size)  # each block's part
    _add_norm[(lanes, blocks)](
        x_BTK, x_BTK if added_BTK is None else added_BTK.contiguous(), *_vectors(norm), total_BTK, normed_BTK,
        means_BPK, moments, positions, size, norm.variance_epsilon if is_rms(norm) else norm.eps,
        IS_RMS=is_rms(norm), HAS_ADDED=added_BTK is not None, HAS_MEAN=with_mean,
        ROWS=_ROWS, BLOCK=triton.next_power_of_2(size),
    )  # fmt: skip
    return total_BTK, normed_BTK, _sum_of_parts(means_BPK) if with_mean else None, moments


def _vectors(norm: Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias; of an RMS norm, which has none, something in the bias's place that nobody reads."""
    return norm.weight, norm.weight if is_rms(norm) else norm.bias


@triton.jit
def _add_norm(
    x_at, added_at, weight_at, bias_at, total_at, normed_at, means_at, moments_at, positions, size, eps,
    IS_RMS: tl.constexpr, HAS_ADDED: tl.constexpr, HAS_MEAN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane, position = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (position < positions)[:, None] & (column < size)[None, :]
    row = lane * positions + position
    at = row[:, None] * size + column[None, :]
    x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADDED:
        x += tl.load(added_at + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(total_at + at, x, mask=inside)
    if HAS_MEAN:
        block = lane * tl.num_programs(1) + tl.program_id(1)
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
    """Over parts that lie one behind the other, in a third of the time of torch's own sum."""
    lanes, parts, size = x_BPK.shape
    sum_B1K = x_BPK.new_empty(lanes, 1, size)
    _sum_parts[(lanes, triton.cdiv(size, _COLUMNS))](x_BPK, sum_B1K, parts, size, PARTS=_PARTS, BLOCK=_COLUMNS)
    return sum_B1K


@triton.jit
def _sum_parts(x_at, sum_at, parts, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    lane, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([PARTS, BLOCK], tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & (column < size)[None, :]
        total += tl.load(x_at + (lane * parts + part[:, None]) * size + column[None, :], mask=inside, other=0.0)
    tl.store(sum_at + lane * size + column, tl.sum(total, 0), mask=column < size)


def add_norm_backward(
    by_normed_BTK: torch.Tensor,
    by_x_BTK: torch.Tensor | None,
    by_mean_B1K: torch.Tensor | None,
    x_BTK: torch.Tensor,
    moments: torch.Tensor,
    norm: Module,
    kind: torch.dtype,
    kind_of_norm: torch.dtype | None,
    totals: tuple[Total, Total, Total],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The gradient with respect to the sum, the same as a `kind` of number, and the norm once more if it is wanted."""
    rows, size = _shape(x_BTK)
    gradient = torch.empty_like(x_BTK)
    low = gradient if kind == x_BTK.dtype else torch.empty_like(x_BTK, dtype=kind)
    normed = None if kind_of_norm is None else torch.empty_like(x_BTK, dtype=kind_of_norm)
    of_weight, of_bias, of_added = (x_BTK if total is None else total for total in totals)
    _add_norm_backward[(min(_PROGRAMS, triton.cdiv(rows, _ROWS)),)](
        by_normed_BTK.contiguous(), x_BTK if by_x_BTK is None else by_x_BTK.contiguous(),
        x_BTK if by_mean_B1K is None else by_mean_B1K.contiguous(), x_BTK, moments, *_vectors(norm),
        gradient, low, x_BTK if normed is None else normed, of_weight, of_bias, of_added,
        rows, size, x_BTK.shape[1],
        IS_RMS=is_rms(norm), HAS_BY_X=by_x_BTK is not None, HAS_BY_MEAN=by_mean_B1K is not None,
        HAS_LOW=low is not gradient, HAS_NORMED=normed is not None, HAS_WEIGHT=totals[0] is not None,
        HAS_BIAS=totals[1] is not None, HAS_ADDED=totals[2] is not None,
        ROWS=_ROWS, BLOCK=triton.next_power_of_2(size),
    )  # fmt: skip
    return gradient, low, normed


@triton.jit
def _add_norm_backward(
    by_normed_at, by_x_at, by_mean_at, x_at, moments_at, weight_at, bias_at, gradient_at, low_at, normed_at,
    of_weight_at, of_bias_at, of_added_at, rows, size, positions,
    IS_RMS: tl.constexpr, HAS_BY_X: tl.constexpr, HAS_BY_MEAN: tl.constexpr, HAS_LOW: tl.constexpr,
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
        by_normed = tl.load(by_normed_at + at, mask=inside, other=0.0).to(tl.float32)
        by_unit = by_normed * weight
        if IS_RMS:
            scale = tl.load(moments_at + row, mask=row < rows, other=0.0)[:, None]
            unit = x * scale
            along = tl.sum(by_unit * unit, 1)
            gradient = (by_unit - unit * (along / size)[:, None]) * scale
        else:
            mean = tl.load(moments_at + row, mask=row < rows, other=0.0)[:, None]
            scale = tl.load(moments_at + rows + row, mask=row < rows, other=0.0)[:, None]
            unit = tl.where(inside, (x - mean) * scale, 0.0)
            of_bias += tl.sum(by_normed, 0)
            along, level = tl.reduce((by_unit * unit, by_unit), 1, _add_both)
            gradient = (by_unit - unit * (along / size)[:, None] - (level / size)[:, None]) * scale
        of_weight += tl.sum(by_normed * unit, 0)
        if HAS_BY_X:
            gradient += tl.load(by_x_at + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_BY_MEAN:
            of_lane = (row // positions).to(tl.int64)[:, None] * size + column[None, :]
            gradient += tl.load(by_mean_at + of_lane, mask=inside, other=0.0).to(tl.float32) / positions
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


@triton.jit
def _add_both(one, other, another_one, another_other):
    return one + another_one, other + another_other


def gelu(hidden: torch.Tensor) -> torch.Tensor:
    """In its approximation by a tanh."""
    hidden = hidden.contiguous()
    active, block = torch.empty_like(hidden), 2048
    _gelu[(triton.cdiv(hidden.numel(), block),)](hidden, active, hidden.numel(), BLOCK=block)
    return active


@triton.jit
def _gelu(hidden_at, active_at, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    hidden = tl.load(hidden_at + at, mask=at < count).to(tl.float32)
    tl.store(active_at + at, hidden * _gate(hidden), mask=at < count)


@triton.jit
def _gate(hidden):
    """What GELU multiplies a number by: (1 + tanh(u)) / 2, which is the sigmoid of 2 u."""
    return tl.sigmoid(1.5957691216057308 * (hidden + 0.044715 * hidden * hidden * hidden))


def gelu_backward(hidden: torch.Tensor, by_active: torch.Tensor, total: Total) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient with respect to `hidden`, and what the function made of it once more."""
    hidden, by_active = hidden.contiguous(), by_active.contiguous()
    rows, size = _shape(hidden)
    gradient, active = torch.empty_like(hidden), torch.empty_like(hidden)
    _gelu_backward[(triton.cdiv(size, _WIDE), triton.cdiv(rows, _TALL))](
        hidden, by_active, gradient, active, hidden if total is None else total, rows, size,
        HAS_TOTAL=total is not None, TALL=_TALL, WIDE=_WIDE, num_warps=2,
    )  # fmt: skip
    return gradient, active


@triton.jit
def _gelu_backward(
    hidden_at, by_active_at, gradient_at, active_at, total_at, rows, size,
    HAS_TOTAL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    column, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1) * TALL + tl.arange(0, TALL)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    at = row.to(tl.int64)[:, None] * size + column[None, :]
    hidden = tl.load(hidden_at + at, mask=inside, other=0.0).to(tl.float32)
    by_active = tl.load(by_active_at + at, mask=inside, other=0.0).to(tl.float32)
    gate = _gate(hidden)
    slope = 1.5957691216057308 * (1 + 3 * 0.044715 * hidden * hidden)
    gradient = by_active * (gate + hidden * gate * (1 - gate) * slope)
    tl.store(gradient_at + at, gradient, mask=inside)
    tl.store(active_at + at, hidden * gate, mask=inside)
    if HAS_TOTAL:
        tl.atomic_add(total_at + column, tl.sum(gradient, 0), mask=column < size, sem="relaxed")


def swiglu(hidden: torch.Tensor) -> torch.Tensor:
    """The first half through SiLU, times the other."""
    hidden = hidden.contiguous()
    rows, size = _shape(hidden)
    units = size // 2
    active = hidden.new_empty(*hidden.shape[:-1], units)
    _swiglu[(triton.cdiv(units, _WIDE), triton.cdiv(rows, _TALL))](hidden, active, rows, units, TALL=_TALL, WIDE=_WIDE)
    return active


@triton.jit
def _swiglu(hidden_at, active_at, rows, units, TALL: tl.constexpr, WIDE: tl.constexpr):
    column, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1) * TALL + tl.arange(0, TALL)
    inside = (row < rows)[:, None] & (column < units)[None, :]
    at = row.to(tl.int64)[:, None] * 2 * units + column[None, :]
    gate = tl.load(hidden_at + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(hidden_at + units + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(active_at + row.to(tl.int64)[:, None] * units + column[None, :], gate * tl.sigmoid(gate) * up, mask=inside)


def swiglu_backward(hidden: torch.Tensor, by_active: torch.Tensor, total: Total) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient with respect to `hidden`, and what the function made of it once more."""
    hidden, by_active = hidden.contiguous(), by_active.contiguous()
    rows, units = _shape(by_active)
    gradient, active = torch.empty_like(hidden), torch.empty_like(by_active)
    _swiglu_backward[(triton.cdiv(units, _WIDE), triton.cdiv(rows, _TALL))](
        hidden, by_active, gradient, active, hidden if total is None else total, rows, units,
        HAS_TOTAL=total is not None, TALL=_TALL, WIDE=_WIDE, num_warps=2,
    )  # fmt: skip
    return gradient, active


@triton.jit
def _swiglu_backward(
    hidden_at, by_active_at, gradient_at, active_at, total_at, rows, units,
    HAS_TOTAL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    column, row = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1) * TALL + tl.arange(0, TALL)
    inside = (row < rows)[:, None] & (column < units)[None, :]
    at = row.to(tl.int64)[:, None] * 2 * units + column[None, :]
    at_active = row.to(tl.int64)[:, None] * units + column[None, :]
    gate = tl.load(hidden_at + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(hidden_at + units + at, mask=inside, other=0.0).to(tl.float32)
    by_active = tl.load(by_active_at + at_active, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    by_gate = by_active * up * share * (1 + gate * (1 - share))
    by_up = by_active * gate * share
    tl.store(gradient_at + at, by_gate, mask=inside)
    tl.store(gradient_at + units + at, by_up, mask=inside)
    tl.store(active_at + at_active, gate * share * up, mask=inside)
    if HAS_TOTAL:
        tl.atomic_add(total_at + column, tl.sum(by_gate, 0), mask=column < units, sem="relaxed")
        tl.atomic_add(total_at + units + column, tl.sum(by_up, 0), mask=column < units, sem="relaxed")


def turned(
    qkv_BTC: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, heads: int, back: bool = False
) -> torch.Tensor:
    """Rotary positions: the first so many heads turned, or turned back; the rest as it is."""
    qkv_BTC = qkv_BTC.contiguous()
    (rows, columns), (positions, size) = _shape(qkv_BTC), cos_TD.shape
    turned_BTC = torch.empty_like(qkv_BTC)
    _turned[(columns // size, triton.cdiv(rows, _TALL))](
        qkv_BTC, cos_TD.contiguous(), sin_TD.contiguous(), turned_BTC, rows, columns, positions, size // 2, heads,
        BACK=back, TALL=_TALL, BLOCK=triton.next_power_of_2(size // 2), num_warps=2,
    )  # fmt: skip
    return turned_BTC


@triton.jit
def _turned(
    qkv_at, cos_at, sin_at, turned_at, rows, columns, positions, half, heads,
    BACK: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < half)[None, :]
    at = row.to(tl.int64)[:, None] * columns + head * 2 * half + column[None, :]
    first = tl.load(qkv_at + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(qkv_at + half + at, mask=inside, other=0.0).to(tl.float32)
    turns = (row < tl.where(head < heads, rows, 0))[:, None] & (column < half)[None, :]
    first, second = _turn(first, second, cos_at, sin_at, (row % positions)[:, None], column[None, :], half, turns, BACK)
    tl.store(turned_at + at, first, mask=inside)
    tl.store(turned_at + half + at, second, mask=inside)


@triton.jit
def _turn(first, second, cos_at, sin_at, position, column, half, turns, BACK: tl.constexpr):
    """Pairs of numbers by their positions' angles, of which the tables' halves are the same; others as they are."""
    at = position * 2 * half + column
    cos = tl.load(cos_at + at, mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(sin_at + at, mask=turns, other=0.0).to(tl.float32)
    if BACK:
        sin = -sin
    return first * cos - second * sin, second * cos + first * sin


def join(parts: tuple[torch.Tensor, ...], total: Total, turn: Turn | None = None) -> torch.Tensor:
    """Gradients of queries, keys and values side by side; where the first two were turned, turned back."""
    queries, keys, values = (part.contiguous() for part in parts)
    (rows, wide), narrow = _shape(queries), keys.shape[-1]
    joined = queries.new_empty(*queries.shape[:-1], wide + 2 * narrow)
    given = (queries, keys, values, joined, queries if total is None else total, rows)
    if turn is None:
        _join[(triton.cdiv(wide, _WIDE), 3, triton.cdiv(rows, _TALLER))](
            *given, wide, narrow, HAS_TOTAL=total is not None, TALL=_TALLER, WIDE=_WIDE, num_warps=2
        )
    else:
        cos_TD, sin_TD = (one.contiguous() for one in turn)
        positions, size = cos_TD.shape
        _join_turned[((wide + 2 * narrow) // size, triton.cdiv(rows, _TALL))](
            *given, cos_TD, sin_TD, positions, size // 2, wide // size, narrow // size,
            HAS_TOTAL=total is not None, TALL=_TALL, BLOCK=triton.next_power_of_2(size // 2), num_warps=2,
        )  # fmt: skip
    return joined


@triton.jit
def _join(
    queries_at, keys_at, values_at, joined_at, total_at, rows, wide, narrow,
    HAS_TOTAL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    column, part = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1)
    row = tl.program_id(2) * TALL + tl.arange(0, TALL)
    at = row.to(tl.int64)[:, None] * narrow + column[None, :]
    at_queries = row.to(tl.int64)[:, None] * wide + column[None, :]
    # Of the three only one is loaded.
    value = tl.load(queries_at + at_queries, mask=_of(part == 0, row, rows, column, wide), other=0.0)
    value += tl.load(keys_at + at, mask=_of(part == 1, row, rows, column, narrow), other=0.0)
    value += tl.load(values_at + at, mask=_of(part == 2, row, rows, column, narrow), other=0.0)
    begin, size = tl.where(part == 0, 0, wide + (part - 1) * narrow), tl.where(part == 0, wide, narrow)
    at = row.to(tl.int64)[:, None] * (wide + 2 * narrow) + begin + column[None, :]
    tl.store(joined_at + at, value, mask=(row < rows)[:, None] & (column < size)[None, :])
    if HAS_TOTAL:
        of_columns = tl.sum(value.to(tl.float32), 0)
        tl.atomic_add(total_at + begin + column, of_columns, mask=column < size, sem="relaxed")


@triton.jit
def _of(wanted, row, rows, column, columns):
    """The places of a block that are inside; none where it is not wanted."""
    return (row < tl.where(wanted, rows, 0))[:, None] & (column < columns)[None, :]


@triton.jit
def _join_turned(
    queries_at, keys_at, values_at, joined_at, total_at, rows, cos_at, sin_at, positions, half, heads, shared_heads,
    HAS_TOTAL: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, row, column = tl.program_id(0), tl.program_id(1) * TALL + tl.arange(0, TALL), tl.arange(0, BLOCK)
    turns, inside = head < heads + shared_heads, (row < rows)[:, None] & (column < half)[None, :]
    of_queries, of_values = _of(head < heads, row, rows, column, half), _of(turns == 0, row, rows, column, half)
    of_keys = _of(turns & (head >= heads), row, rows, column, half)
    long_row, wide = row.to(tl.int64)[:, None], head * 2 * half + column[None, :]
    at_queries = long_row * heads * 2 * half + wide
    at_keys = long_row * shared_heads * 2 * half + wide - heads * 2 * half
    at_values = at_keys - shared_heads * 2 * half
    # Of the three only one is loaded.
    first = tl.load(queries_at + at_queries, mask=of_queries, other=0.0).to(tl.float32)
    first += tl.load(keys_at + at_keys, mask=of_keys, other=0.0).to(tl.float32)
    first += tl.load(values_at + at_values, mask=of_values, other=0.0).to(tl.float32)
    second = tl.load(queries_at + half + at_queries, mask=of_queries, other=0.0).to(tl.float32)
    second += tl.load(keys_at + half + at_keys, mask=of_keys, other=0.0).to(tl.float32)
    second += tl.load(values_at + half + at_values, mask=of_values, other=0.0).to(tl.float32)
    first, second = _turn(
        first, second, cos_at, sin_at, (row % positions)[:, None], column[None, :], half,
        _of(turns, row, rows, column, half), BACK=True,
    )  # fmt: skip
    at = long_row * (heads + 2 * shared_heads) * 2 * half + wide
    tl.store(joined_at + at, first, mask=inside)
    tl.store(joined_at + half + at, second, mask=inside)
    if HAS_TOTAL:
        total_at += head * 2 * half + column
        tl.atomic_add(total_at, tl.sum(first, 0), mask=column < half, sem="relaxed")
        tl.atomic_add(total_at + half, tl.sum(second, 0), mask=column < half, sem="relaxed")


def move(x_BTC: torch.Tensor, down: int | torch.Tensor, rows: int) -> torch.Tensor:
    """So many rows of every lane, moved down, by as much in all lanes or in each by its own; zero where none comes
    from."""
    lanes, source_rows, size = x_BTC.shape
    moved_BTC, by_lane = x_BTC.new_empty(lanes, rows, size), isinstance(down, torch.Tensor)
    _move[(lanes, rows)](
        x_BTC.contiguous(), down if by_lane else x_BTC, moved_BTC, source_rows, rows, size, 0 if by_lane else down,
        BY_LANE=by_lane, BLOCK=1024,
    )  # fmt: skip
    return moved_BTC


@triton.jit
def _move(
    x_at, downs_at, moved_at, source_rows, rows, size, down, BY_LANE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = row - down
    if BY_LANE:
        source = row - tl.load(downs_at + lane)
    there = tl.where(source >= 0, tl.where(source < source_rows, size, 0), 0)  # columns
    for first in range(0, size, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(x_at + (lane * source_rows + source) * size + column, mask=column < there, other=0.0)
        tl.store(moved_at + (lane * rows + row) * size + column, value, mask=column < size)


def cross_entropy(logits_NV: torch.Tensor, target_N: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """The summed loss of some rows, and in the logits' place their gradient: softmax minus one-hot, zero where a row is
    not scored or a column is padding."""
    rows, size = logits_NV.shape
    loss_N = torch.empty(rows, device=logits_NV.device)
    block = min(_LOGITS, triton.next_power_of_2(size))
    _cross_entropy[(rows,)](logits_NV, target_N, loss_N, vocabulary, size, NOT_SCORED, BLOCK=block, num_warps=8)
    return loss_N.sum()


@triton.jit
def _cross_entropy(logits_at, target_at, loss_at, vocabulary, size, not_scored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits_at += row * size
    target = tl.load(target_at + row)
    scored = target != not_scored
    wanted = tl.load(logits_at + target, mask=scored, other=0.0).to(tl.float32)
    # Every place of the block has a maximum and a sum of its own, so that threads need not wait for each other.
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
