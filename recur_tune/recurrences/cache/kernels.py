"""Fused Triton kernels of the key-value cache: gated attention to rows.

No gradient goes back to rows, so the backward pass is one over queries. A scale of keys can be seen as one of queries,
and a scale of values as one of attention's output, so the kernel that makes a query's gradient makes theirs too.

Shape suffixes: B batch rows, T positions, M rows, H query heads, G key-value heads, D head size, C columns.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from recur_tune.ops.triton.jit import kernel, tl, triton

_ROWS, _KEYS = 64, 64  # queries and cached rows of a block
_EXACT = tl.constexpr("tf32x3")  # for steps in single precision
_NOTHING = tl.constexpr(-1e30)  # logit of a masked row


def attend_cached(
    q_BHTD: torch.Tensor,
    out_BTC: torch.Tensor,
    rows_BMC: torch.Tensor,
    scale_C: torch.Tensor,
    gate_BH: torch.Tensor,
    seen_B: torch.Tensor,
) -> torch.Tensor:
    """Mix attention to the cached rows into the heads' outputs, by a gate for each head.

    A row is a key and a value side by side, each channel with a scale; a batch row sees the last `seen_B` of them.
    """
    return _Attended.apply(q_BHTD, out_BTC, rows_BMC, scale_C, gate_BH, seen_B)


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, out: torch.Tensor, rows: torch.Tensor, scale: torch.Tensor, gate: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        q, out = q if q.stride(-1) == 1 else q.contiguous(), out.contiguous()
        rows = rows if rows[0].is_contiguous() else rows.contiguous()
        (batch_size, heads, positions, size) = q.shape
        mixed, taken = torch.empty_like(out), torch.empty_like(out)
        normaliser = q.new_empty(batch_size, heads, positions, dtype=torch.float32)
        groups = rows.shape[-1] // (2 * size)
        _attend[(triton.cdiv(positions, _ROWS), batch_size * heads)](
            q, *q.stride()[:3], out, rows, rows.stride(0), scale, gate, gate.stride(0), seen, mixed, taken, normaliser,
            heads, groups, positions, rows.shape[1], size, size**-0.5, **_blocks(size),
        )  # fmt: skip
        ctx.save_for_backward(q, out, rows, scale, gate, seen, taken, normaliser)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mixed: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, out, rows, scale, gate, seen, taken, normaliser = ctx.saved_tensors
        (batch_size, heads, positions, size) = q.shape
        grad_q = q.new_empty(batch_size, positions, heads, size).transpose(1, 2)
        grad_out, groups, blocks = torch.empty_like(out), rows.shape[-1] // (2 * size), triton.cdiv(positions, _ROWS)
        # Each program's part of the sums over positions.
        of_scale = q.new_empty(batch_size, blocks, 2, heads, size, dtype=torch.float32)
        of_gate = q.new_empty(batch_size, blocks, heads, dtype=torch.float32)
        _attend_backward[(blocks, batch_size * heads)](
            q, *q.stride()[:3], out, rows, rows.stride(0), scale, gate, gate.stride(0), seen, taken, normaliser,
            grad_mixed.contiguous(), grad_q, grad_out, of_scale, of_gate,
            heads, groups, positions, rows.shape[1], size, size**-0.5, **_blocks(size),
        )  # fmt: skip
        grad_scale = of_scale.unflatten(3, (groups, -1)).sum((0, 1, 4)).flatten()
        return grad_q, grad_out, None, grad_scale.to(scale.dtype), of_gate.sum(1), None


def _blocks(size: int) -> dict[str, int]:
    return {"ROWS": _ROWS, "KEYS": _KEYS, "BLOCK": max(16, triton.next_power_of_2(size)), "num_warps": 4}


@kernel
def _attend(
    q_at, q_batch, q_head, q_row, out_at, rows_at, rows_batch, scale_at, gate_at, gate_batch, seen_at,
    mixed_at, taken_at, normaliser_at, heads, groups, positions, cached, size, root,
    ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    own = head // (heads // groups) * size + column
    of_keys, of_values = _scales(scale_at, own, groups * size, column < size)
    q_at += batch * q_batch + head * q_head
    q = tl.load(q_at + row[:, None] * q_row + column[None, :], mask=inside, other=0.0)
    scaled = (q.to(tl.float32) * of_keys[None, :] * root).to(q.dtype)
    rows_at += batch * rows_batch
    top = tl.full([ROWS], _NOTHING, tl.float32)
    total, taken = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, BLOCK], tl.float32)
    hidden = cached - tl.load(seen_at + batch).to(tl.int32)
    for first in range(hidden // KEYS * KEYS, cached, KEYS):
        key = first + tl.arange(0, KEYS)
        seen = (key >= hidden) & (key < cached)
        at = key[:, None] * 2 * groups * size + own[None, :]
        there = seen[:, None] & (column < size)[None, :]
        k = tl.load(rows_at + at, mask=there, other=0.0).to(q.dtype)
        v = tl.load(rows_at + groups * size + at, mask=there, other=0.0).to(q.dtype)
        logit = tl.where(seen[None, :], tl.dot(scaled, tl.trans(k), input_precision=_EXACT), _NOTHING)
        higher = tl.maximum(top, tl.max(logit, 1))
        share = tl.where(seen[None, :], tl.exp(logit - higher[:, None]), 0.0)
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(share, 1)
        taken = taken * fade[:, None] + tl.dot(share.to(q.dtype), v, input_precision=_EXACT)
        top = higher
    total = tl.where(total > 0, total, 1.0)  # where a batch row sees nothing
    taken = taken / total[:, None]
    tl.store(normaliser_at + (batch * heads + head) * positions + row, top + tl.log(total), mask=row < positions)
    at = (batch * positions + row[:, None]) * heads * size + head * size + column[None, :]
    tl.store(taken_at + at, taken, mask=inside)
    out = tl.load(out_at + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_at + batch * gate_batch + head).to(tl.float32)
    tl.store(mixed_at + at, out + gate * (taken * of_values[None, :] - out), mask=inside)


@triton.jit
def _scales(scale_at, own, values, inside):
    """Scales of a head's keys and of its values."""
    of_keys = tl.load(scale_at + own, mask=inside, other=0.0).to(tl.float32)
    return of_keys, tl.load(scale_at + values + own, mask=inside, other=0.0).to(tl.float32)


