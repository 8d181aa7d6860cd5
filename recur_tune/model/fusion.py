"""Fused kernels or single operations, for the passes over memory between a training step's matrix products."""

from __future__ import annotations

from types import ModuleType

from recur_tune.model import passes


def passes_for(fused: bool) -> ModuleType:
    """The module that has them."""
    if not fused:
        return passes
    from recur_tune.model import kernels  # here, since to load Triton takes a while

    return kernels


def recurrence_kernels_for(fused: bool) -> ModuleType | None:
    """The module that has a recurrence's; None: single operations."""
    if not fused:
        return None
    from recur_tune.model import recurrence_kernels

    return recurrence_kernels
