"""A training step's arithmetic: weights are cast once, and their gradients are summed over windows where they lie.

The backward pass is written out here rather than left to autograd, for three reasons. Only what a matrix product made
is kept; what lies between two products (norms, activations) is made once more, in the pass over memory that
differentiates it. A weight's gradient is added to the step's sum by the product that makes it. And the passes between
products are few and the same in all layers, so that their kernels serve every model of a hidden size.

Shape suffixes: B lanes, T positions, K hidden size, N rows (lanes times positions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from transformers.activations import SiLUActivation

from recur_tune.model.arithmetic import Arithmetic, activated, is_tanh_gelu, split_heads
from recur_tune.model.body import Block, Body, Module, Projection, Turn
from recur_tune.model.fusion import passes_for, recurrence_kernels_for
from recur_tune.model.passes import add_columns
from recur_tune.model.products import add_product, product_type

Activation = Callable[..., Any]


class Totals:
    """Sums of gradients, zero at first: one for each parameter that is trained.

    Parameters that one product multiplies with lie one behind the other, so that one product adds to all of them.
    """

    def __init__(self, trained: Sequence[nn.Parameter], body: Body) -> None:
        self._stacks: dict[tuple[nn.Parameter, ...], torch.Tensor] = {}
        wanted = set(trained)
        for stack in (stack for one in body.projections for stack in (one.weights, one.biases)):
            if wanted.issuperset(stack) and stack:
                total = stack[0].new_zeros(sum(map(len, stack)), *stack[0].shape[1:])
                self._stacks[stack] = total
                parts = total.split([len(parameter) for parameter in stack])
                self._stacks |= {(parameter,): part for parameter, part in zip(stack, parts, strict=True)}
        for parameter in trained:
            self._stacks.setdefault((parameter,), torch.zeros_like(parameter))
        self.gradients = [self._stacks[parameter,] for parameter in trained]
        self.of_the_body = not wanted.isdisjoint(body.parameters)

    def of(self, stack: tuple[nn.Parameter, ...]) -> torch.Tensor | None:
        """Of parameters one behind the other; None where they are not trained, or there are none."""
        return self._stacks.get(stack)


def _of_norm(norm: Module) -> tuple[tuple[nn.Parameter, ...], tuple[nn.Parameter, ...]]:
    """A norm's weight, and its bias where it has one."""
    bias = getattr(norm, "bias", None)
    return (norm.weight,), () if bias is None else (bias,)


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
        anchor: What every window's graph begins with where the body is trained. Autograd runs backward only as far as
            somebody asks for a gradient, and nobody asks it for those of the weights.
    """

    def __init__(self, totals: Totals, fused: bool = False) -> None:
        """`fused` takes a GPU's kernels for the passes."""
        self.totals = totals
        self.passes, self.kernels = passes_for(fused), recurrence_kernels_for(fused)
        self.move, self.turned = self.passes.move, self.passes.turned
        self.pack, self.packed_extra = self.passes.pack, self.passes.packed_extra
        self.anchor = torch.zeros((), requires_grad=totals.of_the_body)
        self._cast: dict[tuple[nn.Parameter, ...], torch.Tensor] = {}

    def cast(self, stack: tuple[nn.Parameter, ...]) -> torch.Tensor:
        """Parameters one behind the other, in the type in which products run here."""
        if stack not in self._cast:
            kind = product_type(stack[0])
            parts = [parameter.detach().to(kind) for parameter in stack]
            self._cast[stack] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._cast[stack]

    def weight(self, projection: Projection, begin: int = 0) -> torch.Tensor:
        """Of a product, [inputs, columns from `begin` on]."""
        weight = self.cast(projection.weights)
        return (weight if projection.inputs_first else weight.t())[:, begin:]

    def bias_total(self, projection: Projection, begin: int = 0) -> torch.Tensor | None:
        """The sum of a bias's gradients; None where there is no bias, or it is not trained."""
        total = self.totals.of(projection.biases)
        return None if total is None else total[begin:]

    def embed(self, tokens_BT: torch.Tensor, position_BT: torch.Tensor, body: Body) -> torch.Tensor:
        """Keeps nothing but the tokens and their positions."""
        positions = None if body.positions is None else body.positions.weight
        x_BTK = _Embed.apply(self.anchor, self, tokens_BT, position_BT, body.tokens.weight, positions)
        return x_BTK if body.dropout is None else body.dropout(x_BTK)

    def norm(self, x_BTK: torch.Tensor, added: Product | None, norm: Module) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps the sum."""
        x_BTK, normed_BTK, _ = _NormProject.apply(x_BTK, *_parts(added), self, norm, None, 0, False)
        return x_BTK, normed_BTK

    def norm_project(
        self,
        x_BTK: torch.Tensor,
        added: Product | None,
        norm: Module,
        projection: Projection,
        begin: int = 0,
        with_mean: bool = False,
    ) -> tuple[torch.Tensor, Product, torch.Tensor | None]:
        """Keeps the sum."""
        if x_BTK.dtype != norm.weight.dtype:  # a state that autocast's products made
            x_BTK = x_BTK.to(norm.weight.dtype)
        x_BTK, value, mean_B1K = _NormProject.apply(x_BTK, *_parts(added), self, norm, projection, begin, with_mean)
        return x_BTK, Product(value, self.bias_total(projection, begin)), mean_B1K

    def norm_mlp(self, x_BTK: torch.Tensor, added: Product | None, block: Block) -> tuple[torch.Tensor, Product]:
        """Keeps the sum, and what the activation is given."""
        x_BTK, hidden, _ = self.norm_project(x_BTK, added, block.mlp_norm, block.up)
        activation = self._activation(block)
        if activation is None:
            return x_BTK, self.project(activated(self.value(hidden), block), block.down)
        value = _ActivateProject.apply(hidden.value, hidden.by_bias, self, block.down, *activation)
        return x_BTK, Product(value, self.bias_total(block.down))

    def project(self, x_BTK: torch.Tensor, projection: Projection) -> Product:
        """Keeps what is multiplied."""
        return Product(_Project.apply(x_BTK, self, projection), self.bias_total(projection))

    def value(self, product: Product | torch.Tensor) -> torch.Tensor:
        """With a graph that takes care of the bias."""
        if isinstance(product, torch.Tensor):
            return product
        return product.value if product.by_bias is None else _Biased.apply(product.value, product.by_bias)

    def heads(
        self, product: Product | torch.Tensor, block: Block, turn: Turn | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Views, which attention keeps."""
        if isinstance(product, torch.Tensor):
            product = Product(product, None)
        return _Heads.apply(product.value, product.by_bias, self, block, *(turn or (None, None)))

    def plus(self, product: Product, x_BTK: torch.Tensor | None) -> Product:
        """In the product's type."""
        if x_BTK is None:
            return product
        return Product(product.value + x_BTK.to(product.value.dtype), product.by_bias)

    def dropout(self, product: Product, dropout: Module | None) -> Product:
        """By autograd, where there is any."""
        if dropout is None or not (dropout.training and dropout.p):
            return product
        return Product(dropout(self.value(product)), None)

    def _activation(self, block: Block) -> tuple[Activation, Activation] | None:
        """An activation and its backward pass in one go over memory; None where it is left to autograd."""
        if block.gated and isinstance(block.activation, nn.SiLU | SiLUActivation):
            return self.passes.swiglu, self.passes.swiglu_backward
        if not block.gated and is_tanh_gelu(block):
            return self.passes.gelu, self.passes.gelu_backward
        return None


