"""Device and precision in which a model runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from recur_tune.common.precision import Precision


def default_device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """The GPU's name, or how many threads the CPU works with."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def uses_bfloat16(device: torch.device, precision: Precision) -> bool:
    """Where it is chosen; with `auto`, on a GPU, where it is fast."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[None]:
    """Autocast to bfloat16, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if uses_bfloat16(device, precision) else nullcontext()
