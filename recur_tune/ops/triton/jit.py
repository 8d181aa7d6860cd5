"""Triton, and kernels that are launched or, where a step is only priced, left out.

Triton comes with torch for GPUs. Elsewhere this module has as much of it as the code around kernels needs. So what
that code allocates and keeps is priced by running it, with or without a GPU, and no other code has to say the same.
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
    """A function that Triton compiles and a GPU runs, as often as a grid has places: `add[(programs,)](one, other)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._compiled = triton.jit(function)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """What launches it."""
        if not LAUNCHES.get():
            return _do_nothing
        if not _is_installed:
            raise UserError("fused_kernels: they need Triton, which is not installed; choose false.")
        return self._compiled[grid]


def _do_nothing(*given: Any, **options: Any) -> None:
    """In a launch's place."""
