"""A training step's arithmetic: weights are cast once, and their gradients are summed over windows where they lie.

The backward pass is written out here rather than left to autograd, for three reasons. Only what a matrix product made
is kept; what lies between two products (layer norm, GELU) is made once more, in the pass over memory that
differentiates it. A weight's gradient is added to the step's sum by the product that makes it. And the passes between
products are few and the same in all layers, so that their kernels serve every model of a hidden size.

Shape suffixes: B lanes, T positions, K hidden size, N rows (lanes times positions).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.pytorch_utils import Conv1D

from recur_tune.model.arithmetic import Arithmetic, is_tanh_gelu
from recur_tune.model.fusion import passes_for
from recur_tune.model.passes import add_columns
from recur_tune.model.products import add_product, product_type


@dataclass(frozen=True)
class Product:
    """What a matrix product made.

    The gradient of its bias is a sum over rows of the gradient with respect to `value`. The operation that makes that
    gradient adds it to `by_bias`, in the same pass over memory.
    """

    value: torch.Tensor
    by_bias: torch.Tensor | None


class Gathered(Arithmetic):
    """The arithmetic of one step.

    Attributes:
        anchor: What every window's graph begins with. Autograd runs backward only as far as somebody asks for a
            gradient, and nobody asks it for those of the weights.
    """

    def __init__(self, totals: Mapping[nn.Parameter, torch.Tensor], fused: bool = False) -> None:
        """`totals` has a sum for each parameter that is trained; `fused` takes a GPU's kernels for the passes."""
        self.totals = totals
        self.passes = passes_for(fused)
        self.move = self.passes.move
        self.anchor = torch.zeros((), requires_grad=True)
        self._cast: dict[nn.Parameter, torch.Tensor] = {}

    def cast(self, parameter: nn.Parameter) -> torch.Tensor:
        """A parameter in the type in which products run here."""
        if parameter not in self._cast:
            self._cast[parameter] = parameter.detach().to(product_type(parameter))
        return self._cast[parameter]

    def total(self, parameter: nn.Parameter, begin: int = 0) -> torch.Tensor | None:
        """The sum of a parameter's gradients, of columns from `begin` on; None where it is not trained."""
        total = self.totals.get(parameter)
        return None if total is None else total[..., begin:]

    def embed(self, tokens_BT: torch.Tensor, begin: int, wte: nn.Embedding, wpe: nn.Embedding) -> torch.Tensor:
        """Keeps nothing but the tokens."""
        return _Embed.apply(self.anchor, self, tokens_BT, begin, wte.weight, wpe.weight)

    def norm(self, x_BTK: torch.Tensor, added: Product | None, norm: nn.LayerNorm) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps the sum."""
        x_BTK, normed_BTK, _ = _NormProject.apply(x_BTK, *_parts(added), self, norm, None, 0, False)
        return x_BTK, normed_BTK

    def norm_project(
        self,
        x_BTK: torch.Tensor,
        added: Product | None,
        norm: nn.LayerNorm,
        product: Conv1D,
        begin: int = 0,
        with_mean: bool = False,
    ) -> tuple[torch.Tensor, Product, torch.Tensor | None]:
        """Keeps the sum."""
        if x_BTK.dtype != norm.weight.dtype:  # a state that autocast's products made
            x_BTK = x_BTK.to(norm.weight.dtype)
        x_BTK, value, mean_B1K = _NormProject.apply(x_BTK, *_parts(added), self, norm, product, begin, with_mean)
        return x_BTK, Product(value, self.total(product.bias, begin)), mean_B1K

    def norm_mlp(
        self, x_BTK: torch.Tensor, added: Product | None, norm: nn.LayerNorm, mlp: GPT2MLP
    ) -> tuple[torch.Tensor, Product]:
        """Keeps the sum, and what GELU is given."""
        x_BTK, hidden, _ = self.norm_project(x_BTK, added, norm, mlp.c_fc)
        if not is_tanh_gelu(mlp):
            return x_BTK, self.project(mlp.act(self.value(hidden)), mlp.c_proj)
        value = _ActivateProject.apply(hidden.value, hidden.by_bias, self, mlp.c_proj)
        return x_BTK, Product(value, self.total(mlp.c_proj.bias))

    def project(self, x_BTK: torch.Tensor, product: Conv1D) -> Product:
        """Keeps what is multiplied."""
        return Product(_Project.apply(x_BTK, self, product), self.total(product.bias))

    def value(self, product: Product) -> torch.Tensor:
        """With a graph that takes care of the bias."""
        return product.value if product.by_bias is None else _Biased.apply(product.value, product.by_bias)

    def heads(self, product: Product | torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
        """Views, which attention keeps."""
        if isinstance(product, torch.Tensor):
            product = Product(product, None)
        return _Heads.apply(product.value, product.by_bias, self, heads)

    def dropout(self, product: Product, dropout: nn.Dropout) -> Product:
        """By autograd, where there is any."""
        if not (dropout.training and dropout.p):
            return product
        return Product(dropout(self.value(product)), None)


def _parts(product: Product | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return (None, None) if product is None else (product.value, product.by_bias)


def _times(rows: torch.Tensor, step: Gathered, product: Conv1D, begin: int = 0) -> torch.Tensor:
    """Rows times a weight, plus its bias."""
    weight, bias = step.cast(product.weight)[:, begin:], step.cast(product.bias)[begin:]
    return torch.addmm(bias, rows.flatten(0, -2), weight).unflatten(0, rows.shape[:-1])


def _add_by_weight(step: Gathered, product: Conv1D, rows: torch.Tensor, by_value: torch.Tensor, begin: int = 0) -> None:
    """Add a weight's gradient: the rows that it was multiplied with, transposed, times the product's."""
    add_product(step.total(product.weight, begin), rows.flatten(0, -2), by_value.flatten(0, -2))


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, step: Gathered, tokens_BT: torch.Tensor, begin: int,
        wte: nn.Parameter, wpe: nn.Parameter,
    ) -> torch.Tensor:  # fmt: skip
        ctx.step, ctx.begin, ctx.weights = step, begin, (wte, wpe)
        ctx.save_for_backward(tokens_BT)
        return F.embedding(tokens_BT, wte) + wpe[begin : begin + tokens_BT.shape[1]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_x_BTK: torch.Tensor) -> tuple[None, ...]:
        (tokens_BT,), (wte, wpe) = ctx.saved_tensors, map(ctx.step.total, ctx.weights)
        if wte is not None:
            wte.index_add_(0, tokens_BT.flatten(), by_x_BTK.flatten(0, 1))
        if wpe is not None:
            wpe[ctx.begin : ctx.begin + tokens_BT.shape[1]] += by_x_BTK.sum(0)
        return (None,) * 6


class _NormProject(torch.autograd.Function):
    """Add, normalise and, with a product, project."""

    @staticmethod
    def forward(
        ctx: Any, x_BTK: torch.Tensor, added_BTK: torch.Tensor | None, by_bias_of_added: torch.Tensor | None,
        step: Gathered, norm: nn.LayerNorm, product: Conv1D | None, begin: int, with_mean: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
        ctx.set_materialize_grads(False)
        kind = x_BTK.dtype if product is None else step.cast(product.weight).dtype
        x_BTK, normed_BTK, mean_B1K, moments_2BT = step.passes.add_norm(x_BTK, added_BTK, norm, kind, with_mean)
        ctx.save_for_backward(x_BTK, moments_2BT)
        ctx.step, ctx.norm, ctx.product, ctx.begin, ctx.kind = step, norm, product, begin, kind
        ctx.by_bias, ctx.kind_of_added = by_bias_of_added, None if added_BTK is None else added_BTK.dtype
        value = normed_BTK if product is None else _times(normed_BTK, step, product, begin)
        return x_BTK, value, mean_B1K

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_x_BTK: torch.Tensor | None, by_value: torch.Tensor, by_mean_B1K: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        (x_BTK, moments_2BT), step, norm, product = ctx.saved_tensors, ctx.step, ctx.norm, ctx.product
        by_normed = by_value
        if product is not None:
            weight = step.cast(product.weight)[:, ctx.begin :]
            by_normed = (by_value.flatten(0, -2) @ weight.t()).view_as(x_BTK)
        gradient, low, normed = step.passes.add_norm_backward(
            by_normed, by_x_BTK, by_mean_B1K, x_BTK, moments_2BT, norm, ctx.kind_of_added or x_BTK.dtype,
            None if product is None else ctx.kind,
            (step.total(norm.weight), step.total(norm.bias), ctx.by_bias),
        )  # fmt: skip
        if product is not None:
            _add_by_weight(step, product, normed, by_value, ctx.begin)
        return gradient, None if ctx.kind_of_added is None else low, *[None] * 6


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_BTK: torch.Tensor, step: Gathered, product: Conv1D) -> torch.Tensor:
        ctx.kind, ctx.step, ctx.product = rows_BTK.dtype, step, product
        rows_BTK = rows_BTK.to(step.cast(product.weight).dtype)
        ctx.save_for_backward(rows_BTK)
        return _times(rows_BTK, step, product)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (rows_BTK,), step, product = ctx.saved_tensors, ctx.step, ctx.product
        gradient = (by_value.flatten(0, -2) @ step.cast(product.weight).t()).view_as(rows_BTK)
        _add_by_weight(step, product, rows_BTK, by_value)
        return gradient.to(ctx.kind), None, None


class _ActivateProject(torch.autograd.Function):
    """GELU and a product."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, by_bias: torch.Tensor | None, step: Gathered, product: Conv1D
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        ctx.by_bias, ctx.step, ctx.product = by_bias, step, product
        return _times(step.passes.gelu(hidden), step, product)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (hidden,), step, product = ctx.saved_tensors, ctx.step, ctx.product
        by_active = (by_value.flatten(0, -2) @ step.cast(product.weight).t()).view_as(hidden)
        gradient, active = step.passes.gelu_backward(hidden, by_active, ctx.by_bias)
        _add_by_weight(step, product, active, by_value)
        return gradient, None, None, None


class _Heads(torch.autograd.Function):
    """Queries, keys and values as views of what made them; the backward pass puts their gradients side by side."""

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, by_bias: torch.Tensor | None, step: Gathered, heads: int
    ) -> tuple[torch.Tensor, ...]:
        ctx.by_bias, ctx.step = by_bias, step
        return tuple(part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in value.chunk(3, dim=-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *by_parts: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = tuple(part.transpose(1, 2).flatten(2) for part in by_parts)
        return ctx.step.passes.join(parts, ctx.by_bias), None, None, None


class _Biased(torch.autograd.Function):
    """The identity, which adds up a bias's gradient where no other operation does."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, by_bias: torch.Tensor) -> torch.Tensor:
        ctx.by_bias = by_bias
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: torch.Tensor) -> tuple[torch.Tensor, None]:
        add_columns(by_value, ctx.by_bias)
        return by_value, None
