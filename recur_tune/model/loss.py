"""The next-token loss over a large vocabulary, in two ways that agree.

Shape suffixes: N positions of a window in one row, K hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from recur_tune.corpus.windows import NOT_SCORED

_ROWS = 2048  # positions whose logits exist at the same time in the chunked form


def summed_loss(top_NK: torch.Tensor, weight_VK: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    """The sum of negative log-likelihoods over the scored positions; autograd keeps the logits."""
    logits_NV = F.linear(top_NK, weight_VK)
    return F.cross_entropy(logits_NV.to(_sum_type(logits_NV)), target_N, ignore_index=NOT_SCORED, reduction="sum")


def summed_loss_with_gradients(
    tops_NK: Sequence[torch.Tensor], weight_VK: torch.Tensor, targets_N: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The same sum over several windows; the gradients are made in the forward pass, a chunk of rows at a time.

    Only the gradients stay, so the logits of a window are never whole and never made twice. It costs their
    memory from the forward pass on: K per position, and the weight's gradient once for all windows.
    """
    device = weight_VK.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VK.dtype
    return _EagerGradients.apply(weight_VK, targets_N, kind, *tops_NK)


class _EagerGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight_VK: torch.Tensor, targets_N: Sequence[torch.Tensor], kind: torch.dtype, *tops_NK: torch.Tensor
    ) -> torch.Tensor:
        weight = weight_VK.to(kind)
        grad_tops, grad_weight = [torch.empty_like(top) for top in tops_NK], torch.zeros_like(weight_VK)
        total = torch.zeros((), dtype=_sum_type(weight), device=weight.device)
        for window_top, window_grad, window_target in zip(tops_NK, grad_tops, targets_N, strict=True):
            for top, grad_top, target in zip(
                window_top.split(_ROWS), window_grad.split(_ROWS), window_target.split(_ROWS), strict=True
            ):
                loss, grad_logits = _loss_and_gradient(top.to(kind) @ weight.t(), target)
                total += loss
                grad_top.copy_(grad_logits @ weight)
                grad_weight += grad_logits.t() @ top.to(kind)
        ctx.save_for_backward(grad_weight, *grad_tops)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # In place: these gradients are used once, and another copy of them is what the memory budget is for.
        grad_weight, *grad_tops = (gradient.mul_(grad_total) for gradient in ctx.saved_tensors)
        return grad_weight, None, None, *grad_tops


def _loss_and_gradient(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed loss of some rows, and d loss / d logits: softmax minus one-hot, zero where a row is not scored."""
    scored, place = target != NOT_SCORED, target.clamp(min=0)[:, None]
    log_p = logits.to(_sum_type(logits)).log_softmax(-1)
    loss = -(log_p.gather(1, place)[:, 0] * scored).sum()
    gradient = log_p.exp_().scatter_add_(1, place, torch.full_like(place, -1, dtype=log_p.dtype))
    return loss, gradient.mul_(scored[:, None]).to(logits.dtype)


def _sum_type(values: torch.Tensor) -> torch.dtype:
    """A softmax over a vocabulary wants at least single precision."""
    return torch.promote_types(values.dtype, torch.float32)
