"""Fused Triton kernels of cached rows: which keys differ most, the rows that stay, and the numbers of quantised rows.

A program has a part of some rows: a key-value head's keys, or its values, which stand behind the keys of all heads. It
is a tile of rows, groups and numbers of a group: the numbers that share a step where rows are quantised, else all. The
format of quantised rows is described in `quantised.py`. No gradient goes back to rows.

Candidates are counted as in `keep.py`: the cache's rows and behind them the window's own.

Shape suffixes: B batch rows, T positions, S sites (layers that keep rows), M rows, G key-value heads, D head size, C
columns (bytes of quantised rows), N candidates, P places.
"""

# mypy: allow-untyped-defs
# (Triton reads a kernel's annotations, and has none for a place in memory.)

from __future__ import annotations

import torch

from recur_tune.ops.triton.jit import kernel, tl, triton
from recur_tune.recurrences.cache.row_size import AS_READ, group_size, row_columns

Places = tuple[torch.Tensor, torch.Tensor | None]

_COPIED, _COMPARED = 2048, 8192  # numbers of a tile: rows that are copied, and keys, which one program compares
_SHORTEST = tl.constexpr(1e-12)  # length that a key is divided by, as in torch's `normalize`
_WHOLE = tl.constexpr(12582912.0)  # 1.5 * 2^23: a sum with it has no fraction, and was rounded half to even


def key_differences(
    rows_BMC: torch.Tensor,
    filled_B: torch.Tensor,
    k_BGTD: torch.Tensor,
    count: int,
    places: Places | None,
    bits: int,
) -> torch.Tensor:
    """`keep.key_difference` of a layer's rows and of the window's first `count` positions, [B, G, N].

    `places` [P, C] is subtracted from the window's keys; its second tensor is the place of each batch row's first
    position, None: 0.
    """
    k_BGTD = k_BGTD if k_BGTD.stride(-1) == 1 else k_BGTD.contiguous()
    rows_BMC = rows_BMC if rows_BMC[0].is_contiguous() else rows_BMC.contiguous()
    (batch_size, groups, _, size), kept = k_BGTD.shape, rows_BMC.shape[1]
    score_BGN = filled_B.new_empty(batch_size, groups, kept + count, dtype=torch.float32)
    places_PC, moved_B = (None, None) if places is None else places
    _differ[(batch_size, groups)](
        rows_BMC, rows_BMC.stride(0), filled_B, k_BGTD, *k_BGTD.stride()[:3],
        rows_BMC if places_PC is None else places_PC, filled_B if moved_B is None else moved_B, score_BGN,
        count, kept, groups, HAS_PLACES=places_PC is not None, HAS_MOVED=moved_B is not None,
        **_tile(size, bits, _COMPARED), num_warps=8,
    )  # fmt: skip
    return score_BGN


def keep_rows(
    rows_BSMC: torch.Tensor,
    filled_B: torch.Tensor,
    own: list[tuple[torch.Tensor, ...]],
    count: int,
    sinks: int,
    places: Places | None,
    dtype: torch.dtype,
    bits: int,
    chosen_BSGM: torch.Tensor | None,
) -> torch.Tensor:
    """The cache's next rows: of its filled rows and the window's first `count`, the document's first `sinks` rows and
    the last of all; or those of all candidates that were chosen.

    A site's own rows are keys and values [B, G, T, D]. `places` [S, P, C] is subtracted from them; its second tensor is
    the place of each batch row's first position, None: 0.
    """
    (batch_size, _, kept, _), (groups, _, size) = rows_BSMC.shape, own[0][0].shape[1:]
    rows_BSMC, next_BSMC = rows_BSMC.contiguous(), rows_BSMC.new_empty(rows_BSMC.shape, dtype=dtype)
    places_SPC, moved_B = (None, None) if places is None else places
    chosen_BSGM, tile = None if chosen_BSGM is None else chosen_BSGM.contiguous(), _tile(size, bits, _COPIED)
    for site, (k, v) in enumerate(own):
        k, v = (one if one.stride(-1) == 1 else one.contiguous() for one in (k, v))
        chosen_BGM = filled_B if chosen_BSGM is None else chosen_BSGM[:, site]
        _keep[(batch_size, triton.cdiv(kept, tile["TALL"]), 2 * groups)](
            rows_BSMC[:, site], next_BSMC[:, site], rows_BSMC.stride(0), filled_B, chosen_BGM, chosen_BGM.stride(0),
            k, *k.stride()[:3], v, *v.stride()[:3], rows_BSMC if places_SPC is None else places_SPC[site],
            filled_B if moved_B is None else moved_B, count, sinks, kept, groups,
            IS_CHOSEN=chosen_BSGM is not None, HAS_PLACES=places_SPC is not None, HAS_MOVED=moved_B is not None, **tile,
        )  # fmt: skip
    return next_BSMC


