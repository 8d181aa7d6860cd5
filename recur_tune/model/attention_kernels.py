"""Queries, keys and values as Triton kernels: those of `kernels.py` for attention, each of which goes over memory once.

Shape suffixes: B lanes, T positions, C columns, D head size.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

import torch

from recur_tune.model.body import Turn
from recur_tune.model.jit import kernel, tl, triton
from recur_tune.model.passes import Total

_TALLER, _WIDE = 64, 64  # a block of a join, as it was fastest on an H200 for a hidden size of 768
_TALL = 32  # where heads are turned, each a block's width: after the shapes that were tried for other kernels


def turned(
    qkv_BTC: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, heads: int, back: bool = False
) -> torch.Tensor:
    """Rotary positions: the first so many heads turned, or turned back; the rest as it is."""
    qkv_BTC = qkv_BTC.contiguous()
    (rows, columns), (positions, size) = qkv_BTC.flatten(0, -2).shape, cos_TD.shape
    turned_BTC = torch.empty_like(qkv_BTC)
    _turned[(columns // size, triton.cdiv(rows, _TALL))](
        qkv_BTC, cos_TD.contiguous(), sin_TD.contiguous(), turned_BTC, rows, columns, positions, size // 2, heads,
        BACK=back, TALL=_TALL, BLOCK=triton.next_power_of_2(size // 2), num_warps=2,
    )  # fmt: skip
    return turned_BTC


@kernel
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
    turns = _of(head < heads, row, rows, column, half)
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
    (rows, wide), narrow = queries.flatten(0, -2).shape, keys.shape[-1]
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


@kernel
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


@kernel
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


@kernel
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


def pack(extra_BMC: torch.Tensor, x_BTC: torch.Tensor, seen_B: torch.Tensor | None) -> torch.Tensor:
    """A window's rows, and in their last columns what is inserted: before the window what a lane sees of it, counted
    from the last, and the rest behind; None: all is seen."""
    (lanes, inserted, columns), (_, positions, size) = extra_BMC.shape, x_BTC.shape
    packed_BSC = x_BTC.new_empty(lanes, inserted + positions, size)
    _pack[(lanes, inserted + positions)](
        x_BTC.contiguous(), extra_BMC.contiguous(), x_BTC if seen_B is None else seen_B, packed_BSC,
        positions, inserted, size, columns, BY_LANE=seen_B is not None, BLOCK=1024,
    )  # fmt: skip
    return packed_BSC


@kernel
def _pack(
    x_at, extra_at, seen_at, packed_at, positions, inserted, size, columns, BY_LANE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane, row, rows = tl.program_id(0).to(tl.int64), tl.program_id(1), positions + inserted
    seen = inserted
    if BY_LANE:
        seen = tl.load(seen_at + lane).to(tl.int32)
    source = row - seen
    is_own = (source >= 0) & (source < positions)
    of_extra = (row + inserted - seen) % rows  # what is not seen stands at the end
    x_at += (lane * positions + source) * size
    extra_at += (lane * inserted + of_extra) * columns - (size - columns)
    own_columns, first_extra = tl.where(is_own, size, 0), tl.where(is_own, size, size - columns)
    for first in range(0, size, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(x_at + column, mask=column < own_columns, other=0.0).to(tl.float32)
        inside = (column >= first_extra) & (column < size)
        value += tl.load(extra_at + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(packed_at + (lane * rows + row) * size + column, value, mask=column < size)


def packed_extra(packed_BSC: torch.Tensor, inserted: int, columns: int, seen_B: torch.Tensor | None) -> torch.Tensor:
    """What was inserted, so many rows and columns, of all that was packed."""
    lanes, rows, size = packed_BSC.shape
    extra_BMC = packed_BSC.new_empty(lanes, inserted, columns)
    _packed_extra[(lanes, inserted)](
        packed_BSC.contiguous(), packed_BSC if seen_B is None else seen_B, extra_BMC, rows, size, columns,
        BY_LANE=seen_B is not None, BLOCK=1024,
    )  # fmt: skip
    return extra_BMC


@kernel
def _packed_extra(
    packed_at, seen_at, extra_at, rows, size, columns, BY_LANE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane, row, inserted = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    place = row
    if BY_LANE:
        place = (row + tl.load(seen_at + lane).to(tl.int32) - inserted + rows) % rows
    packed_at += (lane * rows + place) * size + size - columns
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(packed_at + column, mask=column < columns, other=0.0)
        tl.store(extra_at + (lane * inserted + row) * columns + column, value, mask=column < columns)
