"""Collectives between the workers of a trial, counted.

All workers call the same collectives in the same order. So the one that has arrived at the fewest is the one that the
others wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

_count = 0


def arrivals() -> int:
    """How many collectives this process has arrived at."""
    return _count


def collective(call: Callable[..., Any], *tensors: Any, **options: Any) -> None:
    """Run one of torch.distributed's collectives."""
    global _count
    _count += 1
    call(*tensors, **options)


def worker_count() -> int:
    """Processes that train together; one where no process group was made."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
