"""One optimiser step, the same for training, for cost estimates under fake tensors and for benchmarks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from recur_tune.bptt.chain import Chain
from recur_tune.common.precision import Precision
from recur_tune.data.batches import WindowBatch
from recur_tune.ops.device import autocast


def make_optimizer(
    model: nn.Module, learning_rate: float, weight_decay: float, recurrence_rate: float = 1.0
) -> torch.optim.Optimizer:
    """AdamW, fused: one kernel for all parameters and no temporary copies of them.

    Every parameter group has a factor of the learning rate, `rate`: the recurrence's is `recurrence_rate`.
    """

    def parameters(of_recurrence: bool) -> list[nn.Parameter]:
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        return [p for name, p in trained if name.startswith("recurrence.") == of_recurrence]

    groups = [{"params": parameters(False), "rate": 1.0}, {"params": parameters(True), "rate": recurrence_rate}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, weight_decay=weight_decay, fused=True)
    set_learning_rate(optimizer, learning_rate)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set every group's learning rate, by its factor `rate`."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["rate"]


def train_step(
    chain: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: WindowBatch,
    clip_norm: float,
    precision: Precision,
    workers: int = 1,
    proceed: Callable[[torch.Tensor, torch.Tensor], None] = lambda loss, norm: None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward, backward, clip, update; returns this worker's part of the step's mean loss, and the gradient norm.

    `batch.mean_over` counts the step's losses over all workers, and DDP averages gradients over workers. So the
    gradient is that of the mean over all tokens, or questions, for any number of workers. `proceed` sees the loss and
    the gradient norm before any weight changes and may raise.
    """
    with autocast(batch.inputs_WBT.device, precision):
        if isinstance(chain, Chain):
            loss = _differentiate(chain, batch)
        else:  # DDP all-reduces gradients during autograd's backward pass
            loss = chain(batch) / batch.mean_over
            (loss * workers).backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, clip_norm)
    proceed(loss.detach(), norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach(), norm


def _differentiate(chain: Chain, batch: WindowBatch) -> torch.Tensor:
    """The mean loss; gradients are assigned to the parameters without autograd."""
    loss, gradients = chain.differentiate(batch)
    torch._foreach_div_(gradients, batch.mean_over)
    for parameter, gradient in zip(chain.trained, gradients, strict=True):
        parameter.grad = gradient
    return loss / batch.mean_over
