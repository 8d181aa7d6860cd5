"""A projection's weight during one training step: cast once for all windows, with LoRA's matrices beside it.

Shape suffixes: N rows (batch rows times positions), K inputs, C columns, R ranks of all modules side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from recur_tune.ops.body import Projection
from recur_tune.ops.matmul import add_product, product_dtype
from recur_tune.ops.quantised import dequantised

# What a product keeps for LoRA's gradients: rows times A, scaled, and the dropout mask; None where there is none.
Kept = tuple[torch.Tensor | None, torch.Tensor | None]
NOTHING: Kept = (None, None)


class Totals(Protocol):
    """Accumulators of gradients."""

    def of(self, stack: tuple[nn.Parameter, ...]) -> torch.Tensor | None:
        """That of these parameters, one behind the other; None where they are not trained, or are none."""


@dataclass(frozen=True)
class LoraPart:
    """LoRA of one module of a projection.

    Attributes:
        ranks: Its columns among the ranks of all.
        columns: Its columns of the product.
        up_CR: B.
        grad_up: B's accumulator; None where it is not trained.
    """

    ranks: slice
    columns: slice
    up_CR: torch.Tensor
    grad_up: torch.Tensor | None


@dataclass(frozen=True)
class CastLora:
    """LoRA of a projection in the dtype of products, and the accumulators of its gradients.

    Attributes:
        down_RK: A of every module, one behind the other.
        grad_down: Their accumulator; None where they are not trained.
        parts: The modules.
        scaling: Factor of B A.
        rate: Of dropout on the rows, one mask for all modules.
    """

    down_RK: torch.Tensor
    grad_down: torch.Tensor | None
    parts: tuple[LoraPart, ...]
    scaling: float
    rate: float

    def add(self, rows_NK: torch.Tensor, product_NC: torch.Tensor) -> Kept:
        """Add to a product in place; what the backward pass needs of it."""
        mask_NK = _mask(rows_NK, self.rate) if self.rate else None
        low_NR = (self._dropped(rows_NK, mask_NK) @ self.down_RK.t()).mul_(self.scaling)
        for part in self.parts:
            columns_NC = product_NC[:, part.columns]
            torch.addmm(columns_NC, low_NR[:, part.ranks], part.up_CR.t(), out=columns_NC)
        return low_NR, mask_NK

    def grad_low(self, grad_NC: torch.Tensor) -> torch.Tensor:
        """The gradient with respect to rows times A."""
        parts = [grad_NC[:, part.columns] @ part.up_CR for part in self.parts]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).mul_(self.scaling)

    def add_to_rows(self, grad_rows_NK: torch.Tensor, grad_low_NR: torch.Tensor, kept: Kept) -> None:
        """Add to the gradient with respect to the rows, in place."""
        if kept[1] is None:
            torch.addmm(grad_rows_NK, grad_low_NR, self.down_RK, out=grad_rows_NK)
        else:
            grad_rows_NK += self._dropped(grad_low_NR @ self.down_RK, kept[1])

    def add_gradients(
        self, rows_NK: torch.Tensor, grad_NC: torch.Tensor, grad_low_NR: torch.Tensor, kept: Kept
    ) -> None:
        """Accumulate the gradients of A and B."""
        low_NR, mask_NK = kept
        assert low_NR is not None
        add_product(self.grad_down, grad_low_NR, self._dropped(rows_NK, mask_NK))
        for part in self.parts:
            add_product(part.grad_up, grad_NC[:, part.columns], low_NR[:, part.ranks])

    def _dropped(self, rows_NK: torch.Tensor, mask_NK: torch.Tensor | None) -> torch.Tensor:
        return rows_NK if mask_NK is None else rows_NK * mask_NK * (1 / (1 - self.rate))


def _mask(rows_NK: torch.Tensor, rate: float) -> torch.Tensor:
    """Which numbers dropout keeps."""
    return torch.empty_like(rows_NK, dtype=torch.bool).bernoulli_(1 - rate)


@dataclass(frozen=True)
class CastWeight:
    """A projection's weight in the dtype of products, and the accumulators of its gradients.

    Attributes:
        matrix: Gives the weight, [inputs, columns]. A quantised one is dequantised for every product, and
            freed behind it: what is given is not to be kept.
        dtype: That of products.
        bias: One number a column; None where there is none.
        grad_weight: In the layout of the parameters; None where they are not trained.
        grad_bias: None where there is none, or it is not trained.
        inputs_first: Whether `grad_weight` is [inputs, columns] too.
        lora: Its LoRA; None where it has none.
    """

    matrix: Callable[[], torch.Tensor]
    dtype: torch.dtype
    bias: torch.Tensor | None
    grad_weight: torch.Tensor | None
    grad_bias: torch.Tensor | None
    inputs_first: bool
    lora: CastLora | None = None

    @property
    def is_trained(self) -> bool:
        """Whether a gradient is made from the product's rows."""
        return self.grad_weight is not None or self.lora is not None

    def times(self, rows: torch.Tensor) -> tuple[torch.Tensor, Kept]:
        """Rows times the weight, plus the bias if there is one; and what LoRA keeps."""
        flat = rows.flatten(0, -2)
        product = flat @ self.matrix() if self.bias is None else torch.addmm(self.bias, flat, self.matrix())
        kept = NOTHING if self.lora is None else self.lora.add(flat, product)
        return product.view(*rows.shape[:-1], -1), kept

    def grad_low(self, grad_value: torch.Tensor) -> torch.Tensor | None:
        """LoRA's part of the backward pass that both gradients below need."""
        return None if self.lora is None else self.lora.grad_low(grad_value.flatten(0, -2))

    def grad_rows(self, grad_value: torch.Tensor, grad_low_NR: torch.Tensor | None, kept: Kept) -> torch.Tensor:
        """The gradient with respect to the rows, from that with respect to the product."""
        grad_rows_NK = grad_value.flatten(0, -2) @ self.matrix().t()
        if self.lora is not None and grad_low_NR is not None:
            self.lora.add_to_rows(grad_rows_NK, grad_low_NR, kept)
        return grad_rows_NK.view(*grad_value.shape[:-1], -1)

    def add_gradients(
        self, rows: torch.Tensor, grad_value: torch.Tensor, grad_low_NR: torch.Tensor | None, kept: Kept
    ) -> None:
        """Accumulate the gradients of the weight and of LoRA: the rows, transposed, times that of the product."""
        rows, grad_value = rows.flatten(0, -2), grad_value.flatten(0, -2)
        if self.grad_weight is not None:
            add_product(self.grad_weight, *((rows, grad_value) if self.inputs_first else (grad_value, rows)))
        if self.lora is not None and grad_low_NR is not None:
            self.lora.add_gradients(rows, grad_value, grad_low_NR, kept)


