"""Causal attention over a window and the keys and values that a recurrence inserts into it.

What is inserted stands before the window, as keys and values alone. What a batch row must not see of it (all, where a
document begins) stands behind the window, where causal attention sees nothing. So every batch row takes the kernel for
causal attention, which is the fastest. A window that is read in parts goes on behind its first part, so there a mask
hides it.

Shape suffixes: B batch rows, T positions, M inserted rows, S both together, K hidden size, H query heads, G key-value
heads, D head size, C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from recur_tune.ops.autograd import BlockOps, Product, split_heads
from recur_tune.ops.body import Block, CosSin
from recur_tune.ops.reference import in_places, rms_norm
from recur_tune.recurrences.seam import Heads

KeysValues = tuple[torch.Tensor, torch.Tensor]  # each [B, G, S, D]
PointwiseOp = Callable[..., torch.Tensor]  # of `ops/reference.py` or `ops/triton/`
Adapt = Callable[[torch.Tensor, Heads], torch.Tensor]  # changes the heads' output: a window pass's hook


@dataclass(frozen=True)
class Extra:
    """Keys and values that stand before a window.

    Attributes:
        rows_BMC: Keys and values side by side, the keys with rotary position embeddings.
        seen_B: How many of them each batch row sees, counted from the last; None: all.
        places_MC: What places add to them; the rows that are seen stand at the first places. None: nothing.
    """

    rows_BMC: torch.Tensor
    seen_B: torch.Tensor | None
    places_MC: torch.Tensor | None = None

    @property
    def hidden_B(self) -> torch.Tensor | None:
        """How many of them each batch row does not see, counted from the first; None: none."""
        return None if self.seen_B is None else self.rows_BMC.shape[1] - self.seen_B

    def keys_values(self, block: Block) -> KeysValues:
        """Keys and values apart, with what places add."""
        return split_keys_values(in_places(self.rows_BMC, self.places_MC, self.seen_B), block)


def attend(
    ops: BlockOps,
    block: Block,
    qkv: Product,
    cos_sin: CosSin | None = None,
    extra: Extra | None = None,
    dropout: float = 0.0,
    adapt: Adapt | None = None,
) -> torch.Tensor:
    """Causal attention over a window: the heads' output, side by side.

    Args:
        ops: The block's operations.
        block: The block's modules.
        qkv: The window's queries, keys and values side by side.
        cos_sin: The window's rotary position embeddings; None where positions are learned.
        extra: Inserted keys and values.
        dropout: Rate.
        adapt: Changes the heads' output; it is given that, and queries, keys and values before rotary positions.
    """
    if block.query_norm is not None:
        qkv = _head_norms(ops.value(qkv), block)
    # Then a window pass gets these heads, and one operation differentiates both uses.
    as_they_are = cos_sin is None and extra is None
    own = q_BHSD, k_BGSD, v_BGSD = (
        ops.heads(qkv, block, cos_sin) if extra is None else _packed_heads(ops, block, qkv, cos_sin, extra)
    )
    out_BSC = _attention(q_BHSD, k_BGSD, v_BGSD, block, dropout=dropout, is_causal=True)
    if extra is not None:
        out_BSC = _Unpacked.apply(out_BSC, extra.rows_BMC.shape[1], extra.seen_B, ops.pointwise.move)
    if adapt is not None:
        out_BSC = adapt(out_BSC, lambda: own if as_they_are else ops.heads(qkv, block))
    return out_BSC


def attend_part(
    ops: BlockOps,
    block: Block,
    qkv: Product,
    cos_sin: CosSin | None,
    rows: KeysValues | None,
    past: KeysValues | None,
    hidden_B: torch.Tensor | None,
    dropout: float,
    adapt: Adapt | None,
    as_given: bool,
) -> tuple[torch.Tensor, KeysValues]:
    """The same for the next part of a window: the heads' output, and the keys and values to keep of all parts.

    Args:
        ops: The block's operations.
        block: The block's modules.
        qkv: The part's queries, keys and values side by side.
        cos_sin: Rotary position embeddings of the part, or with `as_given` of all parts.
        rows: Keys and values before the window that are made anew for each part.
        past: What was kept of the window's earlier parts.
        hidden_B: How many of the first keys each batch row must not see; None: none.
        dropout: Rate.
        adapt: As above; with `as_given`, its keys and values are those of all parts.
        as_given: Whether keys are kept before rotary position embeddings.
    """
    if block.query_norm is not None:
        qkv = _head_norms(ops.value(qkv), block)
    own = q_BHTD, k_BGTD, v_BGTD = ops.heads(qkv, block, None if as_given else cos_sin)
    earlier_k, earlier_v = (None, None) if past is None else past
    kept = k_BGSD, v_BGSD = _behind(earlier_k, k_BGTD), _behind(earlier_v, v_BGTD)
    if as_given and cos_sin is not None:
        q_BHTD = _rotated(q_BHTD, tuple(one[-q_BHTD.shape[2] :] for one in cos_sin), ops)
        k_BGSD = _rotated(k_BGSD, cos_sin, ops)
    if rows is not None:
        k_BGSD, v_BGSD = _behind(rows[0], k_BGSD), _behind(rows[1], v_BGSD)
    new, seen = q_BHTD.shape[2], k_BGSD.shape[2]
    mask = None if new == seen else _mask(new, seen, hidden_B, q_BHTD.device)
    out_BTC = _attention(q_BHTD, k_BGSD, v_BGSD, block, mask=mask, dropout=dropout, is_causal=new == seen)
    if adapt is not None:
        unrotated = as_given or cos_sin is None
        out_BTC = adapt(out_BTC, lambda: (own[0], *kept) if as_given else own if unrotated else ops.heads(qkv, block))
    return out_BTC, kept


def _behind(earlier: torch.Tensor | None, now: torch.Tensor) -> torch.Tensor:
    """Keys or values behind earlier ones: a copy even where there are none, since a view would hold queries too."""
    return torch.cat([now] if earlier is None else [earlier.to(now.dtype), now], dim=2)


def _attention(
    q_BHSD: torch.Tensor,
    k_BGSD: torch.Tensor,
    v_BGSD: torch.Tensor,
    block: Block,
    mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
) -> torch.Tensor:
    """The heads' output, side by side."""
    out_BHSD = F.scaled_dot_product_attention(
        q_BHSD, k_BGSD, v_BGSD,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=block.scaling,
        enable_gqa=block.heads != block.key_value_heads,
    )  # fmt: skip
    return out_BHSD.transpose(1, 2).flatten(2)


