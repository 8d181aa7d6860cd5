"""One optimiser step, the same for training, for cost estimates under fake tensors and for benchmarks; the same for one
worker and for several."""

from __future__ import annotations

from collections.abc import Callable

import torch

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.optimizer import AdamW
from recur_tune.common.precision import Precision
from recur_tune.data.batches import WindowBatch
from recur_tune.ops.device import autocast


def train_step(
    chain: Chain,
    optimizer: AdamW,
    batch: WindowBatch,
    clip_norm: float,
    precision: Precision,
    proceed: Callable[[torch.Tensor, torch.Tensor], None] = lambda loss, norm: None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward, backward, exchange, clip, update; returns the step's mean loss, and the gradient norm.

    Gradients are made whole first, by a CUDA graph where there is one. Then one collective sums them over the workers,
    and the loss with them. `batch.mean_over` counts the step's losses over all workers. So the gradient is that of the
    mean over all tokens, or questions, for any number of workers. `proceed` sees the loss and the gradient norm before
    any weight changes and may raise; it sees the same on all workers.
    """
    trained = chain.trained
    with autocast(batch.inputs_WBT.device, precision):
        found = chain.differentiate(batch)
    loss, norm = optimizer.receive(found, trained, batch.mean_over, clip_norm)
    proceed(loss, norm)
    optimizer.update(found, trained)
    return loss, norm
