"""Causal attention over a window and what a recurrence inserts into it.

What is inserted stands before the window, as keys and values alone. Lanes that begin a document must not see it: for
them it stands behind the window, where causal attention sees nothing. So one kernel, the fastest, serves all lanes.

Shape suffixes: B lanes, T positions, M inserted embeddings, S both together, K hidden size, H heads of queries,
G of keys and values, D head size, C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from recur_tune.model.arithmetic import Arithmetic, Product
from recur_tune.model.body import Block, Turn
from recur_tune.model.passes import rms_norm

KeysValues = tuple[torch.Tensor, torch.Tensor]  # each [B, G, S, D]
Pass = Callable[..., torch.Tensor]  # one of `passes.py` or of `kernels.py`


def attend(
    arithmetic: Arithmetic,
    block: Block,
    qkv: Product,
    turn: Turn | None = None,
    inserted_BMK: torch.Tensor | None = None,
    fresh_B: torch.Tensor | None = None,
    past: KeysValues | None = None,
    dropout: float = 0.0,
) -> tuple[torch.Tensor, KeysValues]:
    """What every position takes from those that it may see, and the keys and values that there are now.

    Args:
        arithmetic: How the projections are run.
        block: Whose attention this is.
        qkv: The window's queries, keys and values in one.
        turn: The window's rotary positions; None where positions are not rotary.
        inserted_BMK: Embeddings to be seen beside the window's own positions.
        fresh_B: Lanes that must not see them; None means that all may.
        past: Keys and values of the window's earlier part, in which what was inserted is already.
        dropout: Rate at which a position is forgotten.
    """
    inserted = 0
    if block.query_norm is not None:
        qkv = _head_norms(arithmetic.value(qkv), block)
    if inserted_BMK is not None:
        inserted = inserted_BMK.shape[1]
        if turn is not None:  # before it is moved; what is inserted has no turn
            qkv, turn = _Turned.apply(arithmetic.value(qkv), *turn, block.turned_heads, arithmetic.turned), None
        # A key and a value, never a query: only that part of the projection is needed.
        _, extra, _ = arithmetic.norm_project(
            inserted_BMK, None, block.attention_norm, block.qkv, begin=block.query_columns
        )
        extra_BMC = _key_norm(arithmetic.value(extra), block)
        qkv = _Packed.apply(extra_BMC, arithmetic.value(qkv), fresh_B, arithmetic.move)
    q_BHSD, k_BGSD, v_BGSD = arithmetic.heads(qkv, block, turn)
    if past is not None:
        k_BGSD, v_BGSD = (torch.cat(pair, dim=2) for pair in zip(past, (k_BGSD, v_BGSD), strict=True))
    new, seen = q_BHSD.shape[2], k_BGSD.shape[2]
    mask_TS = None
    if past is not None and new > 1:  # one token alone sees everything
        mask_TS = torch.ones(new, seen, dtype=torch.bool, device=q_BHSD.device).tril(seen - new)
    out_BHSD = F.scaled_dot_product_attention(
        q_BHSD, k_BGSD, v_BGSD,
        attn_mask=mask_TS,
        dropout_p=dropout,
        is_causal=past is None,
        scale=block.scaling,
        enable_gqa=block.heads != block.key_value_heads,
    )  # fmt: skip
    out_BSC = out_BHSD.transpose(1, 2).flatten(2)
    if inserted:
        out_BSC = _Unpacked.apply(out_BSC, inserted, fresh_B, arithmetic.move)
    return out_BSC, (k_BGSD, v_BGSD)


def _head_norms(qkv_BTC: torch.Tensor, block: Block) -> torch.Tensor:
    """With norms over every head's query and key."""
    assert block.query_norm is not None
    head_size = len(block.query_norm.weight)
    queries = block.heads * head_size
    q_BTHD = rms_norm(qkv_BTC[..., :queries].unflatten(-1, (-1, head_size)), block.query_norm)
    return torch.cat([q_BTHD.flatten(-2), _key_norm(qkv_BTC[..., queries:], block)], dim=-1)


def _key_norm(kv_BTC: torch.Tensor, block: Block) -> torch.Tensor:
    """The same for keys and values side by side, where a family has these norms."""
    if block.key_norm is None:
        return kv_BTC
    k_BTC, v_BTC = kv_BTC.chunk(2, dim=-1)
    k_BTGD = rms_norm(k_BTC.unflatten(-1, (-1, len(block.key_norm.weight))), block.key_norm)
    return torch.cat([k_BTGD.flatten(-2), v_BTC], dim=-1)


class _Turned(torch.autograd.Function):
    """Rotary positions: a turn, and in the backward pass the turn back."""

    @staticmethod
    def forward(
        ctx: Any, qkv_BTC: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, heads: int, turned: Pass
    ) -> torch.Tensor:
        ctx.save_for_backward(cos_TD, sin_TD)
        ctx.heads, ctx.turned = heads, turned
        return turned(qkv_BTC, cos_TD, sin_TD, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_turned_BTC: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.turned(by_turned_BTC, *ctx.saved_tensors, ctx.heads, back=True), None, None, None, None


class _Packed(torch.autograd.Function):
    """What is inserted and the window's own, in one; placeholder queries make it square, as causal attention wants."""

    @staticmethod
    def forward(
        ctx: Any, extra_BMC: torch.Tensor, qkv_BTC: torch.Tensor, fresh_B: torch.Tensor | None, move: Pass
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
        ctx: Any, out_BSK: torch.Tensor, inserted: int, fresh_B: torch.Tensor | None, move: Pass
    ) -> torch.Tensor:
        ctx.inserted, ctx.fresh_B, ctx.move = inserted, fresh_B, move
        return move(out_BSK, fresh_B, out_BSK.shape[1] - inserted, -inserted, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_out_BTK: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows = by_out_BTK.shape[1] + ctx.inserted
        return ctx.move(by_out_BTK, ctx.fresh_B, rows, ctx.inserted, 0), None, None, None
