"""The matrix product of a projection during one training step, in the dtype of products; LoRA is joined to the weight.

A change of low rank has few operations, but by itself it reads and writes again all that the weight's product has
written. So B stands beside the inputs of a weight with more outputs than inputs, and A below the outputs of another:

    [rows, rows A'] [W, B]' = rows W' + rows A' B'      backward, grad [W, B] are the gradients of rows and of rows A'
    rows [W; A]' = rows W', rows A'                     backward, [grad, grad B] [W; A] is the gradient of rows

What is left to be added is on the shorter side. B has LoRA's factor in it.

Shape suffixes: N rows (batch rows times positions), K inputs, C columns, J either of the two with ranks behind it, R
LoRA's ranks of all modules side by side, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.ops.body import Projection
from recur_tune.ops.joint_weight import is_beside_inputs, padded_ranks, room_for_lora, weight_together
from recur_tune.ops.lora import LoraLayer
from recur_tune.ops.matmul import add_product, product_dtype
from recur_tune.ops.quantised import dequantised

# What a product keeps for LoRA's gradients: rows times A, and the dropout mask; None where there is none.
Kept = tuple[torch.Tensor | None, torch.Tensor | None]
NOTHING: Kept = (None, None)


class Totals(Protocol):
    """Accumulators of gradients."""

    def of(self, stack: tuple[nn.Parameter, ...]) -> torch.Tensor | None:
        """That of these parameters, one behind the other; None where they are not trained, or are none."""


@dataclass(frozen=True)
class WeightProduct:
    """Rows times a weight, without LoRA.

    Attributes:
        matrix: Gives the weight, [K, C]. A quantised one is dequantised for every product, and freed behind it: what is
            given is not to be kept.
        bias: One number a column; None where there is none.
    """

    matrix: Callable[[], torch.Tensor]
    bias: torch.Tensor | None

    def times(self, rows_NK: torch.Tensor) -> tuple[torch.Tensor, Kept]:
        """The product, and what LoRA keeps of it."""
        return self._joint(rows_NK), NOTHING

    def grad_low(self, grad_NC: torch.Tensor) -> torch.Tensor | None:
        """The gradient with respect to rows times A, from that with respect to the product; None without LoRA."""
        return None

    def grad_rows(self, grad_NC: torch.Tensor, kept: Kept) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The gradients with respect to the rows and to rows times A."""
        return grad_NC @ self.matrix().t(), None

    def add_gradients(
        self, rows_NK: torch.Tensor, grad_NC: torch.Tensor, grad_low_NR: torch.Tensor | None, kept: Kept
    ) -> None:
        """Accumulate the gradients of A and B."""

    def _joint(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.matrix() if self.bias is None else torch.addmm(self.bias, rows, self.matrix())


@dataclass(frozen=True)
class LoraPart:
    """LoRA of one module of a projection.

    Attributes:
        ranks: Its columns among the ranks of all.
        columns: Its columns of the product.
        grad_up: B's accumulator; None where it is not trained.
    """

    ranks: slice
    columns: slice
    grad_up: torch.Tensor | None


@dataclass(frozen=True)
class LoraApart(WeightProduct):
    """With LoRA in products of its own: beside a weight that is dequantised for every product, or below one whose rows
    are not A's, which dropout has changed.

    Attributes:
        down_RK: A of every module, one behind the other.
        up_CR: B of every module times LoRA's factor, each in its own columns and ranks, and zeros.
        grad_down: A's accumulator; None where it is not trained.
        parts: The modules.
        scaling: LoRA's factor, of B A.
        rate: Of dropout on A's rows, one mask for all modules.
    """

    down_RK: torch.Tensor
    up_CR: torch.Tensor
    grad_down: torch.Tensor | None
    parts: tuple[LoraPart, ...]
    scaling: float
    rate: float

    def times(self, rows_NK: torch.Tensor) -> tuple[torch.Tensor, Kept]:
        """Adds to the weight's product in place."""
        product_NC, (low_NR, mask_NK) = self._joint(rows_NK), self._low(rows_NK)
        return torch.addmm(product_NC, low_NR, self.up_CR.t(), out=product_NC), (low_NR, mask_NK)

    def grad_low(self, grad_NC: torch.Tensor) -> torch.Tensor:
        """Through B."""
        return grad_NC @ self.up_CR

    def grad_rows(self, grad_NC: torch.Tensor, kept: Kept) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Adds to the weight's product in place."""
        grad_low_NR = self.grad_low(grad_NC)
        return self._through_down(grad_NC @ self.matrix().t(), grad_low_NR, kept), grad_low_NR

    def add_gradients(
        self, rows_NK: torch.Tensor, grad_NC: torch.Tensor, grad_low_NR: torch.Tensor | None, kept: Kept
    ) -> None:
        """One product for every A, and one for each B."""
        low_NR, mask_NK = kept
        assert low_NR is not None and grad_low_NR is not None
        if self.grad_down is not None:
            add_product(self.grad_down, grad_low_NR[:, : len(self.grad_down)], self._dropped(rows_NK, mask_NK))
        for part in self.parts:
            add_product(part.grad_up, grad_NC[:, part.columns], low_NR[:, part.ranks], self.scaling)

    def _low(self, rows_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        mask_NK = torch.empty_like(rows_NK, dtype=torch.bool).bernoulli_(1 - self.rate) if self.rate else None
        return self._dropped(rows_NK, mask_NK) @ self.down_RK.t(), mask_NK

    def _through_down(self, grad_rows_NK: torch.Tensor, grad_low_NR: torch.Tensor, kept: Kept) -> torch.Tensor:
        """Add to the gradient with respect to the rows, in place."""
        if kept[1] is None:
            return torch.addmm(grad_rows_NK, grad_low_NR, self.down_RK, out=grad_rows_NK)
        grad_rows_NK += self._dropped(grad_low_NR @ self.down_RK, kept[1])
        return grad_rows_NK

    def _dropped(self, rows_NK: torch.Tensor, mask_NK: torch.Tensor | None) -> torch.Tensor:
        return rows_NK if mask_NK is None else rows_NK * mask_NK * (1 / (1 - self.rate))


class LoraBesideInputs(LoraApart):
    """With B beside the weight's inputs: `matrix` is [K and R, C]."""

    def times(self, rows_NK: torch.Tensor) -> tuple[torch.Tensor, Kept]:
        """One product, of the rows with rows times A behind them."""
        low_NR, mask_NK = self._low(rows_NK)
        return self._joint(torch.cat((rows_NK, low_NR), dim=1)), (low_NR, mask_NK)

    def grad_rows(self, grad_NC: torch.Tensor, kept: Kept) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One product gives both."""
        grad_NJ = grad_NC @ self.matrix().t()
        grad_rows_NK, grad_low_NR = grad_NJ.tensor_split([self.down_RK.shape[1]], dim=1)
        return self._through_down(grad_rows_NK, grad_low_NR, kept), grad_low_NR


class LoraBelowOutputs(LoraApart):
    """With A below the weight's outputs, without dropout: `matrix` is [K, C and R], and `bias` has zeros behind it."""

    def times(self, rows_NK: torch.Tensor) -> tuple[torch.Tensor, Kept]:
        """One product gives rows times the weight, and rows times A."""
        product_NC, low_NR = self._joint(rows_NK).tensor_split([len(self.up_CR)], dim=1)
        low_NR = low_NR.contiguous()  # a view would keep the whole product
        return torch.addmm(product_NC, low_NR, self.up_CR.t(), out=product_NC), (low_NR, None)

    def grad_rows(self, grad_NC: torch.Tensor, kept: Kept) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One product, of both gradients side by side."""
        grad_low_NR = self.grad_low(grad_NC)
        return torch.cat((grad_NC, grad_low_NR), dim=1) @ self.matrix().t(), grad_low_NR


def weight_product(projection: Projection, totals: Totals, begin: int = 0) -> WeightProduct:
    """The product of a projection's columns from `begin` on; weights are cast once, and A and B put into their room."""
    bias_C = _cast(projection.biases)[begin:] if projection.biases else None
    matrix = _matrix(projection)
    layers = [layer for layer in projection.lora if layer is not None]
    if not layers:
        return WeightProduct(lambda: matrix()[:, begin:], bias_C)
    down_RK, up_CR, rate = _down(projection), _up(projection), layers[0].rate
    ranks, columns = len(down_RK), len(up_CR)
    lora = (
        down_RK, up_CR[begin:], totals.of(projection.lora_downs), _parts(projection, totals, begin),
        layers[0].scaling, rate,
    )  # fmt: skip
    if not any(room_for_lora(projection)):
        return LoraApart(lambda: matrix()[:, begin:], bias_C, *lora)
    joint = matrix()
    if is_beside_inputs(projection):
        joint[-ranks:].copy_(up_CR.t())
        return LoraBesideInputs(lambda: joint[:, begin:], bias_C, *lora)
    if rate:
        return LoraApart(lambda: joint[:, begin:columns], bias_C, *lora)
    joint[:, columns:].copy_(down_RK.t())
    padded = None if bias_C is None else F.pad(bias_C, (0, ranks))
    return LoraBelowOutputs(lambda: joint[:, begin:], padded, *lora)


def _matrix(projection: Projection) -> Callable[[], torch.Tensor]:
    """Gives a projection's weight, [inputs, columns], in the dtype of products; with room for LoRA, where it has it."""
    dtype, quantised = product_dtype(projection.modules[0].weight), projection.quantised

    def inputs_first(weight: torch.Tensor) -> torch.Tensor:
        return weight if projection.inputs_first else weight.t()

    if quantised:
        return lambda: inputs_first(dequantised(quantised).to(dtype))
    together = inputs_first(weight_together(projection, room_for_lora(projection), dtype))
    return lambda: together


def _down(projection: Projection) -> torch.Tensor:
    """A of every module, one behind the other, and zeros."""
    down_RK = _cast(projection.lora_downs)
    return F.pad(down_RK, (0, 0, 0, padded_ranks(projection) - len(down_RK)))


def _up(projection: Projection) -> torch.Tensor:
    """B of every module times LoRA's factor, each in its own columns and ranks, and zeros."""
    *_, last = spans = list(_spans(projection))
    dtype, like = product_dtype(projection.lora_downs[0]), projection.lora_downs[0]
    up_CR = like.new_zeros(last.columns.stop, padded_ranks(projection), dtype=dtype)
    for layer, columns, ranks in spans:
        if layer is not None:
            up_CR[columns, ranks] = layer.up.detach() * layer.scaling
    return up_CR


def _parts(projection: Projection, totals: Totals, begin: int) -> tuple[LoraPart, ...]:
    """The modules with columns from `begin` on."""
    found = []
    for layer, columns, ranks in _spans(projection):
        if layer is None or columns.stop <= begin:
            continue
        grad_up, first = totals.of((layer.up,)), max(columns.start, begin)
        cut = None if grad_up is None else grad_up[first - columns.start :]
        found.append(LoraPart(ranks, slice(first - begin, columns.stop - begin), cut))
    return tuple(found)


class _Span(NamedTuple):
    layer: LoraLayer | None
    columns: slice
    ranks: slice


def _spans(projection: Projection) -> Iterator[_Span]:
    """Each module's LoRA, its columns, and its ranks among those of all."""
    columns, ranks, side = 0, 0, 1 if projection.inputs_first else 0
    for module, layer in zip(projection.modules, projection.lora, strict=True):
        first, rank = columns, 0 if layer is None else len(layer.down)
        columns += module.weight.shape[side]
        yield _Span(layer, slice(first, columns), slice(ranks, ranks + rank))
        ranks += rank


def _cast(stack: tuple[nn.Parameter, ...]) -> torch.Tensor:
    """Parameters one behind the other, in the dtype of products."""
    parts = [parameter.detach().to(product_dtype(parameter)) for parameter in stack]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
