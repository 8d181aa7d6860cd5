"""Chunks of a window: how many positions the gated delta rule writes at once.

Costs need them without torch, and the module beside a saved model without pydantic.
"""

from __future__ import annotations

from typing import NamedTuple

CHUNK = 64  # most positions that are written at once


class Chunks(NamedTuple):
    """Equal parts of a window, the last one padded."""

    number: int
    positions: int


def chunks(positions: int) -> Chunks:
    """As few as there can be."""
    count = max(1, -(-positions // CHUNK))
    return Chunks(count, -(-positions // count))
