"""Fused Triton kernels around attention: rotary position embeddings, inserted keys and values, gradients of heads.

`pointwise.py` has the others. Each reads and writes memory once.

Shape suffixes: B batch rows, T positions, C columns, D head size.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

import torch

from recur_tune.ops.body import CosSin
from recur_tune.ops.reference import Total
from recur_tune.ops.triton.jit import kernel, tl, triton

_TALLER, _WIDE = 64, 64  # block of `_join`: the fastest on an H200 for a hidden size of 768
_TALL = 32  # rows of a block of rotary kernels, which is a head wide: as other kernels have it
# Block of copies: 16 numbers a thread, 16 bytes a load, and enough programs for every multiprocessor.
_FEW, _LONG = 8, 512
_BATCH, _SHORT = 16, 128  # block of sums over batch rows


def apply_rotary(
    qkv_BTC: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, heads: int, inverse: bool = False
) -> torch.Tensor:
    """Rotary position embeddings of the first so many heads, or their inverse; the other heads stay as they are."""
    qkv_BTC = qkv_BTC.contiguous()
    (rows, columns), (positions, size) = qkv_BTC.flatten(0, -2).shape, cos_TD.shape
    rotated_BTC = torch.empty_like(qkv_BTC)
    _rotate[(columns // size, triton.cdiv(rows, _TALL))](
        qkv_BTC, cos_TD.contiguous(), sin_TD.contiguous(), rotated_BTC, rows, columns, positions, size // 2, heads,
        INVERSE=inverse, TALL=_TALL, BLOCK=triton.next_power_of_2(size // 2), num_warps=2,
    )  # fmt: skip
    return rotated_BTC


@kernel
def _rotate(
    qkv_at, cos_at, sin_at, rotated_at, rows, columns, positions, half, heads,
    INVERSE: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < half)[None, :]
    at = row.to(tl.int64)[:, None] * columns + head * 2 * half + column[None, :]
    first = tl.load(qkv_at + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(qkv_at + half + at, mask=inside, other=0.0).to(tl.float32)
    is_rotated = _inside_where(head < heads, row, rows, column, half)
    first, second = _rotate_pairs(
        first, second, cos_at, sin_at, (row % positions)[:, None], column[None, :], half, is_rotated, INVERSE
    )
    tl.store(rotated_at + at, first, mask=inside)
    tl.store(rotated_at + half + at, second, mask=inside)


@triton.jit
def _rotate_pairs(first, second, cos_at, sin_at, position, column, half, is_rotated, INVERSE: tl.constexpr):
    """Rotate pairs of numbers by their positions' angles, of which both halves of the tables are equal."""
    at = position * 2 * half + column
    cos = tl.load(cos_at + at, mask=is_rotated, other=1.0).to(tl.float32)
    sin = tl.load(sin_at + at, mask=is_rotated, other=0.0).to(tl.float32)
    if INVERSE:
        sin = -sin
    return first * cos - second * sin, second * cos + first * sin


