"""Sizes of a cached row: numbers as they were read, or quantised ones in bytes."""

from __future__ import annotations

from typing import Final

AS_READ: Final = 16  # bits; stands for the precision of reading, whichever that is
_GROUP = 32  # numbers of a quantised row that share a step
_SCALE_BYTES = 4  # a group's zero point and scale


def row_columns(head_size: int, groups: int, bits: int) -> int:
    """Columns of a row of so many key-value heads, as it is kept: numbers, or bytes where they are quantised."""
    return 2 * groups * (head_size if bits == AS_READ else head_bytes(head_size, bits))


def head_bytes(head_size: int, bits: int) -> int:
    """Bytes of a head's quantised key or value: codes, and the scales of its groups."""
    return head_size * bits // 8 + head_size // group_size(head_size) * _SCALE_BYTES


def group_size(head_size: int) -> int:
    """Numbers of a head that share a step; all of them where they make no whole groups."""
    return head_size if head_size % _GROUP else _GROUP
