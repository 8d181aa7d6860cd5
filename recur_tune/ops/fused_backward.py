"""Fused backward pass of a training step: weights are cast once, and gradients are accumulated over windows in place.

The backward pass is written out here rather than left to autograd, for three reasons. Only outputs of matrix products
are kept; what lies between two products (norms, activations) is recomputed by the operation that differentiates it. The
product that makes a weight's gradient adds it to the accumulator. And the operations between products are few and the
same in all layers, so one set of kernels serves every model of a hidden size.

Shape suffixes: B batch rows, T positions, K hidden size, N rows (batch rows times positions).
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

from recur_tune.ops.autograd import BlockOps, activated, is_tanh_gelu, split_heads
from recur_tune.ops.body import Block, Body, CosSin, Module, Projection
from recur_tune.ops.cast_weight import CastWeight, cast_weight
from recur_tune.ops.dispatch import pointwise_for
from recur_tune.ops.flat_layout import flat_layout
from recur_tune.ops.weight_product import NOTHING

Activation = Callable[..., Any]


class GradAccumulators:
    """Gradient accumulation: a sum, zero at first, for each parameter that is trained; all of them in one flat buffer.

    Attributes:
        buffer: All of them, and the loss.
        gradients: Those of the parameters, in their order: views of the buffer.
        loss: The buffer's last element.
        of_the_body: Whether any parameter of the body is trained, LoRA's included.
        of_the_base: Whether any other than LoRA's is.
    """

    def __init__(self, trained: Sequence[nn.Parameter], body: Body, shards: int = 1) -> None:
        layout = flat_layout(trained, body, shards)
        self.buffer = layout.new_buffer()
        self._stacks = {stack: _view(self.buffer, span, stack) for stack, span in layout.stacks.items()}
        single = {(parameter,): _view(self.buffer, span, (parameter,)) for parameter, span in layout.spans.items()}
        self._stacks = single | self._stacks
        self.gradients = [self._stacks[parameter,] for parameter in trained]
        self.loss = self.buffer[-1]
        of_lora = {parameter for layer in body.lora for parameter in layer.parameters()}
        of_the_body = body.parameters.intersection(trained)
        self.of_the_body, self.of_the_base = bool(of_the_body), not of_the_body <= of_lora

    def of(self, stack: tuple[nn.Parameter, ...]) -> torch.Tensor | None:
        """The accumulator of these parameters, one behind the other; None where they are not trained, or are none."""
        return self._stacks.get(stack)


def _view(buffer: torch.Tensor, span: slice, stack: tuple[nn.Parameter, ...]) -> torch.Tensor:
    """Elements of the buffer in the shape of the parameters, one behind the other along the first dimension."""
    shape = stack[0].shape if len(stack) == 1 else (-1, *stack[0].shape[1:])
    return buffer[span].view(shape)


def _of_norm(norm: Module) -> tuple[tuple[nn.Parameter, ...], tuple[nn.Parameter, ...]]:
    """A norm's weight, and its bias where it has one."""
    bias = getattr(norm, "bias", None)
    return (norm.weight,), () if bias is None else (bias,)


@dataclass(frozen=True)
class Product:
    """A matrix product's output.

    The gradient of its bias is the sum over rows of the gradient with respect to `value`. The operation that makes that
    gradient also adds the sum to `grad_bias`, so that memory is read once.
    """

    value: torch.Tensor
    grad_bias: torch.Tensor | None


