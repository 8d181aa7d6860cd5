"""A projection's weight during one training step: cast once for all windows, with the accumulators of its gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recur_tune.ops.body import Projection
from recur_tune.ops.matmul import add_product, product_dtype
from recur_tune.ops.weight_product import Kept, LoraApart, Totals, WeightProduct, weight_product


@dataclass(frozen=True)
class CastWeight:
    """A projection's product, and the accumulators of its gradients.

    Attributes:
        product: Rows times the weight, changed by LoRA where it has one.
        dtype: That of products.
        grad_weight: In the layout of the parameters; None where they are not trained.
        grad_bias: None where there is none, or it is not trained.
        inputs_first: Whether `grad_weight` is [inputs, columns] too.
    """

    product: WeightProduct
    dtype: torch.dtype
    grad_weight: torch.Tensor | None
    grad_bias: torch.Tensor | None
    inputs_first: bool

    @property
    def has_lora(self) -> bool:
        """Whether LoRA changes it."""
        return isinstance(self.product, LoraApart)

    @property
    def is_trained(self) -> bool:
        """Whether a gradient is made from the product's rows."""
        return self.grad_weight is not None or self.has_lora

    def times(self, rows: torch.Tensor) -> tuple[torch.Tensor, Kept]:
        """Rows times the weight, plus the bias if there is one; and what LoRA keeps."""
        product, kept = self.product.times(rows.flatten(0, -2))
        return product.view(*rows.shape[:-1], -1), kept

    def grad_low(self, grad_value: torch.Tensor) -> torch.Tensor | None:
        """LoRA's part of the backward pass where the gradient with respect to the rows is not needed."""
        return self.product.grad_low(grad_value.flatten(0, -2))

    def grad_rows(self, grad_value: torch.Tensor, kept: Kept) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The gradient with respect to the rows, from that with respect to the product; and LoRA's part."""
        grad_rows_NK, grad_low_NR = self.product.grad_rows(grad_value.flatten(0, -2), kept)
        return grad_rows_NK.view(*grad_value.shape[:-1], -1), grad_low_NR

    def add_gradients(
        self, rows: torch.Tensor, grad_value: torch.Tensor, grad_low_NR: torch.Tensor | None, kept: Kept
    ) -> None:
        """Accumulate the gradients of the weight and of LoRA: the rows, transposed, times that of the product."""
        rows, grad_value = rows.flatten(0, -2), grad_value.flatten(0, -2)
        if self.grad_weight is not None:
            add_product(self.grad_weight, *((rows, grad_value) if self.inputs_first else (grad_value, rows)))
        self.product.add_gradients(rows, grad_value, grad_low_NR, kept)


def cast_weight(projection: Projection, totals: Totals, begin: int = 0) -> CastWeight:
    """A projection's columns from `begin` on, cast."""
    inputs_first, grad_weight = projection.inputs_first, totals.of(projection.weights)
    grad_bias = totals.of(projection.biases)
    return CastWeight(
        weight_product(projection, totals, begin),
        product_dtype(projection.modules[0].weight),
        None if grad_weight is None else grad_weight[:, begin:] if inputs_first else grad_weight[begin:],
        None if grad_bias is None else grad_bias[begin:],
        inputs_first,
    )
