"""What a device can multiply, tried out: the yardstick for how well a training step uses it."""

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
    """Operations per second in a product of large square matrices, the best of a few; tried once per process.

    Data sheets promise what no device holds under its power limit, and have no number for two cores of a CPU.
    """
    side = _SIDES.get(device.type, 2048)
    kind = torch.bfloat16 if uses_bfloat16(device, precision) else torch.float32
    one, other = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
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
