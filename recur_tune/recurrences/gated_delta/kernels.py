"""Fused Triton kernels of gated_delta: what matrices answer to queries, normalised, projected and added, and its
backward pass. Nothing between the products is stored.

A program of the backward pass has a batch row's head. It sums over positions into the gradients of the head's matrix
and output projection. Where heads are too few for a GPU, several programs share the positions, and their sums are added
up afterwards in a fixed order.

Shape suffixes: B batch rows, T positions, H query heads, G key-value heads, D head size, C columns.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from recur_tune.ops.triton.jit import kernel, tl, triton

WIDEST = 64  # head size; a program of wider heads would not have room for its four matrices
_ROWS = 32  # positions of a block
_PROGRAMS = 512  # enough for every multiprocessor of a GPU
_EXACT = tl.constexpr("tf32x3")  # for steps in single precision


def add_answers(
    q_BHTD: torch.Tensor,
    out_BTC: torch.Tensor,
    gate_BTH: torch.Tensor,
    memory_BGDD: torch.Tensor,
    outputs_HDD: torch.Tensor,
    least: float,
) -> torch.Tensor:
    """The heads' output, side by side, with the answers to the queries; `least` is added to a mean square."""
    return _Answered.apply(q_BHTD, out_BTC, gate_BTH, memory_BGDD, outputs_HDD, least)


class _Answered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, out: torch.Tensor, gate: torch.Tensor, memory: torch.Tensor, outputs: torch.Tensor,
        least: float,
    ) -> torch.Tensor:  # fmt: skip
        q, out, gate = q if q.stride(-1) == 1 else q.contiguous(), out.contiguous(), gate.contiguous()
        memory, outputs = memory if memory[0].is_contiguous() else memory.contiguous(), outputs.contiguous()
        (batch_size, heads, positions, size), mixed = q.shape, torch.empty_like(out)
        _answer[(triton.cdiv(positions, _ROWS), batch_size * heads)](
            q, *q.stride()[:3], out, gate, memory, memory.stride(0), outputs, mixed,
            heads, heads // memory.shape[1], positions, size, least, **_blocks(size),
        )  # fmt: skip
        ctx.save_for_backward(q, gate, memory, outputs)
        ctx.least = least
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mixed: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, gate, memory, outputs = ctx.saved_tensors
        (batch_size, heads, positions, size), groups = q.shape, memory.shape[1]
        grad_q = q.new_empty(batch_size, positions, heads, size).transpose(1, 2)
        parts = max(1, min(triton.cdiv(positions, _ROWS), _PROGRAMS // (batch_size * heads)))
        grad_mixed, grad_gate = grad_mixed.contiguous(), torch.empty_like(gate)
        # Each program's part of the sums over positions.
        of_memory, of_outputs = (
            q.new_empty(parts, batch_size, heads, size, size, dtype=torch.float32) for _ in range(2)
        )
        _answer_backward[(batch_size * heads, parts)](
            q, *q.stride()[:3], gate, memory, memory.stride(0), outputs, grad_mixed, grad_q, grad_gate, of_memory,
            of_outputs, heads, heads // groups, positions, size, ctx.least, **_blocks(size),
        )  # fmt: skip
        grad_memory = of_memory.unflatten(2, (groups, -1)).sum((0, 3)).to(memory.dtype)
        return grad_q, grad_mixed, grad_gate, grad_memory, of_outputs.sum((0, 1)).to(outputs.dtype), None


def _blocks(size: int) -> dict[str, int]:
    return {"ROWS": _ROWS, "BLOCK": max(16, triton.next_power_of_2(size)), "num_warps": 4}


@kernel
def _answer(
    q_at, q_batch, q_head, q_row, out_at, gate_at, memory_at, memory_batch, outputs_at, mixed_at,
    heads, group, positions, size, least, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    q_at += batch * q_batch + head * q_head
    q = tl.load(q_at + row[:, None] * q_row + column[None, :], mask=inside, other=0.0)
    memory, outputs = _matrices(memory_at + batch * memory_batch, outputs_at, head, group, size, column)
    normed, _ = _normed(q, memory, size, least)
    added = tl.dot(normed.to(q.dtype), outputs, input_precision=_EXACT)
    gate = tl.load(gate_at + (batch * positions + row) * heads + head, mask=row < positions, other=0.0)
    at = (batch * positions + row[:, None]) * heads * size + head * size + column[None, :]
    out = tl.load(out_at + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(mixed_at + at, out + gate.to(tl.float32)[:, None] * added, mask=inside)


@triton.jit
def _matrices(memory_at, outputs_at, head, group, size, column):
    """A head's matrix, which is its group's, and its output projection."""
    at = column[:, None] * size + column[None, :]
    there = (column < size)[:, None] & (column < size)[None, :]
    memory = tl.load(memory_at + head // group * size * size + at, mask=there, other=0.0)
    return memory, tl.load(outputs_at + head * size * size + at, mask=there, other=0.0)


@triton.jit
def _normed(q, memory, size, least):
    """What the matrix answers, divided by its root mean square, and this divisor's inverse."""
    found = tl.dot(q, memory, input_precision=_EXACT)
    scale = 1.0 / tl.sqrt(tl.sum(found * found, 1) / size + least)
    return found * scale[:, None], scale


@kernel
def _answer_backward(
    q_at, q_batch, q_head, q_row, gate_at, memory_at, memory_batch, outputs_at, grad_mixed_at, grad_q_at, grad_gate_at,
    of_memory_at, of_outputs_at, heads, group, positions, size, least, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    column = tl.arange(0, BLOCK)
    q_at += batch * q_batch + head * q_head
    memory, outputs = _matrices(memory_at + batch * memory_batch, outputs_at, head, group, size, column)
    grad_memory, grad_outputs = tl.zeros([BLOCK, BLOCK], tl.float32), tl.zeros([BLOCK, BLOCK], tl.float32)
    for first in range(tl.program_id(1) * ROWS, positions, tl.num_programs(1) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < positions)[:, None] & (column < size)[None, :]
        q = tl.load(q_at + row[:, None] * q_row + column[None, :], mask=inside, other=0.0)
        at = (batch * positions + row[:, None]) * heads * size + head * size + column[None, :]
        at_gate = (batch * positions + row) * heads + head
        grad_mixed = tl.load(grad_mixed_at + at, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(gate_at + at_gate, mask=row < positions, other=0.0).to(tl.float32)
        normed, scale = _normed(q, memory, size, least)
        low = normed.to(q.dtype)
        added = tl.dot(low, outputs, input_precision=_EXACT)
        tl.store(grad_gate_at + at_gate, tl.sum(grad_mixed * added, 1), mask=row < positions)
        grad_added = (gate[:, None] * grad_mixed).to(q.dtype)
        grad_outputs += tl.dot(tl.trans(low), grad_added, input_precision=_EXACT)
        grad_normed = tl.dot(grad_added, tl.trans(outputs), input_precision=_EXACT)
        along = tl.sum(grad_normed * normed, 1) / size
        grad_found = (scale[:, None] * (grad_normed - normed * along[:, None])).to(q.dtype)
        grad_q = tl.dot(grad_found, tl.trans(memory), input_precision=_EXACT)
        tl.store(grad_q_at + at, grad_q, mask=inside)  # where heads lie side by side too
        grad_memory += tl.dot(tl.trans(q), grad_found, input_precision=_EXACT)
    part = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    at = part * size * size + column[:, None] * size + column[None, :]
    there = (column < size)[:, None] & (column < size)[None, :]
    tl.store(of_memory_at + at, grad_memory, mask=there)
    tl.store(of_outputs_at + at, grad_outputs, mask=there)
