"""What `scores` does beside its products, as Triton kernels: rows are gathered, and heads mixed, in one pass each.

Heads with such weights are spread evenly over a layer's: of H heads, number n of N is head n H // N.

Shape suffixes: B lanes, T positions, N heads with such weights, G heads of keys and values, D head size, C columns,
X rows of the state and positions, Y rows of the state.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from recur_tune.model.jit import kernel, tl, triton

_ROWS = 32  # of a block


def rows_of_heads(v_BGTD: torch.Tensor, past_BNYD: torch.Tensor, heads: int) -> torch.Tensor:
    """The state's rows and behind them the values of some of so many heads, [N, X, B, D], as the values' numbers."""
    return _Rows.apply(v_BGTD, past_BNYD, heads)


def mix_heads(out_BTC: torch.Tensor, taken_NTBD: torch.Tensor, gate_N: torch.Tensor) -> torch.Tensor:
    """What a layer's heads took, and in some of them by their gates something else."""
    return _Mixed.apply(out_BTC, taken_NTBD, gate_N)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: torch.Tensor, past: torch.Tensor, heads: int) -> torch.Tensor:
        v = v if v.stride(-1) == 1 else v.contiguous()
        past = past if past.stride(-1) == 1 else past.contiguous()
        (lanes, groups, positions, size), (_, numbers, before, _) = v.shape, past.shape
        ctx.heads, ctx.shape, ctx.before, ctx.kind = heads, v.shape, before, past.dtype
        rows = v.new_empty(numbers, before + positions, lanes, size)
        _rows[(triton.cdiv(before + positions, _ROWS), numbers, lanes)](
            v, *v.stride()[:3], past, *past.stride()[:3], rows, heads, heads // groups, before, before + positions,
            size, ROWS=_ROWS, BLOCK=triton.next_power_of_2(size), num_warps=2,
        )  # fmt: skip
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_rows: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        by_rows = by_rows.contiguous()
        (lanes, groups, positions, size), numbers = ctx.shape, len(by_rows)
        by_v = by_rows.new_empty(lanes, positions, groups, size).transpose(1, 2)
        _rows_backward[(triton.cdiv(positions, _ROWS), groups, lanes)](
            by_rows, by_v, ctx.heads, ctx.heads // groups, numbers, ctx.before, positions, size,
            ROWS=_ROWS, BLOCK=triton.next_power_of_2(size), num_warps=2,
        )  # fmt: skip
        return by_v, by_rows[:, : ctx.before].permute(2, 0, 1, 3).to(ctx.kind), None


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, taken: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        out, taken, gate = out.contiguous(), taken.contiguous(), gate.contiguous()
        (numbers, positions, lanes, size), mixed = taken.shape, torch.empty_like(out)
        heads = out.shape[-1] // size
        _mix[(triton.cdiv(positions, _ROWS), heads, lanes)](
            out, taken, gate, mixed, numbers, positions, size,
            ROWS=_ROWS, BLOCK=triton.next_power_of_2(size), num_warps=2,
        )  # fmt: skip
        ctx.save_for_backward(out, taken, gate)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_mixed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, taken, gate = ctx.saved_tensors
        numbers, positions, lanes, size = taken.shape
        by_out, by_taken, blocks = torch.empty_like(out), torch.empty_like(taken), triton.cdiv(positions, _ROWS)
        of_gate = gate.new_empty(lanes * blocks, numbers, dtype=torch.float32)  # each program's part
        _mix_backward[(blocks, out.shape[-1] // size, lanes)](
            out, taken, gate, by_mixed.contiguous(), by_out, by_taken, of_gate, numbers, positions, size,
            ROWS=_ROWS, BLOCK=triton.next_power_of_2(size), num_warps=2,
        )  # fmt: skip
        return by_out, by_taken, of_gate.sum(0).to(gate.dtype)


@kernel
def _rows(
    v_at, v_lane, v_head, v_row, past_at, past_lane, past_head, past_row, rows_at, heads, group, before, count, size,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number, lane = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (column < size)[None, :]
    own = number * heads // tl.num_programs(1) // group
    v_at += lane * v_lane + own * v_head
    past_at += lane * past_lane + number * past_head
    # Of the two only one is loaded.
    of_past = past_at + row[:, None] * past_row + column[None, :]
    value = tl.load(of_past, mask=inside & (row < before)[:, None], other=0.0).to(tl.float32)
    of_v = v_at + (row - before)[:, None] * v_row + column[None, :]
    value += tl.load(of_v, mask=inside & (row >= before)[:, None], other=0.0).to(tl.float32)
    at = ((number * count + row[:, None]).to(tl.int64) * tl.num_programs(2) + lane) * size + column[None, :]
    tl.store(rows_at + at, value, mask=inside)


@kernel
def _rows_backward(
    by_rows_at, by_v_at, heads, group, numbers, before, positions, size, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    own, lane, lanes = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for number in range(0, numbers):
        there = tl.where(number * heads // numbers // group == own, positions, 0)
        at = number * (before + positions) + before + row[:, None]
        at = (at.to(tl.int64) * lanes + lane) * size + column[None, :]
        total += tl.load(by_rows_at + at, mask=inside & (row < there)[:, None], other=0.0).to(tl.float32)
    at = ((lane * positions + row[:, None]) * tl.num_programs(1) + own) * size + column[None, :]
    tl.store(by_v_at + at, total, mask=inside)


@triton.jit
def _number(head, heads, numbers):
    """Which of the heads with weights of their own a head is, and whether it is one."""
    number = (head * numbers + heads - 1) // heads
    return number, (number < numbers) & (number * heads // numbers == head)


@kernel
def _mix(out_at, taken_at, gate_at, mixed_at, numbers, positions, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    head, heads, lane = tl.program_id(1), tl.num_programs(1), tl.program_id(2).to(tl.int64)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    number, is_mixed = _number(head, heads, numbers)
    gate = tl.load(gate_at + number, mask=is_mixed, other=0.0).to(tl.float32)
    at = ((lane * positions + row[:, None]) * heads + head) * size + column[None, :]
    at_taken = ((number * positions + row[:, None]).to(tl.int64) * tl.num_programs(2) + lane) * size + column[None, :]
    wanted = inside & (row < tl.where(is_mixed, positions, 0))[:, None]
    out = tl.load(out_at + at, mask=inside, other=0.0).to(tl.float32)
    taken = tl.load(taken_at + at_taken, mask=wanted, other=0.0).to(tl.float32)
    tl.store(mixed_at + at, out + gate * (taken - out), mask=inside)


@kernel
def _mix_backward(
    out_at, taken_at, gate_at, by_mixed_at, by_out_at, by_taken_at, of_gate_at, numbers, positions, size,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, heads, lane = tl.program_id(1), tl.num_programs(1), tl.program_id(2).to(tl.int64)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    number, is_mixed = _number(head, heads, numbers)
    gate = tl.load(gate_at + number, mask=is_mixed, other=0.0).to(tl.float32)
    at = ((lane * positions + row[:, None]) * heads + head) * size + column[None, :]
    at_taken = ((number * positions + row[:, None]).to(tl.int64) * tl.num_programs(2) + lane) * size + column[None, :]
    wanted = inside & (row < tl.where(is_mixed, positions, 0))[:, None]
    out = tl.load(out_at + at, mask=wanted, other=0.0).to(tl.float32)
    taken = tl.load(taken_at + at_taken, mask=wanted, other=0.0).to(tl.float32)
    by_mixed = tl.load(by_mixed_at + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(by_out_at + at, (1 - gate) * by_mixed, mask=inside)
    tl.store(by_taken_at + at_taken, gate * by_mixed, mask=wanted)
    of_gate = tl.sum(tl.sum(by_mixed * (taken - out), 1), 0)
    part = lane * tl.num_programs(0) + tl.program_id(0)
    tl.store(of_gate_at + part * numbers + number, of_gate, mask=is_mixed)
