"""Fused Triton kernels of `scores`, beside its products: making weights, collecting rows, mixing heads.

Heads with such weights are spread evenly over a layer's: of H heads, number n of N is head n H // N. Rows of the state
and positions are padded with zeros to a multiple of eight: tensor cores load 16 bytes at a time.

Shape suffixes: B batch rows, T positions, N heads with such weights, G key-value heads, D head size, C columns,
X rows of the state and positions, Y rows of the state, L layers, R rows of weights.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from recur_tune.ops.triton.jit import kernel, tl, triton

_ROWS = 32  # of a block
_COLUMNS = 64  # of a block of weights
_QUARTER = tl.constexpr(1.5707963267948966)  # of a rotation: pi / 2


def padded_rows(count: int) -> int:
    """Padded to a multiple of eight."""
    return -(-count // 8) * 8


def score_weights(
    radius_LN: torch.Tensor,
    angle_LN: torch.Tensor,
    sines: int,
    dilation: int,
    first: int,
    rows: int,
    seen: int,
    dtype: torch.dtype,
    with_imaginary: bool,
) -> torch.Tensor:
    """Weights of positions from `first` on over the state and the window's first `seen` positions, [L, N, R, X]: real
    parts, and with `with_imaginary` imaginary parts below them. The last `sines` heads are sines."""
    return _Weights.apply(radius_LN, angle_LN, sines, dilation, first, rows, seen, dtype, with_imaginary)


def rows_of_heads(v_BGTD: torch.Tensor, past_BNYD: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The state's rows, behind them the values of the heads with such weights, and zeros, [N, X, B, D], in the values'
    dtype; and a view of the values alone."""
    return _Rows.apply(v_BGTD, past_BNYD, heads)


def mix_heads(out_BTC: torch.Tensor, taken_NTBD: torch.Tensor, gate_N: torch.Tensor) -> torch.Tensor:
    """Mix weighted sums into the output of the heads with such weights, by their gates."""
    return _Mixed.apply(out_BTC, taken_NTBD, gate_N)


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, radius: torch.Tensor, angle: torch.Tensor, sines: int, dilation: int, first: int, rows: int,
        seen: int, dtype: torch.dtype, with_imaginary: bool,
    ) -> torch.Tensor:  # fmt: skip
        radius, angle = radius.contiguous(), angle.contiguous()
        (layers, numbers), columns = radius.shape, padded_rows(2 * dilation + seen)
        weights = radius.new_empty(layers, numbers, (1 + with_imaginary) * rows, columns, dtype=dtype)
        ctx.given = numbers, sines, dilation, first, rows, seen
        ctx.save_for_backward(radius, angle)
        _weights[_weight_blocks(weights)](
            radius, angle, weights, *ctx.given, *weights.shape[2:], ROWS=_ROWS, BLOCK=_COLUMNS
        )
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_weights: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (radius, angle), grad_weights = ctx.saved_tensors, grad_weights.contiguous()
        blocks = _weight_blocks(grad_weights)
        grad_both = radius.new_empty(2, *radius.shape, blocks[1] * blocks[2])  # each program's part
        _weights_backward[blocks](
            radius, angle, grad_weights, grad_both, *ctx.given, *grad_weights.shape[2:], ROWS=_ROWS, BLOCK=_COLUMNS
        )
        return *grad_both.sum(-1).unbind(), *[None] * 7


def _weight_blocks(weights: torch.Tensor) -> tuple[int, int, int]:
    layers, numbers, rows, columns = weights.shape
    return layers * numbers, triton.cdiv(rows, _ROWS), triton.cdiv(columns, _COLUMNS)


