"""Fused Triton kernels or reference operations, for what lies between a training step's matrix products."""

from __future__ import annotations

from types import ModuleType

from recur_tune.ops import reference as pointwise


def pointwise_for(fused: bool) -> ModuleType:
    """The module of operations: `triton/pointwise.py` or `reference.py`, which have the same functions."""
    if not fused:
        return pointwise
    from recur_tune.ops.triton import pointwise as kernels  # here, since loading Triton takes a while

    return kernels
