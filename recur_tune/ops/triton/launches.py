"""Whether kernels are launched: a step under fake tensors, whose cost is only estimated, has no memory to write to.

Apart from `jit.py`, so that an estimate does not load Triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LAUNCHES: ContextVar[bool] = ContextVar("LAUNCHES", default=True)


@contextmanager
def without_launches() -> Iterator[None]:
    """Tensors are allocated as usual, and no kernel fills them."""
    token = LAUNCHES.set(False)
    try:
        yield
    finally:
        LAUNCHES.reset(token)