def join(
    parts: tuple[torch.Tensor, ...],
    total: Total,
    cos_sin: CosSin | None = None,
    down: int | torch.Tensor = 0,
    rows: int | None = None,
) -> torch.Tensor:
    """Gradients of queries, keys and values side by side; with `cos_sin` the first two are rotated back."""
    queries, keys, values = (part.contiguous() for part in parts)
    (batch_size, source_rows, wide), narrow, per_row = queries.shape, keys.shape[-1], isinstance(down, torch.Tensor)
    positions = source_rows if rows is None else rows
    joined, count = queries.new_empty(batch_size, positions, wide + 2 * narrow), batch_size * positions
    given = (
        queries, keys, values, joined, queries if total is None else total, down if per_row else queries,
        0 if per_row else down, count, positions, source_rows,
    )  # fmt: skip
    if cos_sin is None:
        _join[(triton.cdiv(wide, _WIDE), 3, triton.cdiv(count, _TALLER))](
            *given, wide, narrow, PER_ROW=per_row, HAS_TOTAL=total is not None, TALL=_TALLER, WIDE=_WIDE, num_warps=2
        )
    else:
        cos_TD, sin_TD = (one.contiguous() for one in cos_sin)
        size = cos_TD.shape[1]
        _join_rotary[((wide + 2 * narrow) // size, triton.cdiv(count, _TALL))](
            *given, cos_TD, sin_TD, size // 2, wide // size, narrow // size, PER_ROW=per_row,
            HAS_TOTAL=total is not None, TALL=_TALL, BLOCK=triton.next_power_of_2(size // 2), num_warps=2,
        )  # fmt: skip
    return joined


@kernel
def _join(
    queries_at, keys_at, values_at, joined_at, total_at, downs_at, down, rows, positions, source_rows, wide, narrow,
    PER_ROW: tl.constexpr, HAS_TOTAL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    column, part = tl.program_id(0) * WIDE + tl.arange(0, WIDE), tl.program_id(1)
    row = tl.program_id(2) * TALL + tl.arange(0, TALL)
    source = _source(row, rows, positions, source_rows, downs_at, down, PER_ROW)[:, None]
    at, at_queries = source * narrow + column[None, :], source * wide + column[None, :]
    # Masks let only one of the three be loaded.
    value = tl.load(queries_at + at_queries, mask=_inside_where(part == 0, row, rows, column, wide), other=0.0)
    value += tl.load(keys_at + at, mask=_inside_where(part == 1, row, rows, column, narrow), other=0.0)
    value += tl.load(values_at + at, mask=_inside_where(part == 2, row, rows, column, narrow), other=0.0)
    begin, size = tl.where(part == 0, 0, wide + (part - 1) * narrow), tl.where(part == 0, wide, narrow)
    at = row.to(tl.int64)[:, None] * (wide + 2 * narrow) + begin + column[None, :]
    tl.store(joined_at + at, value, mask=(row < rows)[:, None] & (column < size)[None, :])
    if HAS_TOTAL:
        of_columns = tl.sum(value.to(tl.float32), 0)
        tl.atomic_add(total_at + begin + column, of_columns, mask=column < size, sem="relaxed")


@triton.jit
def _source(row, rows, positions, source_rows, downs_at, down, PER_ROW: tl.constexpr):
    """Rows of packed windows that windows' own rows come from."""
    batch = row // positions
    if PER_ROW:
        down = tl.load(downs_at + batch, mask=row < rows, other=0)
    return batch.to(tl.int64) * source_rows + row % positions + down


@triton.jit
def _inside_where(wanted, row, rows, column, columns):
    """The elements of a block that are inside; none where it is not wanted."""
    return (row < tl.where(wanted, rows, 0))[:, None] & (column < columns)[None, :]


@kernel
def _join_rotary(
    queries_at, keys_at, values_at, joined_at, total_at, downs_at, down, rows, positions, source_rows, cos_at, sin_at,
    half, heads, shared_heads,
    PER_ROW: tl.constexpr, HAS_TOTAL: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, row, column = tl.program_id(0), tl.program_id(1) * TALL + tl.arange(0, TALL), tl.arange(0, BLOCK)
    is_rotated, inside = head < heads + shared_heads, (row < rows)[:, None] & (column < half)[None, :]
    of_queries, of_values = (
        _inside_where(head < heads, row, rows, column, half),
        _inside_where(is_rotated == 0, row, rows, column, half),
    )
    of_keys = _inside_where(is_rotated & (head >= heads), row, rows, column, half)
    source = _source(row, rows, positions, source_rows, downs_at, down, PER_ROW)[:, None]
    wide = head * 2 * half + column[None, :]
    at_queries = source * heads * 2 * half + wide
    at_keys = source * shared_heads * 2 * half + wide - heads * 2 * half
    at_values = at_keys - shared_heads * 2 * half
    # Masks let only one of the three be loaded.
    first = tl.load(queries_at + at_queries, mask=of_queries, other=0.0).to(tl.float32)
    first += tl.load(keys_at + at_keys, mask=of_keys, other=0.0).to(tl.float32)
    first += tl.load(values_at + at_values, mask=of_values, other=0.0).to(tl.float32)
    second = tl.load(queries_at + half + at_queries, mask=of_queries, other=0.0).to(tl.float32)
    second += tl.load(keys_at + half + at_keys, mask=of_keys, other=0.0).to(tl.float32)
    second += tl.load(values_at + half + at_values, mask=of_values, other=0.0).to(tl.float32)
    first, second = _rotate_pairs(
        first, second, cos_at, sin_at, (row % positions)[:, None], column[None, :], half,
        _inside_where(is_rotated, row, rows, column, half), INVERSE=True,
    )  # fmt: skip
    at = row.to(tl.int64)[:, None] * (heads + 2 * shared_heads) * 2 * half + wide
    tl.store(joined_at + at, first, mask=inside)
    tl.store(joined_at + half + at, second, mask=inside)
    if HAS_TOTAL:
        total_at += head * 2 * half + column
        tl.atomic_add(total_at, tl.sum(first, 0), mask=column < half, sem="relaxed")
        tl.atomic_add(total_at + half, tl.sum(second, 0), mask=column < half, sem="relaxed")


def move(x_BTC: torch.Tensor, down: int | torch.Tensor, rows: int) -> torch.Tensor:
    """Shift positions by `down`, one number for all batch rows or one for each, into `rows` positions of zeros."""
    batch_size, source_rows, size = x_BTC.shape
    moved_BTC, per_row = x_BTC.new_empty(batch_size, rows, size), isinstance(down, torch.Tensor)
    _move[(batch_size, triton.cdiv(rows, _FEW), triton.cdiv(size, _LONG))](
        x_BTC.contiguous(), down if per_row else x_BTC, moved_BTC, source_rows, rows, size, 0 if per_row else down,
        PER_ROW=per_row, TALL=_FEW, WIDE=_LONG,
    )  # fmt: skip
    return moved_BTC


@kernel
def _move(
    x_at, downs_at, moved_at, source_rows, rows, size, down,
    PER_ROW: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    batch, row = tl.program_id(0).to(tl.int64), tl.program_id(1) * TALL + tl.arange(0, TALL)
    column = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    if PER_ROW:
        down = tl.load(downs_at + batch)
    source = row - down
    there = ((source >= 0) & (source < source_rows))[:, None] & (column < size)[None, :]
    value = tl.load(x_at + (batch * source_rows + source[:, None]) * size + column[None, :], mask=there, other=0.0)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    tl.store(moved_at + (batch * rows + row[:, None]) * size + column[None, :], value, mask=inside)


def pack(
    extra_BMC: torch.Tensor, x_BTC: torch.Tensor, seen_B: torch.Tensor | None, places_MC: torch.Tensor | None
) -> torch.Tensor:
    """Queries, keys and values of a window with inserted keys and values, which are their last columns."""
    (batch_size, inserted, columns), (_, positions, size) = extra_BMC.shape, x_BTC.shape
    packed_BSC = x_BTC.new_empty(batch_size, inserted + positions, size)
    extra_BMC = extra_BMC if extra_BMC[0].is_contiguous() else extra_BMC.contiguous()
    _pack[(batch_size, triton.cdiv(inserted + positions, _FEW), triton.cdiv(size, _LONG))](
        x_BTC.contiguous(), extra_BMC, extra_BMC.stride(0), x_BTC if places_MC is None else places_MC.contiguous(),
        x_BTC if seen_B is None else seen_B, packed_BSC, positions, inserted, size, columns,
        PER_ROW=seen_B is not None, HAS_PLACES=places_MC is not None, TALL=_FEW, WIDE=_LONG,
    )  # fmt: skip
    return packed_BSC


@kernel
def _pack(
    x_at, extra_at, extra_stride, places_at, seen_at, packed_at, positions, inserted, size, columns,
    PER_ROW: tl.constexpr, HAS_PLACES: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    batch, row, rows = tl.program_id(0).to(tl.int64), tl.program_id(1) * TALL + tl.arange(0, TALL), positions + inserted
    column = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    seen = inserted
    if PER_ROW:
        seen = tl.load(seen_at + batch).to(tl.int32)
    source, of_extra = row - seen, column - (size - columns)
    is_own = (source >= 0) & (source < positions)
    own = (is_own & (row < rows))[:, None] & (column < size)[None, :]
    value = tl.load(x_at + (batch * positions + source[:, None]) * size + column[None, :], mask=own, other=0.0)
    value = value.to(tl.float32)
    there = ((is_own == 0) & (row < rows))[:, None] & ((of_extra >= 0) & (column < size))[None, :]
    at = (
        batch * extra_stride + ((row + inserted - seen) % rows)[:, None] * columns
    )  # rows that are not seen stand at the end
    value += tl.load(extra_at + at + of_extra[None, :], mask=there, other=0.0).to(tl.float32)
    if HAS_PLACES:
        seen_there = there & (row < seen)[:, None]
        at = row[:, None] * columns + of_extra[None, :]
        value += tl.load(places_at + at, mask=seen_there, other=0.0).to(tl.float32)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    tl.store(packed_at + (batch * rows + row[:, None]) * size + column[None, :], value, mask=inside)


def grad_extra(parts: tuple[torch.Tensor, ...], inserted: int, seen_B: torch.Tensor | None) -> torch.Tensor:
    """The gradient with respect to the inserted rows, from those of all keys and values, each [B, S, C]."""
    keys, values = (part.contiguous() for part in parts)
    batch_size, rows, narrow = keys.shape
    grad_extra_BMC = keys.new_empty(batch_size, inserted, 2 * narrow)
    _grad_extra[(batch_size, triton.cdiv(inserted, _FEW), triton.cdiv(2 * narrow, _LONG))](
        keys, values, keys if seen_B is None else seen_B, grad_extra_BMC, rows, inserted, narrow,
        PER_ROW=seen_B is not None, TALL=_FEW, WIDE=_LONG,
    )  # fmt: skip
    return grad_extra_BMC


@kernel
def _grad_extra(
    keys_at, values_at, seen_at, grad_extra_at, rows, inserted, narrow,
    PER_ROW: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    batch, row = tl.program_id(0).to(tl.int64), tl.program_id(1) * TALL + tl.arange(0, TALL)
    column, place = tl.program_id(2) * WIDE + tl.arange(0, WIDE), row
    if PER_ROW:
        place = (row + tl.load(seen_at + batch).to(tl.int32) - inserted + rows) % rows
    value = _key_or_value(
        keys_at, values_at, (batch * rows + place)[:, None], (row < inserted)[:, None], column, narrow
    )
    inside = (row < inserted)[:, None] & (column < 2 * narrow)[None, :]
    tl.store(grad_extra_at + (batch * inserted + row[:, None]) * 2 * narrow + column[None, :], value, mask=inside)


@triton.jit
def _key_or_value(keys_at, values_at, row, wanted, column, narrow):
    """These columns of keys and values side by side; masks let only one of the two be loaded."""
    of_key, of_value = (column < narrow)[None, :], ((column >= narrow) & (column < 2 * narrow))[None, :]
    value = tl.load(keys_at + row * narrow + column[None, :], mask=wanted & of_key, other=0.0)
    value += tl.load(values_at + row * narrow + (column - narrow)[None, :], mask=wanted & of_value, other=0.0)
    return value


def grad_places(
    parts: tuple[torch.Tensor, ...], inserted: int, seen_B: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The gradient with respect to what the first places add, in `dtype`."""
    keys, values = (part.contiguous() for part in parts)
    batch_size, rows, narrow = keys.shape
    grad_places_MC = keys.new_empty(inserted, 2 * narrow, dtype=dtype)
    _grad_places[(inserted, triton.cdiv(2 * narrow, _SHORT))](
        keys, values, keys if seen_B is None else seen_B, grad_places_MC, batch_size, rows, inserted, narrow,
        PER_ROW=seen_B is not None, BATCH=_BATCH, WIDE=_SHORT,
    )  # fmt: skip
    return grad_places_MC


@kernel
def _grad_places(
    keys_at, values_at, seen_at, grad_places_at, batch_size, rows, inserted, narrow,
    PER_ROW: tl.constexpr, BATCH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    place, column = tl.program_id(0), tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros([BATCH, WIDE], tl.float32)
    for first in range(0, batch_size, BATCH):
        batch = first + tl.arange(0, BATCH)
        sees = batch < batch_size
        if PER_ROW:
            sees &= place < tl.load(seen_at + batch, mask=sees, other=0)
        row = (batch.to(tl.int64) * rows + place)[:, None]
        total += _key_or_value(keys_at, values_at, row, sees[:, None], column, narrow).to(tl.float32)
    tl.store(grad_places_at + place * 2 * narrow + column, tl.sum(total, 0), mask=column < 2 * narrow)
