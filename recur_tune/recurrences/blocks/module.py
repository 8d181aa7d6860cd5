"""Blocks: the Block-Recurrent Transformer's state vectors at one layer (Hutchins et al. 2022).

Shape suffixes: B batch rows, T positions, S state vectors, K hidden size, H heads, D head size, C columns (H D).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.recurrences.seam import Recurrence, State, WindowPass

_SHARE = 0.1  # of the usual variance, for weights of gates
_SMALL = 0.1  # standard deviation
_OF_BODIES = 0.02  # standard deviation of their projections


class Blocks(Recurrence):
    """State vectors that a layer's positions attend to, and that attend to them.

    Its fields are plain arguments: this code also runs beside a saved model, without pydantic.
    """

    def __init__(
        self,
        shape: Shape,
        state_vectors: int = 64,
        block_layer: int | Literal["upper"] = "upper",
        block_gate: str = "fixed",
    ) -> None:
        super().__init__(shape)
        hidden, columns = shape.hidden, shape.heads * shape.head_size
        self.layer = max(0, shape.layers - 3) if block_layer == "upper" else block_layer - 1
        self.initial = nn.Parameter(torch.empty(state_vectors, hidden))
        self.ids = nn.Parameter(torch.empty(state_vectors, hidden))
        self.norm_of_tokens = nn.LayerNorm(hidden)
        self.norm_of_states = nn.LayerNorm(hidden, bias=False)  # the ids would learn the same
        self.token_query = nn.Linear(hidden, columns, bias=False)
        self.token_output = nn.Linear(columns, hidden, bias=False)
        self.token_keys_values = nn.Linear(hidden, 2 * columns, bias=False)
        self.state_keys_values = nn.Linear(hidden, 2 * columns, bias=False)
        self.state_queries = nn.Linear(hidden, 2 * columns, bias=False)  # to attend to states, and to tokens
        self.join = nn.Linear(2 * columns, hidden)
        self.gates = nn.Linear(2 * columns, 2 * hidden) if block_gate == "lstm" else None  # LSTM gates: forget, input
        self.gate_bias = nn.Parameter(torch.empty(hidden)) if block_gate == "fixed" else None
        self.apply(self.reset)

    def reset(self, module: nn.Module) -> None:
        """Initialise this module or one inside it; Hugging Face calls it for each."""
        if module is self:
            nn.init.normal_(self.initial, std=_SMALL)
            nn.init.normal_(self.ids)
            if self.gate_bias is not None:
                nn.init.normal_(self.gate_bias, std=_SMALL)
        elif module is self.token_output:
            nn.init.zeros_(module.weight)  # so that at first a pretrained body is unchanged
        elif isinstance(module, nn.Linear):
            is_gate = module is self.gates
            nn.init.normal_(module.weight, std=math.sqrt((_SHARE if is_gate else 1) / module.in_features))
            if is_gate:
                nn.init.normal_(module.bias, std=_SMALL)
            elif module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()

    def reset_from_scratch(self) -> None:
        """The projection of attention to states like a body's own: in the source it is one half of the layer's."""
        nn.init.normal_(self.token_output.weight, std=_OF_BODIES)

    def empty(self, batch_size: int) -> State:
        """Zeros."""
        return (self.initial.new_zeros(batch_size, *self.initial.shape),)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> BlocksWindowPass:
        """A document begins with learned states."""
        return BlocksWindowPass(self, None if state is None else state[0], fresh_B)

    def begin(self, state_BSK: torch.Tensor | None, fresh_B: torch.Tensor | None, batch_size: int) -> torch.Tensor:
        """The states of every batch row; the learned initial ones where a document begins."""
        if state_BSK is None:
            return self.initial.repeat(batch_size, 1, 1)
        if fresh_B is None:
            return state_BSK
        return torch.where(fresh_B[:, None, None], self.initial, state_BSK)

    def told_apart(self, state_BSK: torch.Tensor) -> torch.Tensor:
        """States for attention: normalised, plus a learned id each."""
        return self.norm_of_states(state_BSK) + self.ids

    def look(self, query_BTC: torch.Tensor, keys_values_BSC: torch.Tensor) -> torch.Tensor:
        """Attention without a mask."""
        heads = (self.shape.heads, self.shape.head_size)
        q_BHTD, k_BHSD, v_BHSD = (
            rows.unflatten(-1, heads).transpose(1, 2) for rows in (query_BTC, *keys_values_BSC.chunk(2, dim=-1))
        )
        return F.scaled_dot_product_attention(q_BHTD, k_BHSD, v_BHSD).transpose(1, 2).flatten(2)

    def gated(self, state_BSK: torch.Tensor, taken_BSC: torch.Tensor) -> torch.Tensor:
        """The next states: old and new ones, mixed by the gate."""
        new_BSK = self.join(taken_BSC)
        if self.gate_bias is not None:
            kept_K = self.gate_bias.sigmoid()
            return state_BSK * kept_K + new_BSK * (1 - kept_K)
        assert self.gates is not None
        # In the states' own precision: products of gates near 1 over many windows need it.
        forget_BSK, take_BSK = self.gates(taken_BSC).to(state_BSK.dtype).chunk(2, dim=-1)
        # Biased to keep the old states.
        return state_BSK * (forget_BSK + 1).sigmoid() + new_BSK * (take_BSK - 1).sigmoid()


class BlocksWindowPass(WindowPass):
    """A window's positions attend to the states that it begins with; at its end the states attend to them."""

    def __init__(self, blocks: Blocks, state_BSK: torch.Tensor | None, fresh_B: torch.Tensor | None) -> None:
        self._blocks, self._given = blocks, (state_BSK, fresh_B)
        self._states: tuple[torch.Tensor, ...] = ()  # states, their keys and values, and the same for attention
        self._parts: list[torch.Tensor] = []  # normalised positions, by parts of the window

    def branch(self, layer: int, x_BTK: torch.Tensor) -> torch.Tensor | None:
        """Attention of positions to the states."""
        blocks = self._blocks
        if layer != blocks.layer:
            return None
        if not self._states:
            state_BSK = blocks.begin(*self._given, batch_size=len(x_BTK))
            seen_BSK = blocks.told_apart(state_BSK)
            self._states = state_BSK, blocks.state_keys_values(seen_BSK), seen_BSK
        normed_BTK = blocks.norm_of_tokens(x_BTK)
        self._parts.append(normed_BTK)
        return blocks.token_output(blocks.look(blocks.token_query(normed_BTK), self._states[1]))

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """The states attend to each other and to the positions that are not read again, and pass the gate."""
        blocks, (state_BSK, keys_values_BSC, *seen) = self._blocks, self._states
        seen_BSK = seen[0] if seen else blocks.told_apart(state_BSK)
        self._parts = [torch.cat(self._parts, dim=1)]
        [normed_BTK] = self._parts
        new_BTK = normed_BTK[:, : normed_BTK.shape[1] - overlap]
        at_states_BSC, at_tokens_BSC = blocks.state_queries(seen_BSK).chunk(2, dim=-1)
        looks = (
            blocks.look(at_states_BSC, keys_values_BSC),
            blocks.look(at_tokens_BSC, blocks.token_keys_values(new_BTK)),
        )
        return (blocks.gated(state_BSK, torch.cat(looks, dim=-1)),)

    def rest(self) -> None:
        """Lets go of the states as attention sees them; their keys and values take many operations, and stay."""
        self._given, self._states = (None, None), self._states[:2]

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders the states and the positions that were read."""
        self._states = tuple(one[index_B] for one in self._states)
        self._parts = [part[index_B] for part in self._parts]
