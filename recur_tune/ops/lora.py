"""LoRA's matrices beside a frozen weight: the module, by autograd.

Shape suffixes: K inputs, C outputs, R rank.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class LoraLayer(nn.Module):
    """The low-rank change of one weight: `scaling` times B A.

    Attributes:
        down: A, random.
        up: B, zeros at first: the base begins unchanged.
    """

    def __init__(self, inputs: int, outputs: int, rank: int, scaling: float, dropout: float) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self.scaling, self.dropout = scaling, dropout
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # nn.Linear's own, which is peft's choice too

    @property
    def rate(self) -> float:
        """The dropout rate now."""
        return self.dropout if self.training else 0.0

    def forward(self, x_BTK: torch.Tensor, begin: int = 0) -> torch.Tensor:
        """The outputs from `begin` on that it adds."""
        low_BTR = F.linear(F.dropout(x_BTK, self.rate, self.training), self.down)
        return F.linear(low_BTR, self.up[begin:]) * self.scaling

    def change(self, inputs_first: bool) -> torch.Tensor:
        """What it adds to the weight, in the weight's layout."""
        change_CK = self.scaling * (self.up @ self.down)
        return change_CK.t() if inputs_first else change_CK


def lora_of(module: nn.Module) -> LoraLayer | None:
    """A linear module's LoRA, where it has one."""
    return getattr(module, "lora", None)
