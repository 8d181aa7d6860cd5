"""Operations of a transformer block, differentiated by autograd.

Decoders and encoders are written against `BlockOps`. Training replaces it by `FusedBackward` (`fused_backward.py`). The
output of a matrix product, a `Product`, goes from one operation to another, and only these know its type.

Shape suffixes: B batch rows, T positions, K hidden size, C columns, D head size.
"""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.ops.body import Block, Body, CosSin, Module, Projection
from recur_tune.ops.lora import lora_of
from recur_tune.ops.quantised import QuantisedWeight, dequantised
from recur_tune.ops.reference import (
    apply_rotary,
    grad_extra,
    grad_places,
    is_rms,
    join,
    move,
    pack,
    rms_norm,
    stretch_means,
)

Product = Any  # a matrix product's output: here, a tensor


class BlockOps:
    """The family's own modules, by autograd."""

    fused: bool = False  # whether a recurrence runs its Triton kernels, where it has any
    # What attention needs of `reference.py`; one by one, since a saved model's code has no package to import it from.
    pointwise: Any = SimpleNamespace(
        grad_extra=grad_extra, grad_places=grad_places, join=join, move=move, pack=pack, apply_rotary=apply_rotary
    )

    def embed(self, tokens_BT: torch.Tensor, position_BT: torch.Tensor, body: Body) -> torch.Tensor:
        """Embeddings, where the residual stream begins; positions may be [1, T], the same in all batch rows."""
        x_BTK = body.tokens(tokens_BT).to(body.stream_dtype)
        if body.positions is not None:
            x_BTK = x_BTK + body.positions(position_BT)
        return x_BTK if body.dropout is None else body.dropout(x_BTK)

    def norm(self, x_BTK: torch.Tensor, added: Product | None, norm: Module) -> tuple[torch.Tensor, torch.Tensor]:
        """Add to the residual stream, and normalise the sum; both are returned."""
        if added is not None:
            x_BTK = x_BTK + added
        return x_BTK, rms_norm(x_BTK, norm) if is_rms(norm) else norm(x_BTK)

    def norm_project(
        self,
        x_BTK: torch.Tensor,
        added: Product | None,
        norm: Module,
        projection: Projection,
        begin: int = 0,
        means: int = 0,
    ) -> tuple[torch.Tensor, Product, torch.Tensor | None]:
        """The same, with the norm projected to the columns from `begin` on; and, unless `means` is 0, the stream's
        means over so many stretches of positions, [B, M, K]."""
        x_BTK, normed_BTK = self.norm(x_BTK, added, norm)
        value = _columns(normed_BTK, projection, begin) if begin else self.project(normed_BTK, projection)
        return x_BTK, value, self.means(x_BTK, means) if means else None

    def means(self, x_BTK: torch.Tensor, count: int) -> torch.Tensor:
        """Means over so many stretches of positions, [B, M, K]."""
        return stretch_means(x_BTK, count)

    def norm_mlp(self, x_BTK: torch.Tensor, added: Product | None, block: Block) -> tuple[torch.Tensor, Product]:
        """Add to the residual stream, normalise, and run the block's MLP; the sum and the MLP's output."""
        x_BTK, hidden, _ = self.norm_project(x_BTK, added, block.mlp_norm, block.up)
        return x_BTK, self.project(activated(hidden, block), block.down)

    def mlp(self, x_BTK: torch.Tensor, block: Block) -> Product:
        """A block's MLP alone, for post-norm blocks."""
        hidden = self.value(self.project(x_BTK, block.up))
        return self.project(activated(hidden, block), block.down)

    def project(self, x_BTK: torch.Tensor, projection: Projection) -> Product:
        """A matrix product."""
        return _side_by_side([_linear(part, x_BTK) for part in projection.modules])

    def value(self, product: Product) -> torch.Tensor:
        """A product's output as a tensor, for operations outside this class."""
        return product

    def with_grad_bias(self, product: Product | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same, and the accumulator that the backward pass of the next operation adds the bias's gradient to."""
        return product, None

    def heads(
        self, product: Product | torch.Tensor, block: Block, cos_sin: CosSin | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values, each [B, heads, T, head size]; with `cos_sin` queries and keys get their rotary
        position embeddings."""
        return split_heads(product if cos_sin is None else apply_rotary(product, *cos_sin, block.rotary_heads), block)

    def plus(self, product: Product, x_BTK: torch.Tensor | None) -> Product:
        """A product's output plus a tensor, where there is one."""
        return product if x_BTK is None else product + x_BTK

    def dropout(self, product: Product, dropout: Module | None) -> Product:
        """Dropout on a product's output, where a family has any."""
        return product if dropout is None else dropout(product)


def activated(hidden: torch.Tensor, block: Block) -> torch.Tensor:
    """An MLP's activation, gated where the block's is."""
    if block.gated:
        gate, hidden = hidden.chunk(2, dim=-1)
        return block.activation(gate) * hidden
    # Hugging Face computes gelu_new by eight operations; torch's kernel is the same function.
    return F.gelu(hidden, approximate="tanh") if is_tanh_gelu(block) else block.activation(hidden)


def is_tanh_gelu(block: Block) -> bool:
    """Whether the activation is GELU approximated by a tanh, under any of its names."""
    return type(block.activation).__name__ in ("NewGELUActivation", "GELUTanh", "PytorchGELUTanh")


def split_heads(qkv_BTC: torch.Tensor, block: Block) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values as views, each [B, heads, T, head size]."""
    head_size = qkv_BTC.shape[-1] // (block.heads + 2 * block.key_value_heads)
    heads = [block.heads, block.key_value_heads, block.key_value_heads]
    return qkv_BTC.unflatten(-1, (-1, head_size)).transpose(1, 2).split(heads, dim=1)


def _columns(x_BTK: torch.Tensor, projection: Projection, begin: int) -> torch.Tensor:
    """A product's columns from `begin` on; where it has several modules, one of them begins there."""
    if projection.inputs_first:
        [part] = projection.modules
        made = F.linear(x_BTK, fitting(part.weight, x_BTK)[:, begin:].t(), part.bias[begin:])
        return made if (lora := lora_of(part)) is None else made + lora(x_BTK, begin)
    ends = accumulate(part.weight.shape[0] for part in projection.modules)
    parts = zip(projection.modules, ends, strict=True)
    return _side_by_side([_linear(part, x_BTK) for part, end in parts if end > begin])


def _linear(part: Module, x_BTK: torch.Tensor) -> torch.Tensor:
    """A linear module's output, with its LoRA where it has one."""
    weight = fitting(part.weight, x_BTK)
    if weight is part.weight:
        made = part(x_BTK)
    else:
        made = F.linear(x_BTK, weight if isinstance(part, nn.Linear) else weight.t(), part.bias)
    return made if (lora := lora_of(part)) is None else made + lora(x_BTK)


def fitting(weight: torch.Tensor | QuantisedWeight, x_BTK: torch.Tensor) -> torch.Tensor:
    """A weight for a product with these rows: dequantised; and without autocast, a frozen weight in bfloat16 gets their
    dtype."""
    if isinstance(weight, QuantisedWeight):
        weight = dequantised([weight])
    alike = weight.dtype == x_BTK.dtype or weight.dtype != torch.bfloat16
    return weight if alike or torch.is_autocast_enabled(x_BTK.device.type) else weight.to(x_BTK.dtype)


def _side_by_side(made: list[torch.Tensor]) -> torch.Tensor:
    return made[0] if len(made) == 1 else torch.cat(made, dim=-1)
