"""Causal attention over a window and what a recurrence inserts into it.

What is inserted stands before the window, as keys and values alone. Lanes that begin a document must not see it: for
them it stands behind the window, where causal attention sees nothing. So one kernel, the fastest, serves all lanes.

Shape suffixes: B lanes, T positions, M inserted embeddings, S both together, K hidden size, H heads, D head size,
C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from recur_tune.model.arithmetic import Arithmetic, Product

KeysValues = tuple[torch.Tensor, torch.Tensor]  # each [B, H, S, D]
Move = Callable[..., torch.Tensor]  # rows of every lane, up or down


def attend(
    arithmetic: Arithmetic,
    block: GPT2Block,
    qkv: Product,
    inserted_BMK: torch.Tensor | None = None,
    fresh_B: torch.Tensor | None = None,
    past: KeysValues | None = None,
) -> tuple[torch.Tensor, KeysValues]:
    """What every position takes from those that it may see, and the keys and values that there are now.

    Args:
        arithmetic: How the projections are run.
        block: Whose attention this is.
        qkv: The window's queries, keys and values in one.
        inserted_BMK: Embeddings to be seen beside the window's own positions.
        fresh_B: Lanes that must not see them; None means that all may.
        past: Keys and values of the window's earlier part, in which what was inserted is already.
    """
    attn, inserted = block.attn, 0
    if inserted_BMK is not None and past is None:
        inserted = inserted_BMK.shape[1]
        # A key and a value, never a query: only that part of the projection is needed.
        _, extra, _ = arithmetic.norm_project(inserted_BMK, None, block.ln_1, attn.c_attn, begin=attn.split_size)
        qkv = _Packed.apply(arithmetic.value(extra), arithmetic.value(qkv), fresh_B, arithmetic.move)
    q_BHSD, k_BHSD, v_BHSD = arithmetic.heads(qkv, attn.num_heads)
    if past is not None:
        k_BHSD, v_BHSD = (torch.cat(pair, dim=2) for pair in zip(past, (k_BHSD, v_BHSD), strict=True))
    new, seen = q_BHSD.shape[2], k_BHSD.shape[2]
    mask_TS = None
    if past is not None and new > 1:  # one token alone sees everything
        mask_TS = torch.ones(new, seen, dtype=torch.bool, device=q_BHSD.device).tril(seen - new)
    out_BHSD = F.scaled_dot_product_attention(
        q_BHSD, k_BHSD, v_BHSD,
        attn_mask=mask_TS,
        dropout_p=attn.attn_dropout.p if attn.training else 0.0,
        is_causal=past is None,
        scale=attn.scaling if hasattr(attn, "scaling") else None,
    )  # fmt: skip
    out_BSK = out_BHSD.transpose(1, 2).flatten(2)
    if inserted:
        out_BSK = _Unpacked.apply(out_BSK, inserted, fresh_B, arithmetic.move)
    return out_BSK, (k_BHSD, v_BHSD)


class _Packed(torch.autograd.Function):
    """What is inserted and the window's own, in one; placeholder queries make it square, as causal attention wants."""

    @staticmethod
    def forward(
        ctx: Any, extra_BMC: torch.Tensor, qkv_BTC: torch.Tensor, fresh_B: torch.Tensor | None, move: Move
    ) -> torch.Tensor:
        inserted, positions = extra_BMC.shape[1], qkv_BTC.shape[1]
        ctx.fresh_B, ctx.move, ctx.positions = fresh_B, move, positions
        ctx.extra = _places(extra_BMC, qkv_BTC, fresh_B)
        packed_BSC = move(qkv_BTC, fresh_B, inserted + positions, inserted, 0)
        packed_BSC[ctx.extra] = extra_BMC
        return packed_BSC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_packed_BSC: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inserted = by_packed_BSC.shape[1] - ctx.positions
        by_qkv_BTC = ctx.move(by_packed_BSC, ctx.fresh_B, ctx.positions, -inserted, 0)
        return by_packed_BSC[ctx.extra], by_qkv_BTC, None, None


def _places(extra_BMC: torch.Tensor, qkv_BTC: torch.Tensor, fresh_B: torch.Tensor | None) -> tuple[Any, ...]:
    """Where in a packed window what is inserted stands: before the window or, in fresh lanes, behind it."""
    (lanes, inserted, columns), (_, positions, all_columns) = extra_BMC.shape, qkv_BTC.shape
    keys_and_values = slice(all_columns - columns, None)
    if fresh_B is None:
        return slice(None), slice(0, inserted), keys_and_values
    place_M = torch.arange(inserted, device=fresh_B.device)
    return torch.arange(lanes, device=fresh_B.device)[:, None], place_M + positions * fresh_B[:, None], keys_and_values


class _Unpacked(torch.autograd.Function):
    """What the window's own positions took."""

    @staticmethod
    def forward(
        ctx: Any, out_BSK: torch.Tensor, inserted: int, fresh_B: torch.Tensor | None, move: Move
    ) -> torch.Tensor:
        ctx.inserted, ctx.fresh_B, ctx.move = inserted, fresh_B, move
        return move(out_BSK, fresh_B, out_BSK.shape[1] - inserted, -inserted, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_out_BTK: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows = by_out_BTK.shape[1] + ctx.inserted
        return ctx.move(by_out_BTK, ctx.fresh_B, rows, ctx.inserted, 0), None, None, None
