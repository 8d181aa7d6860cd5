"""Matrix products of a training step: their dtype, and the accumulation of a weight's gradient."""

from __future__ import annotations

import torch


def product_dtype(weight: torch.Tensor) -> torch.dtype:
    """The dtype that autocast gives a weight here, or its own."""
    device = weight.device.type
    if device == "meta":  # which autocast does not know
        return weight.dtype
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def add_product(total: torch.Tensor | None, one: torch.Tensor, other: torch.Tensor, factor: float = 1.0) -> None:
    """Add one matrix, transposed, times another and a factor to a total, if there is one; on a GPU without rounding on
    the way."""
    if total is None:
        return
    if total.dtype == one.dtype:
        torch.addmm(total, one.t(), other, alpha=factor, out=total)
    elif total.is_cuda:
        torch.addmm(total, one.t(), other, out_dtype=total.dtype, alpha=factor, out=total)
    else:
        total.add_(one.t() @ other, alpha=factor)  # on a CPU a product has its factors' dtype
