"""Fused Triton kernels of fast weights: reading and writing a layer's associative memories, and both backward passes.

What lies between the products of `module.py` is never stored: features, answers and their divisors are recomputed in
the backward pass. A program has the memory of one key-value head and sums over positions into it. Where heads are too
few for a GPU, several programs share a head's positions, and their sums are added up afterwards in a fixed order.

Shape suffixes: B batch rows, T positions, S sites, H query heads, G key-value heads, D head size, C columns.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from recur_tune.ops.triton.jit import kernel, tl, triton

WIDEST = 64  # head size; the matrices of wider heads do not fit into shared memory
_ROWS = 32  # positions of a block
_PROGRAMS = 256  # enough for every multiprocessor of a GPU
_SHORTEST = tl.constexpr(1e-12)  # lower bound of a length that is divided by, as in torch's normalize
# Products that enter the state are as exact as single precision; all others end in half precision.
_EXACT, _FAST = tl.constexpr("tf32x3"), tl.constexpr("tf32")


def read_memory(
    q_BHTD: torch.Tensor,
    out_BTC: torch.Tensor,
    gate_BH: torch.Tensor,
    memory_BGDD: torch.Tensor,
    sums_BGD: torch.Tensor | None,
    least: float,
) -> torch.Tensor:
    """Mix the memory's answers to the queries into the heads' outputs, by gates; without sums, the 'gated' rule."""
    return _Read.apply(q_BHTD, out_BTC, gate_BH, memory_BGDD, sums_BGD, least)


def write_memory(
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    memory_BSGDD: torch.Tensor,
    sums_BSGD: torch.Tensor | None,
    corrects: bool,
    least: float,
) -> tuple[Any, ...]:
    """What every site's keys and values, each [B, G, T, D], add to its memory, and to its sum of features.

    With `corrects`, the delta rule: a memory's own answers are subtracted from the values.
    """
    return _Written.apply(memory_BSGDD, sums_BSGD, corrects, least, *keys, *values)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, out: torch.Tensor, gate: torch.Tensor, memory: torch.Tensor,
        sums: torch.Tensor | None, least: float,
    ) -> torch.Tensor:  # fmt: skip
        q, out = _dense(q), out.contiguous()
        memory = memory if memory[0].is_contiguous() else memory.contiguous()
        sums = sums if sums is None or sums[0].is_contiguous() else sums.contiguous()
        (batch_size, heads, positions, size), groups = q.shape, memory.shape[1]
        mixed = torch.empty_like(out)
        _read[(triton.cdiv(positions, _ROWS), batch_size * heads)](
            q, *q.stride()[:3], out, gate, gate.stride(0), memory, memory.stride(0), *_sums(sums, memory), mixed,
            heads, heads // groups, positions, size, least,
            HAS_SUMS=sums is not None, **_blocks(size),
        )  # fmt: skip
        ctx.save_for_backward(q, out, gate, memory, sums)
        ctx.least = least
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mixed: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, out, gate, memory, sums = ctx.saved_tensors
        (batch_size, heads, positions, size), groups = q.shape, memory.shape[1]
        grad_q, grad_out, parts = _like(q), torch.empty_like(out), _parts(batch_size * groups, positions)
        grad_gate, grad_memory = gate.new_empty(parts, *gate.shape), memory.new_empty(parts, *memory.shape)
        grad_sums = None if sums is None else sums.new_empty(parts, *sums.shape)
        _read_backward[(batch_size * groups, parts)](
            q, *q.stride()[:3], out, gate, gate.stride(0), memory, memory.stride(0), *_sums(sums, memory),
            grad_mixed.contiguous(), grad_q, grad_out, grad_gate, grad_memory,
            grad_memory if grad_sums is None else grad_sums,
            groups, heads // groups, positions, size, ctx.least,
            HAS_SUMS=sums is not None, **_blocks(size),
        )  # fmt: skip
        return grad_q, grad_out, _whole(grad_gate), _whole(grad_memory), _whole(grad_sums), None


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, memory: torch.Tensor, sums: torch.Tensor | None, corrects: bool, least: float,
        *keys_values: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
        ctx.set_materialize_grads(False)
        memory, sums = memory.contiguous(), None if sums is None else sums.contiguous()
        keys_values = tuple(map(_dense, keys_values))
        batch_size, sites, groups, size, _ = memory.shape
        parts = _parts(batch_size * groups, keys_values[0].shape[2])
        written = memory.new_empty(parts, *memory.shape)
        features = None if sums is None else sums.new_empty(parts, *sums.shape)
        for site, (k, v) in enumerate(zip(keys_values[:sites], keys_values[sites:], strict=True)):
            of_site = (*_site(memory, sums, site), *_site(written, features, site))
            _write[(batch_size * groups, parts)](
                k, *k.stride()[:3], v, *v.stride()[:3], *of_site, memory.numel(), memory.stride(0), groups,
                k.shape[2], size, least,
                HAS_SUMS=sums is not None, CORRECTS=corrects, **_blocks(size),
            )  # fmt: skip
        ctx.save_for_backward(memory, sums, *keys_values)
        ctx.corrects, ctx.least = corrects, least
        return _whole(written), _whole(features)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_written: torch.Tensor | None, grad_features: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        memory, sums, *keys_values = ctx.saved_tensors
        batch_size, sites, groups, size, _ = memory.shape
        grad_written = torch.zeros_like(memory) if grad_written is None else grad_written.contiguous()
        if sums is not None:
            grad_features = torch.zeros_like(sums) if grad_features is None else grad_features.contiguous()
        parts = _parts(batch_size * groups, keys_values[0].shape[2])
        grad_memory = memory.new_empty(parts, *memory.shape) if ctx.corrects else None
        grad_sums = None if sums is None or grad_memory is None else sums.new_empty(parts, *sums.shape)
        gradients = [_like(one) for one in keys_values]
        for site, (k, v) in enumerate(zip(keys_values[:sites], keys_values[sites:], strict=True)):
            of_site = (
                *_site(memory, sums, site), *_site(grad_written, grad_features, site),
                *_site(memory if grad_memory is None else grad_memory, grad_sums, site),
            )  # fmt: skip
            _write_backward[(batch_size * groups, parts)](
                k, *k.stride()[:3], v, *v.stride()[:3], *of_site, gradients[site], gradients[sites + site],
                memory.numel(), memory.stride(0), groups, k.shape[2], size, ctx.least,
                HAS_SUMS=sums is not None, CORRECTS=ctx.corrects, **_blocks(size),
            )  # fmt: skip
        return _whole(grad_memory), _whole(grad_sums), None, None, *gradients


def _parts(memories: int, positions: int) -> int:
    """How many programs share a memory's positions."""
    return max(1, min(triton.cdiv(positions, _ROWS), _PROGRAMS // memories))


def _whole(parts: torch.Tensor | None) -> torch.Tensor | None:
    """The sum over programs."""
    return None if parts is None else parts[0] if len(parts) == 1 else parts.sum(0)


def _blocks(size: int) -> dict[str, int]:
    """Block shape, and the number of warps that was fastest with it: it fits into registers."""
    return {"ROWS": _ROWS, "BLOCK": max(16, triton.next_power_of_2(size)), "num_warps": 4}


def _dense(x_BHTD: torch.Tensor) -> torch.Tensor:
    """With a stride of 1 within heads."""
    return x_BHTD if x_BHTD.stride(-1) == 1 else x_BHTD.contiguous()


def _like(x_BHTD: torch.Tensor) -> torch.Tensor:
    """An empty gradient with a position's heads side by side, as the projection's backward pass reads them."""
    batch_size, heads, positions, size = x_BHTD.shape
    return x_BHTD.new_empty(batch_size, positions, heads, size).transpose(1, 2)


def _sums(sums: torch.Tensor | None, memory: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Sums and their stride between batch rows; where there are none, a tensor that is not read."""
    return (memory, 0) if sums is None else (sums, sums.stride(0))


def _site(memory: torch.Tensor, sums: torch.Tensor | None, site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One site's memory and sums; where programs have parts, the first part's."""
    return memory.select(-4, site), memory if sums is None else sums.select(-3, site)


@triton.jit
def _feature(x, inside, HAS_SUMS: tl.constexpr):
    """ELU + 1, or x divided by its length; and each row's 1 / length."""
    if HAS_SUMS:
        feature = tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0.0)))
        short = tl.sum(x, 1) * 0.0
    else:
        short = 1 / tl.maximum(tl.sqrt(tl.sum(x * x, 1)), _SHORTEST)
        feature = x * short[:, None]
    return tl.where(inside, feature, 0.0), short


