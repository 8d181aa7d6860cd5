"""GatedDelta: fast weights by the gated delta rule, with gates for every token, beside attention (Gated DeltaNet, as
Artificial Hippocampus Networks put it behind a window).

Every key-value head of a layer has a matrix S. A row, a key k of length 1 and a value v, is written by

    S ← α S + β k (v − α Sᵀ k)ᵀ,    −log α = softplus(w_a·x + b_a),  β = sigmoid(w_b·x + b_b)

with x the key and the value, each divided by its root mean square. All rows of a window are written when it ends. In
the next window every query q of the group reads it, and the answer is added to attention's output:

    out + swish(W_g q + b_g) · RMSNorm(q S) W_o

The gate is one number for each query head and position, W_o a matrix for each query head, zero at first. An empty S
answers nothing, so a document's first window is the unmodified model.

Shape suffixes: B batch rows, T positions, S sites (layers with matrices), H query heads, G key-value heads, D head
size, N rows, E entries of a key and a value, X queries of a group, C columns.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.common.shape import Shape
from recur_tune.ops.matmul import product_dtype
from recur_tune.recurrences.gated_delta.chunks import chunks
from recur_tune.recurrences.gated_delta.rule import written
from recur_tune.recurrences.seam import (
    GATE_SPEED,
    Heads,
    Overflow,
    OverflowPass,
    Rows,
    State,
    as_given,
    every_nth,
    load_kernels,
    single,
)

_KERNELS = "recur_tune.recurrences.gated_delta.kernels"
_WRITE_KERNELS = "recur_tune.recurrences.gated_delta.write_kernels"
_FORGETS = 1e-4, 1e-2  # at first, the share of a matrix that a row takes away: heads forget at different speeds
_OPEN = 1.0  # of the output's gate, before swish
_SMALL = 0.02  # standard deviation of output matrices, from scratch
_LEAST = 1e-6  # added to a mean square


class GatedDelta(Overflow):
    """A matrix for each key-value head of every n-th layer.

    Its fields are plain arguments: this code also runs beside a saved model, without pydantic.
    """

    def __init__(self, shape: Shape, delta_every: int = 1) -> None:
        super().__init__(shape)
        self.sites = every_nth(delta_every, shape)
        sites, heads, groups, size = len(self.sites), shape.heads, shape.key_value_heads, shape.head_size
        self.row_gates = nn.Parameter(torch.empty(sites, groups, 2 * size, 2))  # w_a and w_b
        self.row_logits = nn.Parameter(torch.empty(sites, groups, 2))  # b_a and b_b
        self.query_gates = nn.Parameter(torch.empty(sites, heads, heads * size))
        self.query_biases = nn.Parameter(torch.empty(sites, heads))
        self.outputs = nn.Parameter(torch.empty(sites, heads, size, size))
        self.reset(self)

    def reset(self, module: nn.Module) -> None:
        """Initialise this module or one inside it; Hugging Face calls it for each."""
        if module is not self:
            return
        for one in (self.row_gates, self.query_gates, self.outputs):
            nn.init.zeros_(one)
        nn.init.constant_(self.query_biases, _OPEN)
        with torch.no_grad():
            forgets = torch.empty_like(self.row_logits[..., 0]).uniform_(*map(math.log, _FORGETS)).exp()
            self.row_logits[..., 0] = forgets.expm1().log() / GATE_SPEED
            self.row_logits[..., 1] = 0.0

    def reset_from_scratch(self) -> None:
        """The output matrices, like a body's projections."""
        nn.init.normal_(self.outputs, std=_SMALL)

    def empty(self, batch_size: int) -> State:
        """Matrices of zeros."""
        size = self.shape.head_size
        return (self.outputs.new_zeros(batch_size, len(self.sites), self.shape.key_value_heads, size, size),)

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> GatedDeltaWindowPass:
        """Where a document begins, matrices are empty."""
        if state is None:
            return GatedDeltaWindowPass(self, None)
        [memory_BSGDD] = state
        if fresh_B is not None:
            memory_BSGDD = torch.where(fresh_B.view(-1, 1, 1, 1, 1), 0.0, memory_BSGDD)
        return GatedDeltaWindowPass(self, memory_BSGDD)

    def write(self, memory_BSGDD: torch.Tensor | None, rows: Rows, fused: bool = False) -> torch.Tensor:
        """The matrices after these rows; None: there were none. Fused, by a Triton kernel."""
        k_BSGND, v_BSGND, is_row_BSGN = single(rows.k_BSGND), single(rows.v_BSGND), rows.is_row_BSGN
        batch_size, sites, groups, count, size = k_BSGND.shape
        if not count:
            return self.empty(batch_size)[0] if memory_BSGDD is None else memory_BSGDD
        k_BSGND = F.rms_norm(k_BSGND, (size,), k_BSGND.new_full((size,), size**-0.5), _LEAST)  # of length 1
        # A value is divided by its root mean square behind the product, which has fewer numbers.
        of_keys, of_values = single(self.row_gates).chunk(2, dim=2)
        scale_BSGN1 = (v_BSGND.square().mean(-1, keepdim=True) + _LEAST).rsqrt()
        logit_BSGN2 = size**0.5 * (k_BSGND @ of_keys) + scale_BSGN1 * (v_BSGND @ of_values)
        logit_BSGN2 = logit_BSGN2 + GATE_SPEED * single(self.row_logits)[:, :, None]
        log_alpha_BSGN, beta_BSGN = -F.softplus(logit_BSGN2[..., 0]), logit_BSGN2[..., 1].sigmoid()
        if is_row_BSGN is not None:
            log_alpha_BSGN, beta_BSGN = log_alpha_BSGN * is_row_BSGN, beta_BSGN * is_row_BSGN
        rule = written
        if fused and size <= (kernels := load_kernels(_WRITE_KERNELS)).WIDEST:
            rule = kernels.written
        left_XDD = rule(
            None if memory_BSGDD is None else single(memory_BSGDD).flatten(0, 2),
            k_BSGND.flatten(0, 2), v_BSGND.flatten(0, 2), beta_BSGN.flatten(0, 2),
            log_alpha_BSGN.flatten(0, 2), chunk=chunks(count).positions,
        )  # fmt: skip
        return left_XDD.unflatten(0, (batch_size, sites, groups))


