"""Fused Triton kernels of the gated delta rule: many positions are written into matrices, and the backward pass.

The equations are those of `rule.py`. A program has one matrix and goes over its chunks one after the other; in the
backward pass from the last one back, where it makes a chunk's corrections again from the matrix that the chunk began
with. So a chunk's triangular systems are never stored. They are solved by forward substitution: keys of a text are
alike, and then a Neumann series cancels.

Shape suffixes: X matrices, N positions, C chunks, D head size.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from recur_tune.ops.triton.jit import kernel, tl, triton

WIDEST = 64  # head size; of wider heads the matrices of a program would not fit into its registers
_EXACT = tl.constexpr("tf32x3")  # what enters the state is as exact as single precision


def written(
    state_XDD: torch.Tensor | None,
    k_XND: torch.Tensor,
    v_XND: torch.Tensor,
    beta_XN: torch.Tensor,
    log_alpha_XN: torch.Tensor,
    chunk: int,
) -> torch.Tensor:
    """The matrix after all positions; None: it was zero. Keys and values have no gradient."""
    return _Written.apply(state_XDD, k_XND, v_XND, beta_XN, log_alpha_XN, chunk, torch.is_grad_enabled())


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, state: torch.Tensor | None, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor,
        log_alpha: torch.Tensor, chunk: int, keeps_begins: bool,
    ) -> torch.Tensor:  # fmt: skip
        k, v, beta, log_alpha = (one.contiguous() for one in (k, v, beta, log_alpha))
        state = None if state is None else state.contiguous()
        (count, positions, size), chunks = k.shape, triton.cdiv(k.shape[1], chunk) if keeps_begins else 0
        begins_XCDD, left_XDD = k.new_empty(count, chunks, size, size), k.new_empty(count, size, size)
        _write_chunks[(count,)](
            k if state is None else state, k, v, beta, log_alpha, begins_XCDD, left_XDD, positions, size, chunk,
            HAS_STATE=state is not None, KEEPS_BEGINS=keeps_begins, **_blocks(chunk, size),
        )  # fmt: skip
        ctx.save_for_backward(k, v, beta, log_alpha, begins_XCDD)
        ctx.chunk, ctx.has_state = chunk, state is not None
        return left_XDD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_left: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        k, v, beta, log_alpha, begins_XCDD = ctx.saved_tensors
        (count, positions, size), grad_left = k.shape, grad_left.contiguous()
        grad_state, grad_beta, grad_log_alpha = map(torch.empty_like, (grad_left, beta, log_alpha))
        _write_chunks_backward[(count,)](
            k, v, beta, log_alpha, begins_XCDD, grad_left, grad_state, grad_beta, grad_log_alpha, positions, size,
            ctx.chunk, **_blocks(ctx.chunk, size),
        )  # fmt: skip
        return grad_state if ctx.has_state else None, None, None, grad_beta, grad_log_alpha, None, None


def _blocks(chunk: int, size: int) -> dict[str, int]:
    rows, columns = (max(16, triton.next_power_of_2(one)) for one in (chunk, size))
    return {"ROWS": rows, "BLOCK": columns, "num_warps": 4}


@kernel
def _write_chunks(
    state_at, k_at, v_at, beta_at, log_alpha_at, begins_at, left_at, positions, size, chunk,
    HAS_STATE: tl.constexpr, KEEPS_BEGINS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    matrix, row, column = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS), tl.arange(0, BLOCK)
    at, there = _square(size, column)
    state = tl.zeros([BLOCK, BLOCK], tl.float32)
    if HAS_STATE:
        state = tl.load(state_at + matrix * size * size + at, mask=there, other=0.0)
    chunks = tl.cdiv(positions, chunk)
    for number in range(0, chunks):
        if KEEPS_BEGINS:
            tl.store(begins_at + (matrix * chunks + number) * size * size + at, state, mask=there)
        _, k, v, beta, log_alpha = _rows(
            k_at, v_at, beta_at, log_alpha_at, matrix, number, positions, size, chunk, row, column
        )
        log_gamma, end = tl.cumsum(log_alpha, 0), tl.sum(log_alpha, 0)
        error = v - tl.exp(log_gamma)[:, None] * tl.dot(k, state, input_precision=_EXACT)
        system = beta[:, None] * _shared(k, log_gamma, row)
        correction = _solved(system, beta[:, None] * error, row, chunk)
        fading = tl.exp(end - log_gamma)[:, None]
        state = tl.exp(end) * state + tl.dot(tl.trans(k), fading * correction, input_precision=_EXACT)
    tl.store(left_at + matrix * size * size + at, state, mask=there)


@kernel
def _write_chunks_backward(
    k_at, v_at, beta_at, log_alpha_at, begins_at, grad_left_at, grad_state_at, grad_beta_at, grad_log_alpha_at,
    positions, size, chunk, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    matrix, row, column = tl.program_id(0).to(tl.int64), tl.arange(0, ROWS), tl.arange(0, BLOCK)
    at, there = _square(size, column)
    grad = tl.load(grad_left_at + matrix * size * size + at, mask=there, other=0.0)
    chunks = tl.cdiv(positions, chunk)
    for behind in range(0, chunks):
        number = chunks - 1 - behind
        inside, k, v, beta, log_alpha = _rows(
            k_at, v_at, beta_at, log_alpha_at, matrix, number, positions, size, chunk, row, column
        )
        log_gamma, end = tl.cumsum(log_alpha, 0), tl.sum(log_alpha, 0)
        gamma, begin = tl.exp(log_gamma)[:, None], (matrix * chunks + number) * size * size
        state = tl.load(begins_at + begin + at, mask=there, other=0.0)
        known = gamma * tl.dot(k, state, input_precision=_EXACT)
        shared = _shared(k, log_gamma, row)
        system = beta[:, None] * shared
        correction = _solved(system, beta[:, None] * (v - known), row, chunk)
        grad_correction = tl.exp(end - log_gamma)[:, None] * tl.dot(k, grad, input_precision=_EXACT)
        faded = tl.sum(grad_correction * correction, 1)
        grad_right = _solved_transposed(system, grad_correction, row, chunk)
        grad_shared = -tl.dot(grad_right, tl.trans(correction), input_precision=_EXACT) * shared
        grad_beta = tl.sum(grad_right * (v - known), 1) + tl.sum(grad_shared, 1)
        grad_system, grad_error = beta[:, None] * grad_shared, beta[:, None] * grad_right
        grad_log_gamma = tl.sum(grad_system, 1) - tl.sum(grad_system, 0) - faded - tl.sum(grad_error * known, 1)
        grad_end = tl.sum(faded, 0) + tl.exp(end) * tl.sum(tl.sum(grad * state, 1), 0)
        # A logarithm of α is in that of γ from its position on, and in the chunk's end.
        later = tl.sum(grad_log_gamma, 0) - tl.cumsum(grad_log_gamma, 0) + grad_log_gamma
        at_row = matrix * positions + number * chunk + row
        tl.store(grad_beta_at + at_row, grad_beta, mask=inside)
        tl.store(grad_log_alpha_at + at_row, later + grad_end, mask=inside)
        grad = tl.exp(end) * grad - tl.dot(tl.trans(k), gamma * grad_error, input_precision=_EXACT)
    tl.store(grad_state_at + matrix * size * size + at, grad, mask=there)


@triton.jit
def _square(size, column):
    """Where the numbers of a matrix are."""
    there = (column < size)[:, None] & (column < size)[None, :]
    return column[:, None] * size + column[None, :], there


@triton.jit
def _rows(k_at, v_at, beta_at, log_alpha_at, matrix, number, positions, size, chunk, row, column):
    """A chunk's positions; behind its end nothing is written and nothing fades."""
    position = number * chunk + row
    inside = (row < chunk) & (position < positions)
    there = inside[:, None] & (column < size)[None, :]
    at_row = matrix * positions + position
    at = at_row[:, None] * size + column[None, :]
    k = tl.load(k_at + at, mask=there, other=0.0)
    v = tl.load(v_at + at, mask=there, other=0.0)
    beta = tl.load(beta_at + at_row, mask=inside, other=0.0)
    return inside, k, v, beta, tl.load(log_alpha_at + at_row, mask=inside, other=0.0)


@triton.jit
def _shared(k, log_gamma, row):
    """Products of each key with the earlier ones, as far as these have not faded."""
    faded = tl.where(row[:, None] > row[None, :], tl.exp(log_gamma[:, None] - log_gamma[None, :]), 0.0)
    return faded * tl.dot(k, tl.trans(k), input_precision=_EXACT)


@triton.jit
def _solved(system, right, row, chunk):
    """Forward substitution: X with (1 + A) X = R, where A is strictly lower. A row's X is known when its turn comes."""
    for turn in range(0, chunk):
        of_turn = row == turn
        known = tl.sum(tl.where(of_turn[:, None], right, 0.0), 0)
        right -= tl.sum(tl.where(of_turn[None, :], system, 0.0), 1)[:, None] * known[None, :]
    return right


@triton.jit
def _solved_transposed(system, right, row, chunk):
    """Back substitution: X with (1 + A)ᵀ X = R, from the last row back."""
    for behind in range(0, chunk):
        of_turn = row == chunk - 1 - behind
        known = tl.sum(tl.where(of_turn[:, None], right, 0.0), 0)
        right -= tl.sum(tl.where(of_turn[:, None], system, 0.0), 0)[:, None] * known[None, :]
    return right
