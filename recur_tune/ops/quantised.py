"""A frozen weight in 8 or 4 bits: quantised once by blocks, and dequantised wherever a product reads it.

Shape suffixes: N weights of the matrix, B blocks, S weights of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

Bits = Literal[8, 4]

BLOCK = 64  # weights that share a scale
# NormalFloat (NF4, arXiv:2305.14314): for weights that are normally distributed each level is as likely as another.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


class QuantisedWeight(nn.Module):
    """Stands where a module's frozen weight stood. Blocks are of weights that lie one behind the other, and a block's
    scale is in single precision: 8 bits are int8, and 4 bits are NF4, two in a byte.

    Attributes:
        shape: The matrix's.
        is_short: Whether its values are rounded to bfloat16; else they are in the dtype of scales.
        requires_grad: Never.
    """

    codes: torch.Tensor
    scale_B: torch.Tensor
    pairs: torch.Tensor | None
    requires_grad = False

    def __init__(self, weight: torch.Tensor, bits: Bits, is_short: bool = False) -> None:
        super().__init__()
        self.shape, self.is_short = weight.shape, is_short
        weight = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        blocks_BS = F.pad(weight.flatten(), (0, -weight.numel() % BLOCK)).view(-1, BLOCK)
        absmax_B = blocks_BS.abs().amax(1)
        unit_BS = blocks_BS / absmax_B.where(absmax_B > 0, 1)[:, None]
        pairs = None
        if bits == 8:
            codes, scale_B = (unit_BS * 127).round_().to(torch.int8), absmax_B / 127
        else:
            levels = torch.tensor(_NF4, dtype=weight.dtype, device=weight.device)
            between = (levels[1:] + levels[:-1]) / 2
            nearest_BS = torch.bucketize(unit_BS, between, out_int32=True).to(torch.uint8)
            codes, scale_B = nearest_BS[:, ::2] * 16 + nearest_BS[:, 1::2], absmax_B
            pairs = torch.cartesian_prod(levels, levels)
        self.register_buffer("codes", codes.flatten())
        self.register_buffer("scale_B", scale_B)
        self.register_buffer("pairs", pairs, persistent=False)  # the two levels of every byte

    @property
    def dtype(self) -> torch.dtype:
        """That of its values."""
        return torch.bfloat16 if self.is_short else self.scale_B.dtype

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.codes.device

    def write(self, out: torch.Tensor) -> None:
        """Write its values into a contiguous matrix of its shape."""
        levels_N = self.codes if self.pairs is None else F.embedding(self.codes.int(), self.pairs).flatten()
        out_N = out.view(-1)
        blocks, last = divmod(len(out_N), BLOCK)  # the last block may be a shorter one
        end = blocks * BLOCK
        torch.mul(levels_N[:end].view(blocks, BLOCK), self.scale_B[:blocks, None], out=out_N[:end].view(blocks, BLOCK))
        if last:
            torch.mul(levels_N[end : end + last], self.scale_B[-1], out=out_N[end:])


def dequantised(weights: Sequence[QuantisedWeight]) -> torch.Tensor:
    """The values of weights, one behind the other along their first dimension, as one new matrix."""
    first, rows = weights[0], [weight.shape[0] for weight in weights]
    made = first.scale_B.new_empty((sum(rows), *first.shape[1:]), dtype=first.dtype)
    for weight, part in zip(weights, made.split(rows), strict=True):
        weight.write(part)
    return made