def inserted_keys_values(ops: BlockOps, block: Block, inserted_BMK: torch.Tensor) -> torch.Tensor:
    """Keys and values of embeddings, by the layer's own norm and projection; queries are left out."""
    _, extra, _ = ops.norm_project(inserted_BMK, None, block.attention_norm, block.qkv, begin=block.query_columns)
    return _key_norm(ops.value(extra), block)


def split_keys_values(rows_BMC: torch.Tensor, block: Block) -> KeysValues:
    """Keys and values apart, from rows that have them side by side."""
    k_BGMD, v_BGMD = (
        one_BMC.unflatten(-1, (block.key_value_heads, -1)).transpose(1, 2) for one_BMC in rows_BMC.chunk(2, dim=-1)
    )
    return k_BGMD, v_BGMD


def rotary_keys_values(ops: BlockOps, block: Block, rows_BMC: torch.Tensor, cos_sin: CosSin | None) -> torch.Tensor:
    """Rotary position embeddings for the keys of keys and values side by side."""
    return (
        rows_BMC
        if cos_sin is None
        else _Rotated.apply(rows_BMC, *cos_sin, block.key_value_heads, ops.pointwise.apply_rotary)
    )


def _rotated(x_BHSD: torch.Tensor, cos_sin: tuple[torch.Tensor, ...], ops: BlockOps) -> torch.Tensor:
    """Heads with rotary position embeddings."""
    turned_BSC = ops.pointwise.apply_rotary(x_BHSD.transpose(1, 2).flatten(2), *cos_sin, x_BHSD.shape[1])
    return turned_BSC.unflatten(-1, (x_BHSD.shape[1], -1)).transpose(1, 2)


