"""The arithmetic that a model is run in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from recur_tune.spec import Precision


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[None]:
    """bfloat16 where it is chosen or, with `auto`, where it is fast: on a GPU."""
    if precision == "bfloat16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
