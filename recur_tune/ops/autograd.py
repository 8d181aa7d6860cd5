"""A transformer block's operations, by autograd.

A block is written against these few, so that training can run them in another way (`gathered.py`). What a matrix
product made goes from one of them to another, and only they know what it is.

Shape suffixes: B batch rows, T positions, K hidden size, C columns, D head size.
"""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from recur_tune.ops.body import Block, Body, CosSin, Module, Projection
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

Product = Any  # what a matrix product made: here, a tensor


class BlockOps:
    """The modules as they are."""

    fused: bool = False  # whether a recurrence takes its Triton kernels, where it has any
    # Those that attention needs; one by one, since a saved model's code has no package to take the module from.
    pointwise: Any = SimpleNamespace(
        grad_extra=grad_extra, grad_places=grad_places, join=join, move=move, pack=pack, apply_rotary=apply_rotary
    )

    def embed(self, tokens_BT: torch.Tensor, position_BT: torch.Tensor, body: Body) -> torch.Tensor:
        """The residual stream at its start; positions may be [1, T], the same in all batch rows."""
        x_BTK = body.tokens(tokens_BT)
        if body.positions is not None:
            x_BTK = x_BTK + body.positions(position_BT)
        return x_BTK if body.dropout is None else body.dropout(x_BTK)

    def norm(self, x_BTK: torch.Tensor, added: Product | None, norm: Module) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream with what is added to it, and its norm."""
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
        """The same, but the norm projected to the columns from `begin` on; and the stream's means over so many
        stretches of positions, [B, M, K], if they are wanted."""
        x_BTK, normed_BTK = self.norm(x_BTK, added, norm)
        value = _columns(normed_BTK, projection, begin) if begin else self.project(normed_BTK, projection)
        return x_BTK, value, self.means(x_BTK, means) if means else None

    def means(self, x_BTK: torch.Tensor, count: int) -> torch.Tensor:
        """Means over so many stretches of positions, [B, M, K]."""
        return stretch_means(x_BTK, count)

    def norm_mlp(self, x_BTK: torch.Tensor, added: Product | None, block: Block) -> tuple[torch.Tensor, Product]:
        """The same, but the norm through the block's MLP."""
        x_BTK, hidden, _ = self.norm_project(x_BTK, added, block.mlp_norm, block.up)
        return x_BTK, self.project(activated(hidden, block), block.down)

    def mlp(self, x_BTK: torch.Tensor, block: Block) -> Product:
        """A block's MLP alone, for blocks that normalise elsewhere."""
        hidden = self.value(self.project(x_BTK, block.up))
        return self.project(activated(hidden, block), block.down)

    def project(self, x_BTK: torch.Tensor, projection: Projection) -> Product:
        """A matrix product."""
        return _side_by_side([part(x_BTK) for part in projection.modules])

    def value(self, product: Product) -> torch.Tensor:
        """What a product made, for an operation that is none of these."""
        return product

    def with_grad_bias(self, product: Product | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same, and the sum that the gradient of its bias is added to by whoever differentiates that operation."""
        return product, None

    def heads(
        self, product: Product | torch.Tensor, block: Block, cos_sin: CosSin | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values of what a product made, or a tensor's, each [B, heads, T, head size]; with `cos_sin`
        queries and keys are rotated to their positions."""
        return split_heads(product if cos_sin is None else apply_rotary(product, *cos_sin, block.rotary_heads), block)

    def plus(self, product: Product, x_BTK: torch.Tensor | None) -> Product:
        """What a product made, and something beside it."""
        return product if x_BTK is None else product + x_BTK

    def dropout(self, product: Product, dropout: Module | None) -> Product:
        """Dropout on what a product made, where a family has any."""
        return product if dropout is None else dropout(product)


def activated(hidden: torch.Tensor, block: Block) -> torch.Tensor:
    """What an MLP's units make of what they are given."""
    if block.gated:
        gate, hidden = hidden.chunk(2, dim=-1)
        return block.activation(gate) * hidden
    # Hugging Face spells gelu_new as eight separate operations; torch's kernel is the same function.
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
    """A product's columns from `begin` on; where it has several parts, one begins there."""
    if projection.inputs_first:
        [part] = projection.modules
        return F.linear(x_BTK, part.weight[:, begin:].t(), part.bias[begin:])
    ends = accumulate(len(weight) for weight in projection.weights)
    return _side_by_side([part(x_BTK) for part, end in zip(projection.modules, ends, strict=True) if end > begin])


def _side_by_side(made: list[torch.Tensor]) -> torch.Tensor:
    return made[0] if len(made) == 1 else torch.cat(made, dim=-1)