@triton.jit
def _powers(
    radius_at, angle_at, numbers, sines, dilation, first, rows, seen, row, column,
):  # fmt: skip
    """Powers of a head's complex number for these rows and columns of its weights: the exponent, the radius to that
    power and to one less, the phase, and whether the weight is not zero by definition."""
    head = tl.program_id(0)
    number = head % numbers
    step = tl.where(number % 2 == 1, dilation, 1)
    is_imaginary, at = (row >= rows)[:, None], (first + row % rows)[:, None]
    from_state, position = (column < 2 * dilation)[None, :], (column - 2 * dilation)[None, :]
    place, lag = at % dilation, at - position
    of_state = from_state & ((column % dilation)[None, :] == place)
    of_lag = (position >= 0) & (position < seen) & (lag > 0) & (lag % step == 0)
    exponent = tl.where(of_state, (at - place) // step, tl.where(of_lag, lag // step, 0))
    # A sine is a cosine shifted by a quarter, and so is an imaginary part.
    late = is_imaginary.to(tl.int32) + (of_lag & (number >= numbers - sines)).to(tl.int32)
    late -= (of_state & (column >= dilation)[None, :]).to(tl.int32)
    radius, angle = tl.load(radius_at + head), tl.load(angle_at + head)
    there = of_state | of_lag
    long, below = exponent.to(tl.float32), tl.maximum(exponent - 1, 0)
    size = tl.log2(tl.abs(radius))
    power = tl.where(exponent > 0, tl.exp2(size * tl.maximum(long, 1.0)), 1.0)
    lower = tl.where(below > 0, tl.exp2(size * tl.maximum(below.to(tl.float32), 1.0)), 1.0)
    sign = tl.where(radius < 0, -1.0, 1.0)
    power *= tl.where(exponent % 2 == 1, sign, 1.0)
    lower *= tl.where(below % 2 == 1, sign, 1.0)
    return long, power, lower, angle * long - late.to(tl.float32) * _QUARTER, there


@kernel
def _weights(
    radius_at, angle_at, weights_at, numbers, sines, dilation, first, rows, seen, all_rows, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    _, power, _, phase, there = _powers(radius_at, angle_at, numbers, sines, dilation, first, rows, seen, row, column)
    at = (tl.program_id(0).to(tl.int64) * all_rows + row[:, None]) * columns + column[None, :]
    inside = (row < all_rows)[:, None] & (column < columns)[None, :]
    tl.store(weights_at + at, tl.where(there, power * tl.cos(phase), 0.0), mask=inside)


@kernel
def _weights_backward(
    radius_at, angle_at, grad_weights_at, grad_both_at, numbers, sines, dilation, first, rows, seen, all_rows, columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    exponent, power, lower, phase, there = _powers(
        radius_at, angle_at, numbers, sines, dilation, first, rows, seen, row, column
    )
    at = (tl.program_id(0).to(tl.int64) * all_rows + row[:, None]) * columns + column[None, :]
    inside = (row < all_rows)[:, None] & (column < columns)[None, :]
    grad_weight = tl.load(grad_weights_at + at, mask=inside & there, other=0.0).to(tl.float32) * exponent
    part = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
    parts, heads = tl.num_programs(1) * tl.num_programs(2), tl.num_programs(0)
    grad_both_at += tl.program_id(0) * parts + part
    tl.store(grad_both_at, tl.sum(tl.sum(grad_weight * lower * tl.cos(phase), 1), 0))
    tl.store(grad_both_at + heads * parts, -tl.sum(tl.sum(grad_weight * power * tl.sin(phase), 1), 0))


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: torch.Tensor, past: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        v = v if v.stride(-1) == 1 else v.contiguous()
        past = past if past.stride(-1) == 1 else past.contiguous()
        (batch_size, groups, positions, size), (_, numbers, before, _) = v.shape, past.shape
        ctx.heads, ctx.shape, ctx.before, ctx.dtype = heads, v.shape, before, past.dtype
        count = padded_rows(before + positions)
        rows = v.new_empty(numbers, count, batch_size, size)
        _rows[(triton.cdiv(count, _ROWS), numbers, batch_size)](
            v, *v.stride()[:3], past, *past.stride()[:3], rows, heads, heads // groups, before,
            positions, count, size, ROWS=_ROWS, BLOCK=triton.next_power_of_2(size), num_warps=2,
        )  # fmt: skip
        return rows, rows[:, before : before + positions]

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_rows: torch.Tensor, grad_values: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        grad_rows, grad_values = grad_rows.contiguous(), None if grad_values is None else grad_values.contiguous()
        (batch_size, groups, positions, size), numbers = ctx.shape, len(grad_rows)
        grad_v = grad_rows.new_empty(batch_size, positions, groups, size).transpose(1, 2)
        _rows_backward[(triton.cdiv(positions, _ROWS), groups, batch_size)](
            grad_rows, grad_rows if grad_values is None else grad_values, grad_v,
            ctx.heads, ctx.heads // groups, numbers,
            ctx.before, positions, grad_rows.shape[1], size, HAS_VALUES=grad_values is not None,
            ROWS=_ROWS, BLOCK=triton.next_power_of_2(size), num_warps=2,
        )  # fmt: skip
        return grad_v, grad_rows[:, : ctx.before].permute(2, 0, 1, 3).to(ctx.dtype), None


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, taken: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        out, taken, gate = out.contiguous(), taken.contiguous(), gate.contiguous()
        (numbers, positions, batch_size, size), mixed = taken.shape, torch.empty_like(out)
        heads = out.shape[-1] // size
        _mix[(triton.cdiv(positions, _ROWS), heads, batch_size)](
            out, taken, gate, mixed, numbers, positions, size,
            ROWS=_ROWS, BLOCK=triton.next_power_of_2(size), num_warps=2,
        )  # fmt: skip
        ctx.save_for_backward(out, taken, gate)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mixed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, taken, gate = ctx.saved_tensors
        numbers, positions, batch_size, size = taken.shape
        grad_out, grad_taken, blocks = torch.empty_like(out), torch.empty_like(taken), triton.cdiv(positions, _ROWS)
        of_gate = gate.new_empty(batch_size * blocks, numbers, dtype=torch.float32)  # each program's part
        _mix_backward[(blocks, out.shape[-1] // size, batch_size)](
            out, taken, gate, grad_mixed.contiguous(), grad_out, grad_taken, of_gate, numbers, positions, size,
            ROWS=_ROWS, BLOCK=triton.next_power_of_2(size), num_warps=2,
        )  # fmt: skip
        return grad_out, grad_taken, of_gate.sum(0).to(gate.dtype)


@kernel
def _rows(
    v_at, v_batch, v_head, v_row, past_at, past_batch, past_head, past_row, rows_at, heads, group, before,
    positions, count, size,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (column < size)[None, :]
    own = number * heads // tl.num_programs(1) // group
    v_at += batch * v_batch + own * v_head
    past_at += batch * past_batch + number * past_head
    # Masks let only one of the two be loaded.
    of_past = past_at + row[:, None] * past_row + column[None, :]
    value = tl.load(of_past, mask=inside & (row < before)[:, None], other=0.0).to(tl.float32)
    of_v = v_at + (row - before)[:, None] * v_row + column[None, :]
    is_own = (row >= before) & (row < before + positions)
    value += tl.load(of_v, mask=inside & is_own[:, None], other=0.0).to(tl.float32)
    at = ((number * count + row[:, None]).to(tl.int64) * tl.num_programs(2) + batch) * size + column[None, :]
    tl.store(rows_at + at, value, mask=inside)


@kernel
def _rows_backward(
    grad_rows_at, grad_values_at, grad_v_at, heads, group, numbers, before, positions, count, size,
    HAS_VALUES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    own, batch, batch_size = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for number in range(0, numbers):
        there = tl.where(number * heads // numbers // group == own, positions, 0)
        at = number * count + before + row[:, None]
        at = (at.to(tl.int64) * batch_size + batch) * size + column[None, :]
        wanted = inside & (row < there)[:, None]
        total += tl.load(grad_rows_at + at, mask=wanted, other=0.0).to(tl.float32)
        if HAS_VALUES:
            at = ((number * positions + row[:, None]).to(tl.int64) * batch_size + batch) * size + column[None, :]
            total += tl.load(grad_values_at + at, mask=wanted, other=0.0).to(tl.float32)
    at = ((batch * positions + row[:, None]) * tl.num_programs(1) + own) * size + column[None, :]
    tl.store(grad_v_at + at, total, mask=inside)


@triton.jit
def _number(head, heads, numbers):
    """A head's number among those with such weights, and whether it is one of them."""
    number = (head * numbers + heads - 1) // heads
    return number, (number < numbers) & (number * heads // numbers == head)


@kernel
def _mix(out_at, taken_at, gate_at, mixed_at, numbers, positions, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    head, heads, batch = tl.program_id(1), tl.num_programs(1), tl.program_id(2).to(tl.int64)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    number, is_mixed = _number(head, heads, numbers)
    gate = tl.load(gate_at + number, mask=is_mixed, other=0.0).to(tl.float32)
    at = ((batch * positions + row[:, None]) * heads + head) * size + column[None, :]
    at_taken = ((number * positions + row[:, None]).to(tl.int64) * tl.num_programs(2) + batch) * size + column[None, :]
    wanted = inside & (row < tl.where(is_mixed, positions, 0))[:, None]
    out = tl.load(out_at + at, mask=inside, other=0.0).to(tl.float32)
    taken = tl.load(taken_at + at_taken, mask=wanted, other=0.0).to(tl.float32)
    tl.store(mixed_at + at, out + gate * (taken - out), mask=inside)


@kernel
def _mix_backward(
    out_at, taken_at, gate_at, grad_mixed_at, grad_out_at, grad_taken_at, of_gate_at, numbers, positions, size,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, heads, batch = tl.program_id(1), tl.num_programs(1), tl.program_id(2).to(tl.int64)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    number, is_mixed = _number(head, heads, numbers)
    gate = tl.load(gate_at + number, mask=is_mixed, other=0.0).to(tl.float32)
    at = ((batch * positions + row[:, None]) * heads + head) * size + column[None, :]
    at_taken = ((number * positions + row[:, None]).to(tl.int64) * tl.num_programs(2) + batch) * size + column[None, :]
    wanted = inside & (row < tl.where(is_mixed, positions, 0))[:, None]
    out = tl.load(out_at + at, mask=wanted, other=0.0).to(tl.float32)
    taken = tl.load(taken_at + at_taken, mask=wanted, other=0.0).to(tl.float32)
    grad_mixed = tl.load(grad_mixed_at + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(grad_out_at + at, (1 - gate) * grad_mixed, mask=inside)
    tl.store(grad_taken_at + at_taken, gate * grad_mixed, mask=wanted)
    of_gate = tl.sum(tl.sum(grad_mixed * (taken - out), 1), 0)
    part = batch * tl.num_programs(0) + tl.program_id(0)
    tl.store(of_gate_at + part * numbers + number, of_gate, mask=is_mixed)