@triton.jit
def _feature_backward(grad_feature, feature, x, short, HAS_SUMS: tl.constexpr):
    if HAS_SUMS:
        gradient = grad_feature * tl.where(x > 0, 1.0, feature)
    else:
        along = tl.where(short < 1 / _SHORTEST, tl.sum(grad_feature * feature, 1), 0.0)
        gradient = (grad_feature - feature * along[:, None]) * short[:, None]
    return gradient


@triton.jit
def _found(feature, memory, sums, least, HAS_SUMS: tl.constexpr, PRECISION: tl.constexpr):
    """A memory's answers to features, the inverse of their divisors, and whether these are above the lower bound."""
    found = tl.dot(feature, memory, input_precision=PRECISION)
    divisor = tl.sum(feature * sums[None, :], 1)
    inverse = 1 / tl.maximum(divisor, least)
    if HAS_SUMS:
        found = found * inverse[:, None]
    return found, inverse, divisor >= least


@triton.jit
def _found_backward(grad_found, found, inverse, counts, memory, sums, HAS_SUMS: tl.constexpr):
    """Gradients with respect to the product, the divisor and the features."""
    grad_divisor = tl.zeros_like(inverse)
    if HAS_SUMS:
        grad_divisor = tl.where(counts, -tl.sum(grad_found * found, 1) * inverse, 0.0)
        grad_found = grad_found * inverse[:, None]
    grad_feature = tl.dot(grad_found, tl.trans(memory), input_precision=_FAST) + grad_divisor[:, None] * sums[None, :]
    return grad_found, grad_divisor, grad_feature