class GatedDeltaWindowPass(OverflowPass):
    """Reads the matrices that the window began with."""

    whole_heads = True

    def __init__(self, delta: GatedDelta, memory_BSGDD: torch.Tensor | None) -> None:
        self._delta, self._memory_BSGDD = delta, memory_BSGDD
        self._keys_values: dict[int, tuple[torch.Tensor, ...]] = {}  # by layers, where it takes the window's own rows
        self._sites: list[tuple[torch.Tensor, ...]] = []  # of each, the matrix and weights in the dtype of products

    def attended(self, layer: int, out_BTC: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Add the answers to the queries to the heads' output."""
        if layer not in self._delta.sites:
            return out_BTC
        q_BHTD, *keys_values = heads()
        if self.takes_own:
            self._keys_values[layer] = tuple(one.detach() for one in keys_values)
        if self._memory_BSGDD is None:
            return out_BTC
        with as_given(out_BTC):
            if not self._sites:
                self._look(q_BHTD.dtype)
            return self._with_answers(out_BTC, q_BHTD, *self._sites[self._delta.sites.index(layer)])

    def _with_answers(
        self, out_BTC: torch.Tensor, q_BHTD: torch.Tensor, memory_BGDD: torch.Tensor, gates: torch.Tensor,
        biases: torch.Tensor, outputs_HDD: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """The heads' output, side by side, with the answers to the queries."""
        heads, size = q_BHTD.shape[1], q_BHTD.shape[-1]
        gate_BTH = F.silu(F.linear(q_BHTD.transpose(1, 2).flatten(2), gates, biases))
        if self.fused and size <= load_kernels(_KERNELS).WIDEST:
            given = q_BHTD, out_BTC, gate_BTH, memory_BGDD, outputs_HDD, _LEAST
            return load_kernels(_KERNELS).add_answers(*given)
        # Query heads of a group read one matrix, so they stand one behind the other.
        found_BGXD = q_BHTD.unflatten(1, (memory_BGDD.shape[1], -1)).flatten(2, 3) @ memory_BGDD
        found_BHTD = F.rms_norm(found_BGXD, (size,), eps=_LEAST).view(q_BHTD.shape)
        added_BTHD = (found_BHTD @ outputs_HDD).transpose(1, 2)
        out_BTHD = out_BTC.unflatten(-1, (heads, size))
        return torch.addcmul(out_BTHD, gate_BTH[..., None], added_BTHD).flatten(2)

    def _look(self, dtype: torch.dtype) -> None:
        """Cast matrices and weights once for all layers; as views, whose gradients are stacked in one operation."""
        own, memory_BSGDD = self._delta, self._memory_BSGDD
        assert memory_BSGDD is not None
        weights = (own.query_gates, own.query_biases, own.outputs)
        parts = (memory_BSGDD.to(dtype).unbind(1), *(one.to(dtype).unbind() for one in weights))
        self._sites = list(zip(*parts, strict=True))

    def close(self, overlap: int, behind_BMK: torch.Tensor | None) -> State:
        """Write the window's positions, without those that the next window reads again."""
        keys, values = zip(*(self._keys_values[layer] for layer in self._delta.sites), strict=True)
        stride = max(0, keys[0].shape[2] - overlap)
        k_BSGND, v_BSGND = (torch.stack([one[:, :, :stride] for one in part], dim=1) for part in (keys, values))
        return self.write(Rows(k_BSGND, v_BSGND, None))

    def write(self, rows: Rows) -> State:
        """In the precision of reading."""
        dtype = product_dtype(rows.k_BSGND)
        with as_given(rows.k_BSGND):
            return (self._delta.write(self._memory_BSGDD, rows, self.fused).to(dtype),)

    def rest(self) -> None:
        """Lets go of what was cast."""
        self._sites = []

    def reorder(self, index_B: torch.Tensor) -> None:
        """Reorders the matrices and what is to be written."""
        self.rest()
        if self._memory_BSGDD is not None:
            self._memory_BSGDD = self._memory_BSGDD[index_B]
        self._keys_values = {layer: tuple(one[index_B] for one in part) for layer, part in self._keys_values.items()}
