"""Rows of a cache as attention reads them: each is a key and a value side by side, of all key-value heads.

Shape suffixes: B batch rows, T positions, M rows, C columns, H query heads, G key-value heads, D head size, R queries
of a group, N rows and the window's positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from recur_tune.common.shape import Shape


def heads_of(rows_BMC: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of rows, each [B, G, M, D]."""
    k_BGMD, v_BGMD = rows_BMC.unflatten(-1, (2 * shape.key_value_heads, -1)).transpose(1, 2).chunk(2, dim=1)
    return k_BGMD, v_BGMD


def keys_behind(rows_BMC: torch.Tensor | None, k_BGTD: torch.Tensor, rows: int, shape: Shape) -> torch.Tensor:
    """The window's keys behind those of so many rows, [B, G, N, D]; where there are none, behind as many zeros."""
    if rows_BMC is None:
        return F.pad(k_BGTD, (0, 0, rows, 0))
    return torch.cat([heads_of(rows_BMC, shape)[0].to(k_BGTD.dtype), k_BGTD], dim=2)


def visible(seen_B: torch.Tensor, rows: int) -> torch.Tensor:
    """The last `seen_B` rows. Where that is none, all: a softmax over nothing is NaN, and the gate closes there."""
    hidden_B = (rows - seen_B) * (seen_B > 0)
    return torch.arange(rows, device=seen_B.device) >= hidden_B[:, None]


def attend(rows_BMC: torch.Tensor, visible_BM: torch.Tensor, q_BHTD: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Attention to the visible rows alone, [B, T, H, D]."""
    k_BGMD, v_BGMD = heads_of(rows_BMC, shape)
    # All queries see the same rows, so those of one group can stand one behind the other.
    q_BGRD = q_BHTD.unflatten(1, (shape.key_value_heads, -1)).flatten(2, 3)
    taken_BGRD = F.scaled_dot_product_attention(q_BGRD, k_BGMD, v_BGMD, attn_mask=visible_BM[:, None, None])
    return taken_BGRD.reshape(q_BHTD.shape).transpose(1, 2)
