"""Triton's JIT, and kernels that are not launched where a step's cost is only estimated.

Triton comes with torch for GPUs. Without it this module replaces as much as the code around kernels needs. So the
memory that this code allocates is estimated by running it, with or without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.ops.triton.launches import LAUNCHES

try:
    import triton
    import triton.language as tl
except ImportError:
    _is_installed = False
    triton = SimpleNamespace(
        jit=lambda function: function,
        cdiv=lambda one, other: -(-one // other),
        next_power_of_2=lambda number: 1 << (number - 1).bit_length(),
    )
    tl = SimpleNamespace(constexpr=lambda value: value)
else:
    _is_installed = True

__all__ = ["kernel", "tl", "triton"]


class kernel:
    """A Triton kernel, which a GPU runs once for every program of a grid: `add[(programs,)](one, other)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._compiled = triton.jit(function)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """The function that launches it on this grid."""
        if not LAUNCHES.get():
            return _do_nothing
        if not _is_installed:
            raise UserError("fused_kernels: they need Triton, which is not installed; choose false.")
        return self._compiled[grid]


def _do_nothing(*given: Any, **options: Any) -> None:
    """Replaces a launch."""