def cast_weight(projection: Projection, totals: Totals, begin: int = 0) -> CastWeight:
    """A projection's columns from `begin` on, cast."""
    inputs_first, grad_weight = projection.inputs_first, totals.of(projection.weights)
    grad_bias = totals.of(projection.biases)
    return CastWeight(
        _matrix(projection, begin),
        product_dtype(projection.modules[0].weight),
        _cast(projection.biases)[begin:] if projection.biases else None,
        None if grad_weight is None else grad_weight[:, begin:] if inputs_first else grad_weight[begin:],
        None if grad_bias is None else grad_bias[begin:],
        inputs_first,
        _cast_lora(projection, totals, begin),
    )


def _matrix(projection: Projection, begin: int) -> Callable[[], torch.Tensor]:
    """Gives a projection's columns from `begin` on, [inputs, columns], in the dtype of products."""
    quantised, inputs_first = projection.quantised, projection.inputs_first

    def columns(weight: torch.Tensor) -> torch.Tensor:
        return (weight if inputs_first else weight.t())[:, begin:]

    if quantised:
        dtype = product_dtype(projection.modules[0].weight)
        return lambda: columns(dequantised(quantised).to(dtype))
    cast = columns(_cast(projection.weights))
    return lambda: cast


def _cast_lora(projection: Projection, totals: Totals, begin: int) -> CastLora | None:
    """LoRA of the columns from `begin` on; modules whose columns all lie before that are left out."""
    layers = [one for one in projection.lora if one is not None]
    if not layers:
        return None
    dtype, side = product_dtype(layers[0].down), 1 if projection.inputs_first else 0
    end, ranks, unused, parts = 0, 0, 0, list[LoraPart]()
    for module, layer in zip(projection.modules, projection.lora, strict=True):
        first, end = end, end + module.weight.shape[side]
        if layer is None:
            continue
        rank, skipped = len(layer.down), max(0, begin - first)
        if end <= begin:
            unused += rank
            continue
        grad_up = totals.of((layer.up,))
        parts.append(
            LoraPart(
                slice(ranks, ranks + rank),
                slice(first + skipped - begin, end - begin),
                layer.up.detach()[skipped:].to(dtype),
                None if grad_up is None else grad_up[skipped:],
            )
        )
        ranks += rank
    if not parts:
        return None
    grad_down = totals.of(projection.lora_downs)
    down_RK = _cast(projection.lora_downs)[unused:]
    return CastLora(
        down_RK, None if grad_down is None else grad_down[unused:], tuple(parts), layers[0].scaling, layers[0].rate
    )


def _cast(stack: tuple[nn.Parameter, ...]) -> torch.Tensor:
    """Parameters one behind the other, in the dtype of products; no copy where they already lie there in it."""
    if (together := _lying_together(stack)) is not None:
        return together
    parts = [parameter.detach().to(product_dtype(parameter)) for parameter in stack]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _lying_together(stack: tuple[nn.Parameter, ...]) -> torch.Tensor | None:
    """Several parameters as one tensor, where they lie one behind the other in the dtype of products."""
    first = stack[0]
    if len(stack) == 1 or first.dtype != product_dtype(first):
        return None
    storage, offset = _storage(first), first.storage_offset()
    for parameter in stack:
        behind = parameter.storage_offset() == offset and _storage(parameter) == storage
        if not behind or not parameter.is_contiguous() or parameter.shape[1:] != first.shape[1:]:
            return None
        offset += parameter.numel()
    size = (sum(map(len, stack)), *first.shape[1:])
    return first.detach().as_strided(size, first.stride(), first.storage_offset())


def _storage(parameter: torch.Tensor) -> int:
    return getattr(parameter, "meta", parameter).untyped_storage()._cdata  # a fake tensor's is not its own
