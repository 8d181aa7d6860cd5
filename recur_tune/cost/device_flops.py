"""Peak FLOP/s of a device, measured: the reference for the FLOPs utilisation of a training step."""

from __future__ import annotations

import time
from functools import cache

import torch

from recur_tune.common.precision import Precision
from recur_tune.ops.device import uses_bfloat16

_SIDES = {"cuda": 8192, "cpu": 768}  # large enough for full speed, small enough to take a moment
_TRIES = 5


@cache
def device_flops(device: torch.device, precision: Precision) -> float:
    """FLOP/s of a product of large square matrices, the best of a few; measured once per process.

    Data sheets ignore the power limit, and have no number for two cores of a CPU.
    """
    side = _SIDES.get(device.type, 2048)
    dtype = torch.bfloat16 if uses_bfloat16(device, precision) else torch.float32
    one, other = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return max(2 * side**3 / _seconds(one, other) for _ in range(_TRIES))


def _seconds(one: torch.Tensor, other: torch.Tensor) -> float:
    _wait(one.device)
    started = time.perf_counter()
    one @ other
    _wait(one.device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
