"""A pretrained body as its modules: embeddings, blocks, norms, in the same places for every family.

A family's file in `models/bodies/` says which of its modules is which. They stay where transformers puts them, so any
checkpoint loads and saves as it is.

Shape suffixes: T positions, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from recur_tune.ops.lora import LoraLayer, lora_of
from recur_tune.ops.quantised import QuantisedWeight

Module = Any  # an nn.Module, whose attributes transformers decides
CosSin = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of rotary position embeddings, each [T, D]


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear projection: one module, or several whose outputs lie side by side.

    Attributes:
        modules: In the order of their columns.
        inputs_first: Whether a weight is [inputs, outputs], as in GPT-2's Conv1D; in nn.Linear it is [outputs, inputs].
    """

    modules: tuple[Module, ...]
    inputs_first: bool = False

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """One of each module, or none at all where they are quantised."""
        return tuple(module.weight for module in self.modules if not isinstance(module.weight, QuantisedWeight))

    @property
    def quantised(self) -> tuple[QuantisedWeight, ...]:
        """One of each module, or none at all."""
        return tuple(module.weight for module in self.modules if isinstance(module.weight, QuantisedWeight))

    @property
    def biases(self) -> tuple[nn.Parameter, ...]:
        """One of each module, or none at all."""
        return tuple(module.bias for module in self.modules if module.bias is not None)

    @property
    def lora(self) -> tuple[LoraLayer | None, ...]:
        """One of each module, where it has one."""
        return tuple(map(lora_of, self.modules))

    @property
    def lora_downs(self) -> tuple[nn.Parameter, ...]:
        """The first matrices of those."""
        return tuple(one.down for one in self.lora if one is not None)


@dataclass(frozen=True, eq=False)
class Block:
    """Attention and MLP, each behind a norm and added to the residual stream.

    Attributes:
        attention_norm: LayerNorm or RMSNorm.
        qkv: Queries, keys and values side by side.
        heads: Query heads.
        key_value_heads: Key-value heads; equally many query heads share each.
        scaling: Factor of the product of a query and a key.
        attention_dropout: Dropout rate of attention's weights.
        query_norm: RMSNorm of every head's query, before rotary position embeddings; None where there is none.
        key_norm: The same for keys.
        out: From the heads to the residual stream.
        mlp_norm: As `attention_norm`.
        up: To the MLP's units; where it is gated, the gate's columns first.
        down: From them to the residual stream.
        activation: Between the two.
        gated: Whether the activated gate is multiplied with the other half.
        dropouts: Behind attention and behind the MLP; None where the family has none.
    """

    attention_norm: Module
    qkv: Projection
    heads: int
    key_value_heads: int
    scaling: float | None
    attention_dropout: float
    query_norm: Module | None
    key_norm: Module | None
    out: Projection
    mlp_norm: Module
    up: Projection
    down: Projection
    activation: Module
    gated: bool
    dropouts: tuple[Module, Module] | None

    @property
    def rotary_heads(self) -> int:
        """Heads of queries and keys: those with rotary position embeddings, in families that have them."""
        return self.heads + self.key_value_heads

    @property
    def query_columns(self) -> int:
        """How many of the columns of `qkv` are queries."""
        columns = sum(module.weight.shape[1 if self.qkv.inputs_first else 0] for module in self.qkv.modules)
        return columns * self.heads // (self.heads + 2 * self.key_value_heads)


@dataclass(frozen=True, eq=False)
class Body:
    """A decoder between its tokens and its last norm, or an encoder (`encoder.py`).

    Attributes:
        tokens: Embeddings of tokens.
        positions: Embeddings of positions; None where positions are rotary.
        rotary: Makes cosines and sines of positions; None where positions are learned.
        dropout: Behind the embeddings; None where the family has none.
        blocks: In their order.
        final_norm: Behind the last block.
    """

    tokens: nn.Embedding
    positions: nn.Embedding | None
    rotary: Module | None
    dropout: Module | None
    blocks: tuple[Block, ...]
    final_norm: Module

    @cached_property
    def projections(self) -> tuple[Projection, ...]:
        """All of the blocks' projections."""
        return tuple(one for block in self.blocks for one in (block.qkv, block.out, block.up, block.down))

    @property
    def parameters(self) -> set[nn.Parameter]:
        """All of them."""
        norms = [self.final_norm]
        for block in self.blocks:
            norms += [block.attention_norm, block.mlp_norm, block.query_norm, block.key_norm]
        modules = [self.tokens, self.positions, *norms, *(module for one in self.projections for module in one.modules)]
        return {parameter for module in modules if module is not None for parameter in module.parameters()}

    @property
    def stream_dtype(self) -> torch.dtype:
        """The dtype of the residual stream: that of the norms, since frozen matrices may have a shorter one."""
        return self.blocks[0].attention_norm.weight.dtype

    @property
    def lora(self) -> list[LoraLayer]:
        """That of every projection that has one."""
        return [one for projection in self.projections for one in projection.lora if one is not None]

    @property
    def has_dropout(self) -> bool:
        """Whether any dropout rate is above zero."""
        behind = [self.dropout, *(one for block in self.blocks for one in block.dropouts or ())]
        rates = [*(block.attention_dropout for block in self.blocks), *(one.p for one in behind if one is not None)]
        return any(rates) or any(one.dropout for one in self.lora)

    def cos_sin_before(self, count: int, x_BTK: torch.Tensor) -> CosSin | None:
        """Cosines and sines of so many rows before a window."""
        return self.cos_sin(-count, count, x_BTK)

    def cos_sin(self, begin: int, count: int, x_BTK: torch.Tensor) -> CosSin | None:
        """Cosines and sines of so many positions from `begin` on; None where positions are learned."""
        if self.rotary is None:
            return None
        position_1T = torch.arange(begin, begin + count, device=x_BTK.device)[None]
        cos_1TD, sin_1TD = self.rotary(x_BTK, position_1T)
        return cos_1TD[0], sin_1TD[0]
