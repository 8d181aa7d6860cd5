"""Fused kernels or single operations, for the passes over memory between a training step's matrix products."""

from __future__ import annotations

from types import ModuleType

from recur_tune.ops import reference as pointwise


def pointwise_for(fused: bool) -> ModuleType:
    """The module that has them."""
    if not fused:
        return pointwise
    from recur_tune.ops.triton import pointwise as kernels  # here, since to load Triton takes a while

    return kernels