def _parts(product: Product | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return (None, None) if product is None else (product.value, product.by_bias)


def _times(rows: torch.Tensor, step: Gathered, projection: Projection, begin: int = 0) -> torch.Tensor:
    """Rows times a weight, plus its bias if it has one."""
    weight, flat = step.weight(projection, begin), rows.flatten(0, -2)
    bias = step.cast(projection.biases)[begin:] if projection.biases else None
    product = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
    return product.unflatten(0, rows.shape[:-1])


def _add_by_weight(
    step: Gathered, projection: Projection, rows: torch.Tensor, by_value: torch.Tensor, begin: int = 0
) -> None:
    """Add a weight's gradient: the rows that it was multiplied with, transposed, times the product's."""
    total = step.totals.of(projection.weights)
    if total is None:
        return
    rows, by_value = rows.flatten(0, -2), by_value.flatten(0, -2)
    if projection.inputs_first:
        add_product(total[:, begin:], rows, by_value)
    else:
        add_product(total[begin:], by_value, rows)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, step: Gathered, tokens_BT: torch.Tensor, position_BT: torch.Tensor,
        tokens: nn.Parameter, positions: nn.Parameter | None,
    ) -> torch.Tensor:  # fmt: skip
        ctx.step, ctx.weights = step, (tokens, positions)
        ctx.save_for_backward(tokens_BT, position_BT)
        x_BTK = F.embedding(tokens_BT, tokens)
        return x_BTK if positions is None else x_BTK + F.embedding(position_BT, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_x_BTK: torch.Tensor) -> tuple[None, ...]:
        tokens_BT, position_BT = ctx.saved_tensors
        tokens, positions = (None if one is None else ctx.step.totals.of((one,)) for one in ctx.weights)
        if tokens is not None:
            tokens.index_add_(0, tokens_BT.flatten(), by_x_BTK.flatten(0, 1))
        if positions is not None:
            if len(position_BT) < len(by_x_BTK):  # the same in all lanes
                by_x_BTK = by_x_BTK.sum(0, keepdim=True)
            positions.index_add_(0, position_BT.flatten(), by_x_BTK.flatten(0, 1))
        return (None,) * 6


