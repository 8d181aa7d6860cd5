"""Device and precision in which a model runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from recur_tune.common.precision import Precision


def default_device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def uses_bfloat16(device: torch.device, precision: Precision) -> bool:
    """Where it is chosen; with `auto`, on a GPU, where it is fast."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[None]:
    """Autocast to bfloat16, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if uses_bfloat16(device, precision) else nullcontext()