@kernel
def _attend_backward(
    q_at, q_batch, q_head, q_row, out_at, rows_at, rows_batch, scale_at, gate_at, gate_batch, seen_at, taken_at,
    normaliser_at, grad_mixed_at, grad_q_at, grad_out_at, of_scale_at, of_gate_at,
    heads, groups, positions, cached, size, root, ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    own = head // (heads // groups) * size + column
    of_keys, of_values = _scales(scale_at, own, groups * size, column < size)
    at = (batch * positions + row[:, None]) * heads * size + head * size + column[None, :]
    out = tl.load(out_at + at, mask=inside, other=0.0).to(tl.float32)
    taken = tl.load(taken_at + at, mask=inside, other=0.0).to(tl.float32)
    grad_mixed = tl.load(grad_mixed_at + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_at + batch * gate_batch + head).to(tl.float32)
    tl.store(grad_out_at + at, (1 - gate) * grad_mixed, mask=inside)
    part = batch * tl.num_programs(0) + tl.program_id(0)
    tl.store(of_gate_at + part * heads + head, tl.sum(tl.sum(grad_mixed * (taken * of_values[None, :] - out), 1), 0))
    of_scale_at += part * 2 * heads * size + head * size + column
    tl.store(of_scale_at + heads * size, tl.sum(gate * grad_mixed * taken, 0), mask=column < size)
    grad_taken = gate * grad_mixed * of_values[None, :]
    along = tl.sum(grad_taken * taken, 1)
    q_at += batch * q_batch + head * q_head
    q = tl.load(q_at + row[:, None] * q_row + column[None, :], mask=inside, other=0.0)
    scaled, grad_taken = (q.to(tl.float32) * of_keys[None, :] * root).to(q.dtype), grad_taken.to(q.dtype)
    at_row = (batch * heads + head) * positions + row
    normaliser = tl.load(normaliser_at + at_row, mask=row < positions, other=0.0)
    rows_at += batch * rows_batch
    grad_scaled = tl.zeros([ROWS, BLOCK], tl.float32)
    hidden = cached - tl.load(seen_at + batch).to(tl.int32)
    for first in range(hidden // KEYS * KEYS, cached, KEYS):
        key = first + tl.arange(0, KEYS)
        seen = (key >= hidden) & (key < cached)
        at_key = key[:, None] * 2 * groups * size + own[None, :]
        there = seen[:, None] & (column < size)[None, :]
        k = tl.load(rows_at + at_key, mask=there, other=0.0).to(q.dtype)
        v = tl.load(rows_at + groups * size + at_key, mask=there, other=0.0).to(q.dtype)
        share = tl.where(
            seen[None, :], tl.exp(tl.dot(scaled, tl.trans(k), input_precision=_EXACT) - normaliser[:, None]), 0.0
        )
        grad_logit = share * (tl.dot(grad_taken, tl.trans(v), input_precision=_EXACT) - along[:, None])
        grad_scaled += tl.dot(grad_logit.to(q.dtype), k, input_precision=_EXACT)
    grad_scaled *= root
    tl.store(of_scale_at, tl.sum(grad_scaled * q.to(tl.float32), 0), mask=column < size)
    tl.store(grad_q_at + at, grad_scaled * of_keys[None, :], mask=inside)