class FusedBackward(BlockOps):
    """A block's operations during one training step, with the backward pass written out.

    Attributes:
        anchor: A scalar that every window's graph begins with where the body is trained: at the embeddings, or where
            LoRA alone is trained, at its products. Autograd runs backward only to tensors whose gradient is asked for.
            Weights' gradients are accumulated here, so the anchor's is asked for in their place.
    """

    def __init__(self, totals: GradAccumulators, fused: bool = False) -> None:
        """`fused` takes Triton kernels for what lies between matrix products."""
        self.totals = totals
        self.pointwise, self.fused = pointwise_for(fused), fused
        self.anchor = torch.zeros((), requires_grad=totals.of_the_body)
        self._cast_weights: dict[tuple[Projection, int], CastWeight] = {}

    def cast_weight(self, projection: Projection, begin: int = 0) -> CastWeight:
        """A projection's columns from `begin` on, cast once for all windows of the step."""
        if (projection, begin) not in self._cast_weights:
            self._cast_weights[projection, begin] = cast_weight(projection, self.totals, begin)
        return self._cast_weights[projection, begin]

    def _anchored(self, cast: CastWeight) -> torch.Tensor | None:
        """The anchor where a product's own LoRA learns: its graph begins there, whether its rows have one or not."""
        return self.anchor if cast.has_lora else None

    def embed(self, tokens_BT: torch.Tensor, position_BT: torch.Tensor, body: Body) -> torch.Tensor:
        """Keeps the tokens and their positions."""
        positions = None if body.positions is None else body.positions.weight
        anchor = self.anchor if self.totals.of_the_base else None
        x_BTK = _run(_Embed, anchor, self, tokens_BT, position_BT, body.tokens.weight, positions, body.stream_dtype)
        return x_BTK if body.dropout is None else body.dropout(x_BTK)

    def norm(self, x_BTK: torch.Tensor, added: Product | None, norm: Module) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps the sum."""
        x_BTK, normed_BTK, _ = _run(_NormProject, x_BTK, *_with_grad_bias(added), self, norm, None, 0, None)
        return x_BTK, normed_BTK

    def norm_project(
        self,
        x_BTK: torch.Tensor,
        added: Product | None,
        norm: Module,
        projection: Projection,
        begin: int = 0,
        means: int = 0,
    ) -> tuple[torch.Tensor, Product, torch.Tensor | None]:
        """Keeps the sum."""
        if x_BTK.dtype != norm.weight.dtype:  # a state that was made under autocast
            x_BTK = x_BTK.to(norm.weight.dtype)
        cast = self.cast_weight(projection, begin)
        x_BTK, value, means_BMK = _run(
            _NormProject, x_BTK, *_with_grad_bias(added), self, norm, cast, means, self._anchored(cast)
        )
        return x_BTK, Product(value, cast.grad_bias), means_BMK

    def means(self, x_BTK: torch.Tensor, count: int) -> torch.Tensor:
        """Keeps nothing."""
        return _run(_Means, x_BTK, count, self)

    def norm_mlp(self, x_BTK: torch.Tensor, added: Product | None, block: Block) -> tuple[torch.Tensor, Product]:
        """Keeps the sum, and the activation's input."""
        x_BTK, hidden, _ = self.norm_project(x_BTK, added, block.mlp_norm, block.up)
        activation = self._activation(block)
        if activation is None:
            return x_BTK, self.project(activated(self.value(hidden), block), block.down)
        down = self.cast_weight(block.down)
        active = _run(_ActivateProject, *_with_grad_bias(hidden), down, *activation, self._anchored(down))
        return x_BTK, Product(active, down.grad_bias)

    def project(self, x_BTK: torch.Tensor, projection: Projection) -> Product:
        """Keeps its input, unless the projection is frozen."""
        cast = self.cast_weight(projection)
        return Product(_run(_Project, x_BTK, cast, self._anchored(cast)), cast.grad_bias)

    def value(self, product: Product | torch.Tensor) -> torch.Tensor:
        """With a node in the graph that accumulates the bias's gradient."""
        if isinstance(product, torch.Tensor):
            return product
        return product.value if product.grad_bias is None else _run(_Biased, product.value, product.grad_bias, self)

    def with_grad_bias(self, product: Product | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The caller accumulates the bias's gradient."""
        return (product, None) if isinstance(product, torch.Tensor) else (product.value, product.grad_bias)

    def heads(
        self, product: Product | torch.Tensor, block: Block, cos_sin: CosSin | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Keeps cosines and sines; attention keeps the heads, which are views."""
        return _run(_Heads, *self.with_grad_bias(product), self, block, *(cos_sin or (None, None)))

    def plus(self, product: Product, x_BTK: torch.Tensor | None) -> Product:
        """In the product's dtype."""
        if x_BTK is None:
            return product
        return Product(product.value + x_BTK.to(product.value.dtype), product.grad_bias)

    def dropout(self, product: Product, dropout: Module | None) -> Product:
        """By autograd, where there is any."""
        if dropout is None or not (dropout.training and dropout.p):
            return product
        return Product(dropout(self.value(product)), None)

    def _activation(self, block: Block) -> tuple[Activation, Activation] | None:
        """An activation and its fused backward pass; None where it is left to autograd."""
        if block.gated and isinstance(block.activation, nn.SiLU | SiLUActivation):
            return self.pointwise.swiglu, self.pointwise.swiglu_backward
        if not block.gated and is_tanh_gelu(block):
            return self.pointwise.gelu, self.pointwise.gelu_backward
        return None


def _with_grad_bias(product: Product | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return (None, None) if product is None else (product.value, product.grad_bias)


def _run(operation: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Apply an operation; without gradients its forward pass alone, which spares autograd's overhead."""
    return operation.apply(*inputs) if torch.is_grad_enabled() else operation.forward(_NoContext(), *inputs)


class _NoContext:
    """A context for a forward pass without a backward pass; nothing is saved."""

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Saves nothing."""

    def set_materialize_grads(self, value: bool) -> None:
        """Sets nothing."""


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor | None, step: FusedBackward, tokens_BT: torch.Tensor, position_BT: torch.Tensor,
        tokens: nn.Parameter, positions: nn.Parameter | None, dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        ctx.step, ctx.weights = step, (tokens, positions)
        ctx.save_for_backward(tokens_BT, position_BT)
        x_BTK = F.embedding(tokens_BT, tokens).to(dtype)
        return x_BTK if positions is None else x_BTK + F.embedding(position_BT, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x_BTK: torch.Tensor) -> tuple[None, ...]:
        tokens_BT, position_BT = ctx.saved_tensors
        tokens, positions = (None if one is None else ctx.step.totals.of((one,)) for one in ctx.weights)
        if tokens is not None:
            tokens.index_add_(0, tokens_BT.flatten(), grad_x_BTK.flatten(0, 1))
        if positions is not None:
            if len(position_BT) < len(grad_x_BTK):  # the same in all batch rows
                grad_x_BTK = grad_x_BTK.sum(0, keepdim=True)
            positions.index_add_(0, position_BT.flatten(), grad_x_BTK.flatten(0, 1))
        return (None,) * 7


class _NormProject(torch.autograd.Function):
    """Add, normalise and, with a weight, project."""

    @staticmethod
    def forward(
        ctx: Any, x_BTK: torch.Tensor, added_BTK: torch.Tensor | None, grad_bias_of_added: torch.Tensor | None,
        step: FusedBackward, norm: Module, cast: CastWeight | None, means: int, anchor: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
        ctx.set_materialize_grads(False)
        dtype = x_BTK.dtype if cast is None else cast.dtype
        x_BTK, normed_BTK, means_BMK, moments = step.pointwise.add_norm(x_BTK, added_BTK, norm, dtype, means)
        value, kept = (normed_BTK, NOTHING) if cast is None else cast.times(normed_BTK)
        ctx.save_for_backward(x_BTK, moments, *kept)
        ctx.step, ctx.norm, ctx.cast, ctx.dtype = step, norm, cast, dtype
        ctx.grad_bias, ctx.added_dtype = grad_bias_of_added, None if added_BTK is None else added_BTK.dtype
        return x_BTK, value, means_BMK

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_x_BTK: torch.Tensor | None, grad_value: torch.Tensor, grad_means_BMK: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        (x_BTK, moments, *kept), step, norm, cast = ctx.saved_tensors, ctx.step, ctx.norm, ctx.cast
        nothing, grad_low_NR = [None] * 8, None
        if not any(ctx.needs_input_grad[:2]):  # of this product LoRA alone learns, and nothing before it
            _, normed, _, _ = step.pointwise.add_norm(x_BTK, None, norm, ctx.dtype, 0)
            cast.add_gradients(normed, grad_value, cast.grad_low(grad_value), kept)
            return tuple(nothing)
        grad_normed_BTK = grad_value
        if cast is not None:
            grad_normed_BTK, grad_low_NR = cast.grad_rows(grad_value, kept)
        gradient, low, normed = step.pointwise.add_norm_backward(
            grad_normed_BTK, grad_x_BTK, grad_means_BMK, x_BTK, moments, norm, ctx.added_dtype or x_BTK.dtype,
            ctx.dtype if cast is not None and cast.is_trained else None,
            (*(step.totals.of(stack) for stack in _of_norm(norm)), ctx.grad_bias),
        )  # fmt: skip
        if cast is not None and cast.is_trained:
            cast.add_gradients(normed, grad_value, grad_low_NR, kept)
        return gradient, None if ctx.added_dtype is None else low, *nothing[2:]


class _Means(torch.autograd.Function):
    """Means over stretches of positions."""

    @staticmethod
    def forward(ctx: Any, x_BTK: torch.Tensor, count: int, step: FusedBackward) -> torch.Tensor:
        ctx.step, ctx.positions = step, x_BTK.shape[1]
        return step.pointwise.stretch_means(x_BTK, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_means_BMK: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.step.pointwise.stretch_means_backward(grad_means_BMK, ctx.positions), None, None


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows_BTK: torch.Tensor, cast: CastWeight, anchor: torch.Tensor | None
    ) -> torch.Tensor:  # fmt: skip
        ctx.dtype, ctx.cast = rows_BTK.dtype, cast
        rows_BTK = rows_BTK.to(cast.dtype)
        value, kept = cast.times(rows_BTK)
        ctx.save_for_backward(rows_BTK if cast.is_trained else None, *kept)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows_BTK, *kept = ctx.saved_tensors
        gradient = None
        if ctx.needs_input_grad[0]:
            grad_rows_BTK, grad_low_NR = ctx.cast.grad_rows(grad_value, kept)
            gradient = grad_rows_BTK.to(ctx.dtype)
        else:
            grad_low_NR = ctx.cast.grad_low(grad_value)
        if ctx.cast.is_trained:
            ctx.cast.add_gradients(rows_BTK, grad_value, grad_low_NR, kept)
        return gradient, None, None


class _ActivateProject(torch.autograd.Function):
    """Activate and project."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, grad_bias: torch.Tensor | None, cast: CastWeight,
        activate: Activation, activate_backward: Activation, anchor: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        value, kept = cast.times(activate(hidden))
        ctx.save_for_backward(hidden, *kept)
        ctx.grad_bias, ctx.cast, ctx.activate, ctx.activate_backward = grad_bias, cast, activate, activate_backward
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, *kept = ctx.saved_tensors
        gradient = None
        if ctx.needs_input_grad[0]:
            grad_active, grad_low_NR = ctx.cast.grad_rows(grad_value, kept)
            gradient, active = ctx.activate_backward(hidden, grad_active, ctx.grad_bias)
        else:
            active, grad_low_NR = ctx.activate(hidden), ctx.cast.grad_low(grad_value)
        if ctx.cast.is_trained:
            ctx.cast.add_gradients(active, grad_value, grad_low_NR, kept)
        return gradient, *[None] * 5


class _Heads(torch.autograd.Function):
    """Queries, keys and values as views, with rotary position embeddings where a family has them; the backward pass
    puts their gradients side by side."""

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, grad_bias: torch.Tensor | None, step: FusedBackward, block: Block,
        cos_TD: torch.Tensor | None, sin_TD: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        ctx.grad_bias, ctx.step = grad_bias, step
        ctx.save_for_backward(cos_TD, sin_TD)
        if cos_TD is not None and sin_TD is not None:
            value = step.pointwise.apply_rotary(value, cos_TD, sin_TD, block.rotary_heads)
        return split_heads(value, block)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_parts: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = tuple(part.transpose(1, 2).flatten(2) for part in grad_parts)
        cos_TD, sin_TD = ctx.saved_tensors
        cos_sin = None if cos_TD is None else (cos_TD, sin_TD)
        return ctx.step.pointwise.join(parts, ctx.grad_bias, cos_sin), *[None] * 5


class _Biased(torch.autograd.Function):
    """The identity; its backward pass accumulates a bias's gradient, where no other operation does."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, grad_bias: torch.Tensor, step: FusedBackward) -> torch.Tensor:
        ctx.grad_bias, ctx.step = grad_bias, step
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_value: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.step.pointwise.add_columns(grad_value, ctx.grad_bias)
        return grad_value, None, None
