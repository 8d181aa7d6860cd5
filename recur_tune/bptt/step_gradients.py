"""What a chain's differentiation gives: the loss and its gradients, in one buffer."""

from __future__ import annotations

from typing import NamedTuple

import torch


class StepGradients(NamedTuple):
    """The summed loss of a batch and its gradients.

    Attributes:
        loss: A scalar, the buffer's last element.
        gradients: One for each trained parameter, in their order; views of the buffer.
        buffer: All of it, as `ops.flat_layout` lays it out: one collective sums it over workers.
    """

    loss: torch.Tensor
    gradients: list[torch.Tensor]
    buffer: torch.Tensor
