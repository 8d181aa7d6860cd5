"""Weights of a key-value cache, its empty state, and what is measured for it.

Shape suffixes: B batch rows, S sites (layers that keep rows), M rows, C columns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.ops.matmul import product_dtype
from recur_tune.recurrences.cache.measure import PlaceMeasure
from recur_tune.recurrences.cache.quantised import dequantised, quantised
from recur_tune.recurrences.cache.row_size import AS_READ, row_columns
from recur_tune.recurrences.seam import CLOSED_GATE, Recurrence, State, layers_at, load_kernels

KERNELS = "recur_tune.recurrences.cache.row_kernels"


class CacheWeights(Recurrence):
    """The fields and weights of a cache, whichever way its rows join a window."""

    stops_gradients = True
    places: torch.Tensor | None

    def __init__(
        self,
        shape: Shape,
        cache_rows: int = 128,
        cache_layer: int | Literal["all"] = "all",
        cache_join: str = "softmax",
        cache_keep: str = "recent",
        cache_sinks: int = 4,
        cache_bits: Literal[16, 8, 4] = 16,
    ) -> None:
        super().__init__(shape)
        self.keep, self.bits = cache_keep, cache_bits
        self.rows, self.sinks, gated = cache_rows, min(cache_sinks, cache_rows), cache_join == "gate"
        self.sites = layers_at(cache_layer, shape)
        sites, self.columns = len(self.sites), 2 * shape.key_value_heads * shape.head_size
        placed = shape.learned_positions and not gated
        self.register_buffer("places", torch.zeros(sites, shape.context, self.columns) if placed else None)
        # Apart from the window a common offset of all keys would change nothing, so channels have scales instead.
        self.offsets = None if gated else nn.Parameter(torch.zeros(sites, self.columns))
        self.scales = nn.Parameter(torch.ones(sites, self.columns)) if gated else None
        self.gates = nn.Parameter(torch.full((sites, shape.heads), CLOSED_GATE)) if gated else None

    def reset(self, module: nn.Module) -> None:
        """Initialise this module or one inside it; Hugging Face calls it for each."""
        for parameter, value in ((self.offsets, 0.0), (self.scales, 1.0), (self.gates, CLOSED_GATE)):
            if parameter is not None:
                nn.init.constant_(parameter, value)

    def reset_from_scratch(self) -> None:
        """Memorizing Transformers' gates, half open."""
        if self.gates is not None:
            nn.init.zeros_(self.gates)

    def calibrated_by(self) -> PlaceMeasure | None:
        """The measurement of what positions add to keys and values, where they are learned."""
        return None if self.places is None else PlaceMeasure(self.sites, self.places)

    def empty(self, batch_size: int) -> State:
        """Rows of zeros, of which none is filled."""
        like = next(self.parameters())
        dtype = like.dtype if self.bits == AS_READ else torch.uint8
        columns = row_columns(self.shape.head_size, self.shape.key_value_heads, self.bits)
        rows_BSMC = like.new_zeros(batch_size, len(self.sites), self.rows, columns, dtype=dtype)
        return rows_BSMC, like.new_zeros(batch_size, dtype=torch.float32)

    def stored(self, rows_C: torch.Tensor) -> torch.Tensor:
        """Rows as the state has them: as they are, or quantised."""
        return rows_C if self.bits == AS_READ else quantised(rows_C, self.shape.head_size, self.bits)

    def numbers(self, stored_BMC: torch.Tensor, fused: bool = False) -> torch.Tensor:
        """Rows of the state as numbers, by a kernel or by operations."""
        if self.bits == AS_READ:
            return stored_BMC
        given = stored_BMC, self.shape.head_size, self.bits, product_dtype(next(self.parameters()))
        if fused:
            made: torch.Tensor = load_kernels(KERNELS).dequantised(*given)
            return made
        return dequantised(*given)
