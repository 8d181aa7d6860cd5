"""Collectives between the workers of a trial, counted.

All workers call the same collectives in the same order. So the one that has arrived at the fewest is the one that the
others wait for. A collective is never part of a CUDA graph: a batch of another shape runs without the graph, and not on
all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
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


def is_grouped() -> bool:
    """Whether this process is in a process group; one worker alone is in none."""
    return dist.is_available() and dist.is_initialized()


def worker_count() -> int:
    """Processes that train together; one where no process group was made."""
    return dist.get_world_size() if is_grouped() else 1


def worker_rank() -> int:
    """This process's number among them, from 0."""
    return dist.get_rank() if is_grouped() else 0


def all_reduce(buffer: torch.Tensor) -> None:
    """Sum the workers' buffers; each has the whole sum."""
    collective(dist.all_reduce, buffer)


def reduce_scatter(own: torch.Tensor, buffer: torch.Tensor) -> None:
    """Sum the workers' buffers; each keeps its own part of the sum. `own` may be a view of that part."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # its name before torch 2.13
    collective(call, own, buffer)


def all_gather(buffer: torch.Tensor, own: torch.Tensor) -> None:
    """Fill the buffer with every worker's part. `own` may be a view of this worker's."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    collective(call, buffer, own)


def broadcast(tensors: Iterable[torch.Tensor], source: int = 0) -> None:
    """Give all workers the tensors of one of them."""
    if is_grouped():
        for tensor in tensors:
            collective(dist.broadcast, tensor.detach(), src=source)