def dequantised(rows_BMC: torch.Tensor, head_size: int, bits: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of bytes as rows of numbers."""
    rows_BMC = rows_BMC if rows_BMC[0].is_contiguous() else rows_BMC.contiguous()
    (batch_size, rows, width), tile = rows_BMC.shape, _tile(head_size, bits, _COPIED)
    parts = width // tile["WIDTH"]
    numbers_BMC = rows_BMC.new_empty(batch_size, rows, parts * head_size, dtype=dtype)
    _dequantise[(batch_size, triton.cdiv(rows, tile["TALL"]), parts)](
        rows_BMC, rows_BMC.stride(0), numbers_BMC, rows, parts, **tile
    )
    return numbers_BMC


def _tile(size: int, bits: int, numbers: int) -> dict[str, int]:
    """How a head's part of a row is laid out, and tiles of at most so many numbers."""
    span = size if bits == AS_READ else group_size(size)
    groups, block = triton.next_power_of_2(size // span), triton.next_power_of_2(span)
    return {
        "BITS": bits, "SIZE": size, "SPAN": span, "WIDTH": row_columns(size, 1, bits) // 2,
        "GROUPS": groups, "BLOCK": block, "TALL": max(1, numbers // (groups * block)),
    }  # fmt: skip


@kernel
def _differ(
    rows_at, rows_batch, filled_at, k_at, k_batch, k_head, k_row, places_at, moved_at, score_at, count, kept, heads,
    HAS_PLACES: tl.constexpr, HAS_MOVED: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr, SPAN: tl.constexpr,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, TALL: tl.constexpr,
):  # fmt: skip
    batch, head, candidates = tl.program_id(0).to(tl.int64), tl.program_id(1), kept + count
    hidden = kept - tl.load(filled_at + batch).to(tl.int32)
    rows_at += batch * rows_batch + head * WIDTH
    k_at += batch * k_batch + head * k_head
    places_at += _first_place(moved_at, batch, HAS_MOVED) * 2 * heads * SIZE + head * SIZE
    total = tl.zeros([GROUPS, BLOCK], tl.float32)
    for first in range(hidden // TALL * TALL, candidates, TALL):
        number = (first + tl.arange(0, TALL))[:, None, None]
        direction = _directions(
            rows_at, k_at, k_row, places_at, number, kept, candidates, heads,
            HAS_PLACES, BITS, SIZE, SPAN, WIDTH, GROUPS, BLOCK,
        )  # fmt: skip
        total += tl.sum(tl.where(number >= hidden, direction, 0.0), 0)
    mean = total / tl.maximum(tl.sqrt(tl.sum(tl.sum(total * total, 1), 0)), _SHORTEST)
    score_at += (batch * heads + head) * candidates
    for first in range(0, candidates, TALL):
        number = first + tl.arange(0, TALL)
        direction = _directions(
            rows_at, k_at, k_row, places_at, number[:, None, None], kept, candidates, heads,
            HAS_PLACES, BITS, SIZE, SPAN, WIDTH, GROUPS, BLOCK,
        )  # fmt: skip
        cosine = tl.sum(tl.sum(direction * mean[None, :, :], 2), 1)
        tl.store(score_at + number, -cosine, mask=number < candidates)


@triton.jit
def _directions(
    rows_at, k_at, k_row, places_at, number, kept, candidates, heads, HAS_PLACES: tl.constexpr, BITS: tl.constexpr,
    SIZE: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys of candidates, each of length 1."""
    at = rows_at + number.to(tl.int64) * 2 * heads * WIDTH
    key = _numbers(at, number < kept, BITS, SIZE, SPAN, GROUPS, BLOCK)
    is_own = (number >= kept) & (number < candidates)
    own = _own(k_at, k_row, places_at, number - kept, is_own, 2 * heads * SIZE, HAS_PLACES, SIZE, SPAN, GROUPS, BLOCK)
    if BITS == 16:
        key += own
    else:  # as it is stored: a key's codes must not make it differ from its equal
        code, scales = _quantised(own, BITS, SPAN, BLOCK)
        low, step = _low_and_step(scales)
        _, there = _channels(SIZE, SPAN, GROUPS, BLOCK)
        key += tl.where(there & is_own, low + code.to(tl.float32) * step, 0.0)
    length = tl.sqrt(tl.sum(tl.sum(key * key, 2), 1))[:, None, None]
    return key / tl.maximum(length, _SHORTEST)


@kernel
def _keep(
    rows_at, next_at, rows_batch, filled_at, chosen_at, chosen_batch, k_at, k_batch, k_head, k_row,
    v_at, v_batch, v_head, v_row, places_at, moved_at, count, sinks, kept, heads,
    IS_CHOSEN: tl.constexpr, HAS_PLACES: tl.constexpr, HAS_MOVED: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr,
    SPAN: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, TALL: tl.constexpr,
):  # fmt: skip
    batch, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    row, head = tl.program_id(1) * TALL + tl.arange(0, TALL), part % heads
    # The number of each row's candidate.
    if IS_CHOSEN:
        at_chosen = chosen_at + batch * chosen_batch + head * kept + row
        number = tl.load(at_chosen, mask=row < kept, other=0).to(tl.int32)
    else:
        filled = tl.load(filled_at + batch).to(tl.int32)
        number = row - tl.maximum(kept - filled - count, 0)  # among those that are filled
        number += tl.where(number >= sinks, tl.maximum(filled + count - kept, 0), 0)
        number += kept - filled
    number, inside = number[:, None, None], (row < kept)[:, None, None]
    is_own = number >= kept
    places_at += _first_place(moved_at, batch, HAS_MOVED) * 2 * heads * SIZE + part * SIZE
    own, columns = number - kept, 2 * heads * SIZE
    k_at += batch * k_batch + head * k_head
    v_at += batch * v_batch + head * v_head
    if part < heads:
        value = _own(k_at, k_row, places_at, own, is_own & inside, columns, HAS_PLACES, SIZE, SPAN, GROUPS, BLOCK)
    else:
        value = _own(v_at, v_row, places_at, own, is_own & inside, columns, HAS_PLACES, SIZE, SPAN, GROUPS, BLOCK)
    from_at = rows_at + batch * rows_batch + (number.to(tl.int64) * 2 * heads + part) * WIDTH
    to_at = next_at + batch * rows_batch + (row[:, None, None].to(tl.int64) * 2 * heads + part) * WIDTH
    if BITS == 16:
        channel, there = _channels(SIZE, SPAN, GROUPS, BLOCK)
        _copy(from_at + channel, to_at + channel, value, is_own, there & inside)
    else:
        code, scales = _quantised(value, BITS, SPAN, BLOCK)
        if BITS == 4:  # an even number and the one behind it share a byte
            even, odd = tl.split(tl.reshape(code, [TALL, GROUPS, BLOCK // 2, 2]))
            code = even * 16 + odd
        byte, there = _channels(SIZE * BITS // 8, SPAN * BITS // 8, GROUPS, BLOCK * BITS // 8)
        _copy(from_at + byte, to_at + byte, code.to(tl.uint8), is_own, there & inside)
        byte, there = _channels(SIZE // SPAN * 4, 4, GROUPS, 4)
        scale = (scales >> (byte % 4 * 8).to(tl.uint32)) & 255
        byte += SIZE * BITS // 8
        _copy(from_at + byte, to_at + byte, scale.to(tl.uint8), is_own, there & inside)


@triton.jit
def _copy(from_at, to_at, value, is_own, there):
    """Copy rows that stay, and put the window's own between them."""
    earlier = tl.load(from_at, mask=there & (is_own == 0), other=0).to(value.dtype)
    tl.store(to_at, tl.where(is_own, value, earlier), mask=there)


@kernel
def _dequantise(
    rows_at, rows_batch, numbers_at, rows, parts, BITS: tl.constexpr, SIZE: tl.constexpr, SPAN: tl.constexpr,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, TALL: tl.constexpr,
):  # fmt: skip
    batch, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    row = (tl.program_id(1) * TALL + tl.arange(0, TALL))[:, None, None]
    at = rows_at + batch * rows_batch + (row.to(tl.int64) * parts + part) * WIDTH
    value = _numbers(at, row < rows, BITS, SIZE, SPAN, GROUPS, BLOCK)
    channel, there = _channels(SIZE, SPAN, GROUPS, BLOCK)
    at = numbers_at + ((batch * rows + row) * parts + part) * SIZE + channel
    tl.store(at, value, mask=there & (row < rows))


@triton.jit
def _channels(SIZE: tl.constexpr, SPAN: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Channels of a head, by groups, and which of them there are."""
    group, number = tl.arange(0, GROUPS)[None, :, None], tl.arange(0, BLOCK)[None, None, :]
    channel = group * SPAN + number
    return channel, (number < SPAN) & (channel < SIZE)


@triton.jit
def _first_place(moved_at, batch, HAS_MOVED: tl.constexpr):
    """The place of a batch row's first position."""
    place = batch * 0
    if HAS_MOVED:
        place += tl.load(moved_at + batch)
    return place


@triton.jit
def _own(
    at, row_stride, places_at, own, is_own, columns, HAS_PLACES: tl.constexpr,
    SIZE: tl.constexpr, SPAN: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A head's keys or values at these positions of the window; 0 elsewhere."""
    channel, there = _channels(SIZE, SPAN, GROUPS, BLOCK)
    there, own = there & is_own, own.to(tl.int64)
    value = tl.load(at + own * row_stride + channel, mask=there, other=0.0).to(tl.float32)
    if HAS_PLACES:
        value -= tl.load(places_at + own * columns + channel, mask=there, other=0.0).to(tl.float32)
    return value


@triton.jit
def _numbers(
    at, inside, BITS: tl.constexpr, SIZE: tl.constexpr, SPAN: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr
):
    """A head's numbers of the rows at these places; 0 elsewhere."""
    channel, there = _channels(SIZE, SPAN, GROUPS, BLOCK)
    there = there & inside
    if BITS == 16:
        value = tl.load(at + channel, mask=there, other=0.0).to(tl.float32)
    else:
        byte, there_bytes = _channels(SIZE * BITS // 8, SPAN * BITS // 8, GROUPS, BLOCK * BITS // 8)
        code = tl.load(at + byte, mask=there_bytes & inside, other=0).to(tl.int32)
        if BITS == 4:
            code = tl.interleave(code >> 4, code & 15)
        group = tl.arange(0, GROUPS)[None, :, None]
        at, there_scales = at + SIZE * BITS // 8 + 4 * group, inside & (group < SIZE // SPAN)
        if SIZE * BITS // 8 % 4 == 0:  # then all bytes of scales begin at multiples of four
            scales = tl.load(at.to(tl.pointer_type(tl.uint32)), mask=there_scales, other=0)
        else:
            scales = tl.load(at, mask=there_scales, other=0).to(tl.uint32)
            for byte in tl.static_range(1, 4):
                scales |= tl.load(at + byte, mask=there_scales, other=0).to(tl.uint32) << (8 * byte)
        low, step = _low_and_step(scales)
        value = tl.where(there, low + code.to(tl.float32) * step, 0.0)
    return value


@triton.jit
def _quantised(value, BITS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr):
    """Codes of groups, and their least numbers and steps, which are 32 bits side by side."""
    top: tl.constexpr = 2.0**BITS - 1
    there = (tl.arange(0, BLOCK) < SPAN)[None, None, :]
    low = _short(tl.min(tl.where(there, value, float("inf")), 2, keep_dims=True))
    high = tl.max(tl.where(there, value, float("-inf")), 2, keep_dims=True)
    step = _short(tl.div_rn(high - low, top))
    code = tl.div_rn(value - low, tl.where(step == 0, 1.0, step))
    code = tl.minimum(tl.maximum(code, 0.0), top) + _WHOLE - _WHOLE
    scales = (low.to(tl.uint32, bitcast=True) >> 16) | step.to(tl.uint32, bitcast=True)
    return code.to(tl.int32), scales


@triton.jit
def _low_and_step(scales):
    """A group's least number and step, which are 32 bits side by side."""
    return (scales << 16).to(tl.float32, bitcast=True), ((scales >> 16) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _short(value):
    """Rounded to bfloat16, half to even; by its bits, which are what a row has."""
    bits = value.to(tl.uint32, bitcast=True)
    bits += 32767 + ((bits >> 16) & 1)
    return ((bits >> 16) << 16).to(tl.float32, bitcast=True)