def _packed_heads(
    ops: BlockOps, block: Block, qkv: Product, cos_sin: CosSin | None, extra: Extra
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of the window and what is inserted, each [B, heads, S, head size]."""
    return _PackedHeads.apply(
        *ops.with_grad_bias(qkv), extra.rows_BMC, extra.places_MC, extra.seen_B, ops.pointwise, block,
        *(cos_sin or (None, None)),
    )  # fmt: skip


def _mask(new: int, seen: int, hidden_B: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """The causal mask of the last positions; None where one alone sees everything."""
    if new == 1 and hidden_B is None:
        return None
    mask_TS = torch.ones(new, seen, dtype=torch.bool, device=device).tril(seen - new)
    if hidden_B is None:
        return mask_TS
    return mask_TS & (torch.arange(seen, device=device) >= hidden_B[:, None])[:, None, None]


def _head_norms(qkv_BTC: torch.Tensor, block: Block) -> torch.Tensor:
    """RMSNorm over every head's query and key, as Qwen3 has it."""
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


class _Rotated(torch.autograd.Function):
    """Rotary position embeddings; the backward pass is the inverse rotation."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv_BTC: torch.Tensor,
        cos_TD: torch.Tensor,
        sin_TD: torch.Tensor,
        heads: int,
        apply_rotary: PointwiseOp,
    ) -> torch.Tensor:
        ctx.save_for_backward(cos_TD, sin_TD)
        ctx.heads, ctx.apply_rotary = heads, apply_rotary
        return apply_rotary(qkv_BTC, cos_TD, sin_TD, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_rotated_BTC: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.apply_rotary(grad_rotated_BTC, *ctx.saved_tensors, ctx.heads, inverse=True), None, None, None, None


class _PackedHeads(torch.autograd.Function):
    """Heads of the window and of what is inserted, in one. Placeholder queries for the inserted rows make attention
    square, as the causal kernel requires."""

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, grad_bias: torch.Tensor | None, extra_BMC: torch.Tensor,
        places_MC: torch.Tensor | None, seen_B: torch.Tensor | None, pointwise: Any, block: Block,
        cos_TD: torch.Tensor | None, sin_TD: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        ctx.grad_bias, ctx.seen, ctx.pointwise, ctx.positions = grad_bias, seen_B, pointwise, value.shape[1]
        ctx.inserted, ctx.dtypes = extra_BMC.shape[1], (extra_BMC.dtype, None if places_MC is None else places_MC.dtype)
        ctx.save_for_backward(cos_TD, sin_TD)
        if cos_TD is not None and sin_TD is not None:  # before it is moved
            value = pointwise.apply_rotary(value, cos_TD, sin_TD, block.rotary_heads)
        return split_heads(pointwise.pack(extra_BMC, value, seen_B, places_MC), block)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_heads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = tuple(part.transpose(1, 2).flatten(2) for part in grad_heads)
        (cos_TD, sin_TD), (extra_dtype, places_dtype), gradients = ctx.saved_tensors, ctx.dtypes, [None] * 9
        if ctx.needs_input_grad[0]:
            cos_sin, down = None if cos_TD is None else (cos_TD, sin_TD), ctx.inserted if ctx.seen is None else ctx.seen
            gradients[0] = ctx.pointwise.join(parts, ctx.grad_bias, cos_sin, down, ctx.positions)
        if ctx.needs_input_grad[2]:
            gradients[2] = ctx.pointwise.grad_extra(parts[1:], ctx.inserted, ctx.seen).to(extra_dtype)
        if ctx.needs_input_grad[3]:
            gradients[3] = ctx.pointwise.grad_places(parts[1:], ctx.inserted, ctx.seen, places_dtype)
        return tuple(gradients)


class _Unpacked(torch.autograd.Function):
    """The attention output of the window's own positions."""

    @staticmethod
    def forward(
        ctx: Any, out_BSC: torch.Tensor, inserted: int, seen_B: torch.Tensor | None, move: PointwiseOp
    ) -> torch.Tensor:
        ctx.rows, ctx.down, ctx.move = out_BSC.shape[1], inserted if seen_B is None else seen_B, move
        return move(out_BSC, -ctx.down, ctx.rows - inserted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out_BTC: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.move(grad_out_BTC, ctx.down, ctx.rows), None, None, None
