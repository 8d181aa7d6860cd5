"""Asymmetric quantisation of rows by groups: a head's key or value in codes of 8 or 4 bits, and groups of numbers that
share a zero point, their least number, and a scale, the step. KIVI (arXiv:2402.02750) quantises values so; its keys
have groups of positions for each channel, and here they are quantised like values.

A row is bytes: of every head first the codes, two of 4 bits in a byte, then its groups' least numbers and steps in
bfloat16. A row that stays is copied as it is, so no error adds up, however long it stays.

Shape suffixes: C columns, P bytes, X a row's keys and values of all heads, D head size or a head's codes, N groups, S
numbers of a group.
"""

from __future__ import annotations

import torch

from recur_tune.recurrences.cache.row_size import group_size, head_bytes
from recur_tune.recurrences.seam import single


def quantised(rows_C: torch.Tensor, head_size: int, bits: int) -> torch.Tensor:
    """Rows [..., C] of numbers as rows [..., P] of bytes."""
    top, size = 2**bits - 1, group_size(head_size)
    group_XNS = single(rows_C).unflatten(-1, (-1, head_size // size, size))
    low_XN1, high_XN1 = group_XNS.aminmax(dim=-1, keepdim=True)
    low_XN1 = low_XN1.bfloat16()
    step_XN1 = ((high_XN1 - low_XN1) / top).bfloat16()
    # From what is kept, that is rounded; the step of equal numbers is 0, and their code is 0.
    code_XNS = (group_XNS - low_XN1) / step_XN1.masked_fill(step_XN1 == 0, 1)
    code_XD = code_XNS.round_().clamp_(0, top).to(torch.uint8).flatten(-2)
    if bits == 4:
        code_XD = code_XD[..., ::2] * 16 + code_XD[..., 1::2]
    scale_XP = torch.cat([low_XN1, step_XN1], dim=-1).flatten(-2).view(torch.uint8)
    return torch.cat([code_XD, scale_XP], dim=-1).flatten(-2)


def dequantised(rows_P: torch.Tensor, head_size: int, bits: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows [..., P] of bytes as rows [..., C] of numbers."""
    whole, coded = head_bytes(head_size, bits), head_size * bits // 8
    code_XD, scale_XP = rows_P.unflatten(-1, (-1, whole)).split([coded, whole - coded], dim=-1)
    if bits == 4:
        code_XD = torch.stack([code_XD >> 4, code_XD & 15], dim=-1).flatten(-2)
    scale_XN2 = (
        scale_XP.contiguous().view(torch.bfloat16).to(torch.promote_types(dtype, torch.float32)).unflatten(-1, (-1, 2))
    )
    low_XN1, step_XN1 = scale_XN2.split(1, dim=-1)
    code_XNS = code_XD.unflatten(-1, (-1, group_size(head_size))).to(scale_XN2.dtype)
    return code_XNS.mul_(step_XN1).add_(low_XN1).to(dtype).flatten(-3)