@triton.jit
def _load_memory(memory_at, sums_at, size, HAS_SUMS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    inside = (row < size)[:, None] & (row < size)[None, :]
    memory = tl.load(memory_at + row[:, None] * size + row[None, :], mask=inside, other=0.0).to(tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    if HAS_SUMS:
        sums = tl.load(sums_at + row, mask=row < size, other=0.0).to(tl.float32)
    return memory, sums


@triton.jit
def _store_memory(memory_at, sums_at, memory, sums, size, HAS_SUMS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    inside = (row < size)[:, None] & (row < size)[None, :]
    tl.store(memory_at + row[:, None] * size + row[None, :], memory, mask=inside)
    if HAS_SUMS:
        tl.store(sums_at + row, sums, mask=row < size)


@kernel
def _read(
    q_at, q_batch, q_head, q_row, out_at, gate_at, gate_batch, memory_at, memory_batch, sums_at, sums_batch, mixed_at,
    heads, group, positions, size, least, HAS_SUMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < positions)[:, None] & (column < size)[None, :]
    own = head // group
    memory_at += batch * memory_batch + own * size * size
    memory, sums = _load_memory(memory_at, sums_at + batch * sums_batch + own * size, size, HAS_SUMS, BLOCK)
    q_at += batch * q_batch + head * q_head
    q = tl.load(q_at + row[:, None] * q_row + column[None, :], mask=inside, other=0.0).to(tl.float32)
    feature, _ = _feature(q, inside, HAS_SUMS)
    found, _, _ = _found(feature, memory, sums, least, HAS_SUMS, _FAST)
    at = (batch * positions + row[:, None]) * heads * size + head * size + column[None, :]
    out = tl.load(out_at + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_at + batch * gate_batch + head).to(tl.float32)
    tl.store(mixed_at + at, out + gate * (found - out), mask=inside)


@kernel
def _read_backward(
    q_at, q_batch, q_head, q_row, out_at, gate_at, gate_batch, memory_at, memory_batch, sums_at, sums_batch,
    grad_mixed_at, grad_q_at, grad_out_at, grad_gate_at, grad_memory_at, grad_sums_at, groups, group, positions, size,
    least, HAS_SUMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, own, column = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups, tl.arange(0, BLOCK)
    heads = groups * group
    memory_at += batch * memory_batch + own * size * size
    memory, sums = _load_memory(memory_at, sums_at + batch * sums_batch + own * size, size, HAS_SUMS, BLOCK)
    grad_memory, grad_sums = tl.zeros([BLOCK, BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for head in range(own * group, own * group + group):
        gate = tl.load(gate_at + batch * gate_batch + head).to(tl.float32)
        grad_gate = tl.zeros([BLOCK], tl.float32)
        for first in range(tl.program_id(1) * ROWS, positions, tl.num_programs(1) * ROWS):
            row = first + tl.arange(0, ROWS)
            inside = (row < positions)[:, None] & (column < size)[None, :]
            of_q = q_at + batch * q_batch + head * q_head + row[:, None] * q_row + column[None, :]
            q = tl.load(of_q, mask=inside, other=0.0).to(tl.float32)
            feature, short = _feature(q, inside, HAS_SUMS)
            found, inverse, counts = _found(feature, memory, sums, least, HAS_SUMS, _FAST)
            at = (batch * positions + row[:, None]) * heads * size + head * size + column[None, :]
            out = tl.load(out_at + at, mask=inside, other=0.0).to(tl.float32)
            grad_mixed = tl.load(grad_mixed_at + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(grad_out_at + at, (1 - gate) * grad_mixed, mask=inside)
            grad_gate += tl.sum(grad_mixed * (found - out), 0)
            grad_found, grad_divisor, grad_feature = _found_backward(
                gate * grad_mixed, found, inverse, counts, memory, sums, HAS_SUMS
            )
            grad_memory += tl.dot(tl.trans(feature), grad_found, input_precision=_FAST)
            grad_sums += tl.sum(feature * grad_divisor[:, None], 0)
            tl.store(grad_q_at + at, _feature_backward(grad_feature, feature, q, short, HAS_SUMS), mask=inside)
        batch_size = tl.num_programs(0) // groups
        tl.store(grad_gate_at + (tl.program_id(1) * batch_size + batch) * heads + head, tl.sum(grad_gate, 0))
    at = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * size
    _store_memory(grad_memory_at + at * size, grad_sums_at + at, grad_memory, grad_sums, size, HAS_SUMS, BLOCK)


@kernel
def _write(
    k_at, k_batch, k_head, k_row, v_at, v_batch, v_head, v_row, memory_at, sums_at, written_at, features_at,
    memory_part, memory_batch, groups, positions, size, least,
    HAS_SUMS: tl.constexpr, CORRECTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, own, column = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups, tl.arange(0, BLOCK)
    at_memory, at_sums = batch * memory_batch + own * size * size, batch * memory_batch // size + own * size
    part = tl.program_id(1).to(tl.int64) * memory_part
    memory, sums = _load_memory(memory_at + at_memory, sums_at + at_sums, size, HAS_SUMS, BLOCK)
    written, features = tl.zeros([BLOCK, BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(1) * ROWS, positions, tl.num_programs(1) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < positions)[:, None] & (column < size)[None, :]
        of_k = k_at + batch * k_batch + own * k_head + row[:, None] * k_row + column[None, :]
        of_v = v_at + batch * v_batch + own * v_head + row[:, None] * v_row + column[None, :]
        feature, _ = _feature(tl.load(of_k, mask=inside, other=0.0).to(tl.float32), inside, HAS_SUMS)
        delta = tl.load(of_v, mask=inside, other=0.0).to(tl.float32)
        if CORRECTS:
            found, _, _ = _found(feature, memory, sums, least, HAS_SUMS, _EXACT)
            delta -= found
        written += tl.dot(tl.trans(feature), delta, input_precision=_EXACT)
        features += tl.sum(feature, 0)
    _store_memory(
        written_at + part + at_memory, features_at + part // size + at_sums, written, features, size, HAS_SUMS, BLOCK
    )


@kernel
def _write_backward(
    k_at, k_batch, k_head, k_row, v_at, v_batch, v_head, v_row, memory_at, sums_at, grad_written_at, grad_features_at,
    grad_memory_at, grad_sums_at, grad_k_at, grad_v_at, memory_part, memory_batch, groups, positions, size, least,
    HAS_SUMS: tl.constexpr, CORRECTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, own, column = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups, tl.arange(0, BLOCK)
    at_memory, at_sums = batch * memory_batch + own * size * size, batch * memory_batch // size + own * size
    part = tl.program_id(1).to(tl.int64) * memory_part
    memory, sums = _load_memory(memory_at + at_memory, sums_at + at_sums, size, HAS_SUMS, BLOCK)
    grad_written, grad_features = _load_memory(
        grad_written_at + at_memory, grad_features_at + at_sums, size, HAS_SUMS, BLOCK
    )
    grad_memory, grad_sums = tl.zeros([BLOCK, BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(1) * ROWS, positions, tl.num_programs(1) * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < positions)[:, None] & (column < size)[None, :]
        of_k = k_at + batch * k_batch + own * k_head + row[:, None] * k_row + column[None, :]
        of_v = v_at + batch * v_batch + own * v_head + row[:, None] * v_row + column[None, :]
        k = tl.load(of_k, mask=inside, other=0.0).to(tl.float32)
        feature, short = _feature(k, inside, HAS_SUMS)
        delta = tl.load(of_v, mask=inside, other=0.0).to(tl.float32)
        grad_delta = tl.dot(feature, grad_written, input_precision=_FAST)
        at = (batch * positions + row[:, None]) * groups * size + own * size + column[None, :]
        tl.store(grad_v_at + at, grad_delta, mask=inside)
        grad_feature = tl.zeros([ROWS, BLOCK], tl.float32) + grad_features[None, :]
        if CORRECTS:
            found, inverse, counts = _found(feature, memory, sums, least, HAS_SUMS, _FAST)
            delta -= found
            grad_found, grad_divisor, grad_own = _found_backward(
                -grad_delta, found, inverse, counts, memory, sums, HAS_SUMS
            )
            grad_feature += grad_own
            grad_memory += tl.dot(tl.trans(feature), grad_found, input_precision=_FAST)
            grad_sums += tl.sum(feature * grad_divisor[:, None], 0)
        grad_feature += tl.dot(delta, tl.trans(grad_written), input_precision=_FAST)
        tl.store(grad_k_at + at, _feature_backward(grad_feature, feature, k, short, HAS_SUMS), mask=inside)
    if CORRECTS:
        _store_memory(
            grad_memory_at + part + at_memory, grad_sums_at + part // size + at_sums, grad_memory, grad_sums, size,
            HAS_SUMS, BLOCK,
        )  # fmt: skip