class _NormProject(torch.autograd.Function):
    """Add, normalise and, with a product, project."""

    @staticmethod
    def forward(
        ctx: Any, x_BTK: torch.Tensor, added_BTK: torch.Tensor | None, by_bias_of_added: torch.Tensor | None,
        step: Gathered, norm: Module, product: Projection | None, begin: int, with_mean: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
        ctx.set_materialize_grads(False)
        kind = x_BTK.dtype if product is None else step.cast(product.weights).dtype
        x_BTK, normed_BTK, mean_B1K, moments = step.passes.add_norm(x_BTK, added_BTK, norm, kind, with_mean)
        ctx.save_for_backward(x_BTK, moments)
        ctx.step, ctx.norm, ctx.product, ctx.begin, ctx.kind = step, norm, product, begin, kind
        ctx.by_bias, ctx.kind_of_added = by_bias_of_added, None if added_BTK is None else added_BTK.dtype
        value = normed_BTK if product is None else _times(normed_BTK, step, product, begin)
        return x_BTK, value, mean_B1K

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_x_BTK: torch.Tensor | None, by_value: torch.Tensor, by_mean_B1K: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        (x_BTK, moments), step, norm, product = ctx.saved_tensors, ctx.step, ctx.norm, ctx.product
        by_normed = by_value
        if product is not None:
            by_normed = (by_value.flatten(0, -2) @ step.weight(product, ctx.begin).t()).view_as(x_BTK)
        gradient, low, normed = step.passes.add_norm_backward(
            by_normed, by_x_BTK, by_mean_B1K, x_BTK, moments, norm, ctx.kind_of_added or x_BTK.dtype,
            None if product is None else ctx.kind,
            (*(step.totals.of(stack) for stack in _of_norm(norm)), ctx.by_bias),
        )  # fmt: skip
        if product is not None:
            _add_by_weight(step, product, normed, by_value, ctx.begin)
        return gradient, None if ctx.kind_of_added is None else low, *[None] * 6


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_BTK: torch.Tensor, step: Gathered, product: Projection) -> torch.Tensor:
        ctx.kind, ctx.step, ctx.product = rows_BTK.dtype, step, product
        rows_BTK = rows_BTK.to(step.cast(product.weights).dtype)
        ctx.save_for_backward(rows_BTK)
        return _times(rows_BTK, step, product)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (rows_BTK,), step, product = ctx.saved_tensors, ctx.step, ctx.product
        gradient = (by_value.flatten(0, -2) @ step.weight(product).t()).view_as(rows_BTK)
        _add_by_weight(step, product, rows_BTK, by_value)
        return gradient.to(ctx.kind), None, None


class _ActivateProject(torch.autograd.Function):
    """An activation and a product."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, by_bias: torch.Tensor | None, step: Gathered, product: Projection,
        activate: Activation, activate_backward: Activation,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(hidden)
        ctx.by_bias, ctx.step, ctx.product, ctx.activate_backward = by_bias, step, product, activate_backward
        return _times(activate(hidden), step, product)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (hidden,), step, product = ctx.saved_tensors, ctx.step, ctx.product
        by_active = (by_value.flatten(0, -2) @ step.weight(product).t()).unflatten(0, by_value.shape[:-1])
        gradient, active = ctx.activate_backward(hidden, by_active, ctx.by_bias)
        _add_by_weight(step, product, active, by_value)
        return gradient, *[None] * 5


class _Heads(torch.autograd.Function):
    """Queries, keys and values as views of what made them, or of that turned; the backward pass puts their gradients
    side by side."""

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, by_bias: torch.Tensor | None, step: Gathered, block: Block,
        cos_TD: torch.Tensor | None, sin_TD: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        ctx.by_bias, ctx.step = by_bias, step
        ctx.save_for_backward(cos_TD, sin_TD)
        if cos_TD is not None and sin_TD is not None:
            value = step.turned(value, cos_TD, sin_TD, block.turned_heads)
        return split_heads(value, block)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *by_parts: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = tuple(part.transpose(1, 2).flatten(2) for part in by_parts)
        cos_TD, sin_TD = ctx.saved_tensors
        turn = None if cos_TD is None else (cos_TD, sin_TD)
        return ctx.step.passes.join(parts, ctx.by_bias, turn), *[None] * 5


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
