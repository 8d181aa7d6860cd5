"""Reference operations between a block's matrix products, forward and backward, by torch's own operations.

`triton/pointwise.py` has the same functions as fused kernels. Gradients of biases and norms are added to `total`, where
there is one.

Shape suffixes: B batch rows, T positions, K hidden size, C columns, D head size, N rows, V vocabulary, padded.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import torch
import torch.nn.functional as F

from recur_tune.common.windowing import NOT_SCORED
from recur_tune.ops.body import CosSin, Module

_ROWS_AT_A_TIME = 512  # rows whose probabilities exist in single precision

_GELU_SLOPE = 2 * sqrt(2 / pi)  # GELU is x times the sigmoid of x (slope + bend x²), approximated by a tanh:
_GELU_BEND = 0.044715 * _GELU_SLOPE  # (1 + tanh(y)) / 2 = sigmoid(2 y)

Total = torch.Tensor | None


def add_norm(
    x_BTK: torch.Tensor, added_BTK: torch.Tensor | None, norm: Module, dtype: torch.dtype, means: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Residual addition and norm.

    Returns the sum, its norm in `dtype`, the sum's means over so many stretches of positions (None where `means` is 0),
    and for the backward pass every row's mean and inverse standard deviation; for RMSNorm, its inverse root mean
    square.
    """
    if added_BTK is not None:
        x_BTK = x_BTK + added_BTK
    normed_BTK, *moments = _norm(x_BTK, norm)
    means_BMK = stretch_means(x_BTK, means) if means else None
    return x_BTK, normed_BTK.to(dtype), means_BMK, torch.stack(moments)


def add_norm_backward(
    grad_normed_BTK: torch.Tensor,
    grad_x_BTK: torch.Tensor | None,
    grad_means_BMK: torch.Tensor | None,
    x_BTK: torch.Tensor,
    moments: torch.Tensor,
    norm: Module,
    dtype: torch.dtype,
    norm_dtype: torch.dtype | None,
    totals: tuple[Total, Total, Total],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The gradient with respect to the sum, the same in `dtype`, and the recomputed norm.

    Args:
        grad_normed_BTK: The gradient with respect to the norm.
        grad_x_BTK: The gradient with respect to the sum, from its other uses.
        grad_means_BMK: The gradient with respect to the sum's means over stretches of positions.
        x_BTK: The sum.
        moments: The last result of `add_norm`.
        norm: The module with weight and bias.
        dtype: Of the second result.
        norm_dtype: Of the third; None leaves it out.
        totals: Accumulators for the norm's weight, its bias, and the bias of the product that was added.
    """
    grad_normed_BTK = grad_normed_BTK.to(x_BTK.dtype)
    if is_rms(norm):
        gradient, grad_weight, grad_bias = _rms_norm_backward(grad_normed_BTK, x_BTK, moments[0], norm)
    else:
        gradient, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
            grad_normed_BTK, x_BTK, [x_BTK.shape[-1]], *moments.unbind(), norm.weight, norm.bias, [True] * 3
        )
    if grad_x_BTK is not None:
        gradient += grad_x_BTK
    if grad_means_BMK is not None:
        _add_spread(gradient, grad_means_BMK)
    of_weight, of_bias, of_added = totals
    if of_weight is not None:
        of_weight += grad_weight
    if of_bias is not None and grad_bias is not None:
        of_bias += grad_bias
    add_columns(gradient, of_added)
    normed = None if norm_dtype is None else _norm(x_BTK, norm)[0].to(norm_dtype)
    return gradient, gradient.to(dtype), normed


def stretches(positions: int, count: int) -> list[tuple[int, int]]:
    """A window in stretches of 1, 2, 4, ... positions from its end; the last has all that are left. In a short window
    stretches may be empty."""
    found, end = [], positions
    for number in range(count):
        begin = 0 if number == count - 1 else max(0, end - 2**number)
        found.append((begin, end))
        end = begin
    return found


def stretch_means(x_BTK: torch.Tensor, count: int) -> torch.Tensor:
    """Means over so many stretches of positions, [B, M, K]; of an empty one, zeros."""
    if count == 1:
        return x_BTK.mean(1, keepdim=True)
    parts = stretches(x_BTK.shape[1], count)
    return torch.stack([x_BTK[:, begin:end].sum(1) / max(1, end - begin) for begin, end in parts], dim=1)


def stretch_means_backward(grad_means_BMK: torch.Tensor, positions: int) -> torch.Tensor:
    """The gradient with respect to so many positions."""
    batch_size, _, size = grad_means_BMK.shape
    gradient = grad_means_BMK.new_zeros(batch_size, positions, size)
    _add_spread(gradient, grad_means_BMK)
    return gradient


def _add_spread(gradient: torch.Tensor, grad_means_BMK: torch.Tensor) -> None:
    """Add the gradient with respect to means to the positions that they are of."""
    for number, (begin, end) in enumerate(stretches(gradient.shape[1], grad_means_BMK.shape[1])):
        if end > begin:
            gradient[:, begin:end].add_(grad_means_BMK[:, number : number + 1], alpha=1 / (end - begin))


def gelu(hidden: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh approximation."""
    return F.gelu(hidden, approximate="tanh")


def gelu_backward(hidden: torch.Tensor, grad_active: torch.Tensor, total: Total) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient with respect to `hidden`, and the recomputed activation."""
    if hidden.device.type == "cpu" and hidden.dtype != torch.bfloat16:  # which would round every operation's result
        gradient, active = _gelu_backward_by_sigmoid(hidden, grad_active)
    else:
        gradient, active = torch.ops.aten.gelu_backward(grad_active, hidden, approximate="tanh"), gelu(hidden)
    add_columns(gradient, total)
    return gradient, active


def _gelu_backward_by_sigmoid(hidden: torch.Tensor, grad_active: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both from one sigmoid, in less than half the time: on a CPU tanh takes three times as long, and torch's backward
    pass computes it again. With s the sigmoid of y, the derivative of x s is s + x y' s (1 - s)."""
    slope, square = hidden.new_full((), _GELU_SLOPE), hidden * hidden
    sigmoid = torch.add(slope, square, alpha=_GELU_BEND).mul_(hidden).sigmoid_()
    gradient = torch.add(slope, square, alpha=3 * _GELU_BEND, out=square).mul_(hidden)
    torch.ops.aten.sigmoid_backward(gradient, sigmoid, grad_input=gradient)
    return gradient.add_(sigmoid).mul_(grad_active), sigmoid.mul_(hidden)


def swiglu(hidden: torch.Tensor) -> torch.Tensor:
    """SwiGLU: SiLU of the first half, times the other."""
    gate, up = hidden.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu_backward(hidden: torch.Tensor, grad_active: torch.Tensor, total: Total) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient with respect to `hidden`, and the recomputed activation."""
    gate, up = hidden.chunk(2, dim=-1)
    open_gate = F.silu(gate)
    gradient = torch.empty_like(hidden)
    grad_gate, grad_up = gradient.chunk(2, dim=-1)
    grad_gate.copy_(torch.ops.aten.silu_backward(grad_active * up, gate))
    torch.mul(grad_active, open_gate, out=grad_up)
    add_columns(gradient, total)
    return gradient, open_gate * up


def apply_rotary(
    qkv_BTC: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, heads: int, inverse: bool = False
) -> torch.Tensor:
    """Rotary position embeddings of the first so many heads, or their inverse; the other heads stay as they are.

    Each pair of numbers, one of a head's first half and one of its second, is rotated by its position's angle.
    """
    columns = heads * cos_TD.shape[-1]
    x = qkv_BTC[..., :columns].unflatten(-1, (heads, -1))
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos_TD[:, None].to(x.dtype), sin_TD[:, None].to(x.dtype)
    across = torch.cat([second, -first] if inverse else [-second, first], dim=-1)
    rotated = x * cos + across * sin
    return torch.cat([rotated.flatten(-2), qkv_BTC[..., columns:]], dim=-1)


def join(
    parts: tuple[torch.Tensor, ...],
    total: Total,
    cos_sin: CosSin | None = None,
    down: int | torch.Tensor = 0,
    rows: int | None = None,
) -> torch.Tensor:
    """Gradients of queries, keys and values side by side; with `cos_sin` the first two are rotated back.

    Args:
        parts: The three gradients.
        total: Accumulator of the bias's gradient.
        cos_sin: Rotary positions of queries and keys.
        down: Where a packed window's own rows begin, for all batch rows or for each.
        rows: How many these are; None: all.
    """
    joined = torch.cat(parts, dim=-1)
    if rows is not None:
        joined = move(joined, -down, rows)
    if cos_sin is not None:
        columns, size = joined.shape[-1] - parts[-1].shape[-1], cos_sin[0].shape[-1]
        joined = apply_rotary(joined, *cos_sin, columns // size, inverse=True)
    add_columns(joined, total)
    return joined


def move(x_BTC: torch.Tensor, down: int | torch.Tensor, rows: int) -> torch.Tensor:
    """Shift positions by `down`, one number for all batch rows or one for each, into `rows` positions of zeros."""
    batch_size, source_rows, _ = x_BTC.shape
    if isinstance(down, int):
        begin, end = max(0, -down), min(source_rows, rows - down)
        return F.pad(x_BTC[:, begin:end], (0, 0, begin + down, rows - end - down))
    batch, row = torch.arange(batch_size, device=x_BTC.device)[:, None], torch.arange(rows, device=x_BTC.device)
    source_BT = row - down[:, None]
    inside_BT = (source_BT >= 0) & (source_BT < source_rows)
    return x_BTC[batch, source_BT.clamp(0, source_rows - 1)] * inside_BT[..., None]


def pack(
    extra_BMC: torch.Tensor, x_BTC: torch.Tensor, seen_B: torch.Tensor | None, places_MC: torch.Tensor | None
) -> torch.Tensor:
    """Queries, keys and values of a window with inserted keys and values, which are their last columns.

    Args:
        extra_BMC: What is inserted: before the window the last `seen_B` rows of it, and behind the window the others.
        x_BTC: The window's.
        seen_B: How many inserted rows each batch row sees; None: all.
        places_MC: Added to the inserted rows by the place where they stand.
    """
    inserted, positions = extra_BMC.shape[1], x_BTC.shape[1]
    packed_BSC = move(x_BTC, inserted if seen_B is None else seen_B, inserted + positions)
    batch, row = _where_inserted(packed_BSC, inserted, seen_B)
    packed_BSC[batch, row, -extra_BMC.shape[2] :] = in_places(extra_BMC, places_MC, seen_B).to(x_BTC.dtype)
    return packed_BSC


def in_places(extra_BMC: torch.Tensor, places_MC: torch.Tensor | None, seen_B: torch.Tensor | None) -> torch.Tensor:
    """Inserted rows plus what their places add; the rows that are seen stand at the first places."""
    if places_MC is None or seen_B is None:
        return extra_BMC if places_MC is None else extra_BMC + places_MC
    number_M = torch.arange(len(places_MC), device=seen_B.device)
    place_BM = number_M + (seen_B - len(places_MC))[:, None]  # of rows that are not seen, below zero
    return extra_BMC + F.embedding(place_BM.clamp(min=0), places_MC) * (place_BM >= 0)[..., None]


def grad_extra(parts: tuple[torch.Tensor, ...], inserted: int, seen_B: torch.Tensor | None) -> torch.Tensor:
    """The gradient with respect to the inserted rows, from those of all keys and values, each [B, S, C]."""
    batch, row = _where_inserted(parts[0], inserted, seen_B)
    return torch.cat([part[batch, row] for part in parts], dim=-1)


def grad_places(
    parts: tuple[torch.Tensor, ...], inserted: int, seen_B: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """The gradient with respect to what the first places add, in `dtype`."""
    grad_place_BMC = torch.cat([part[:, :inserted] for part in parts], dim=-1).to(dtype)
    if seen_B is None:
        return grad_place_BMC.sum(0)
    is_seen_BM = torch.arange(inserted, device=seen_B.device) < seen_B[:, None]
    return (grad_place_BMC * is_seen_BM[..., None]).sum(0)


def _where_inserted(packed_BSC: torch.Tensor, inserted: int, seen_B: torch.Tensor | None) -> tuple[Any, Any]:
    """Indices of the inserted rows in a packed window: batch rows and positions."""
    if seen_B is None:
        return slice(None), slice(0, inserted)
    row_M, batch_B = torch.arange(inserted, device=seen_B.device), torch.arange(len(seen_B), device=seen_B.device)
    # Rows that are not seen have negative places, which the modulo moves behind the window.
    return batch_B[:, None], (row_M + seen_B[:, None] - inserted) % packed_BSC.shape[1]


def add_columns(gradient: torch.Tensor, total: Total) -> None:
    """Add the sum over all rows to an accumulator, if there is one."""
    if total is not None:
        total += gradient.flatten(0, -2).sum(0, dtype=total.dtype)


def cross_entropy(logits_NV: torch.Tensor, target_N: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Cross-entropy, summed over rows. Its gradient overwrites the logits: softmax minus one-hot, zero where a row is
    not scored or a column is padding."""
    losses = []
    for logits, target in zip(logits_NV.split(_ROWS_AT_A_TIME), target_N.split(_ROWS_AT_A_TIME), strict=True):
        scores_NV = logits[:, :vocabulary].to(sum_dtype(logits))
        place_N1, scored_N1 = target.clamp(min=0)[:, None], (target != NOT_SCORED).to(scores_NV.dtype)[:, None]
        p_NV = scores_NV.softmax(-1)
        # One exponential for loss and gradient: p of the likeliest is at least 1 / V, while the target's may be zero.
        below_highest_N1 = scores_NV.amax(-1, keepdim=True) - scores_NV.gather(1, place_N1)
        losses.append(((below_highest_N1 - p_NV.amax(-1, keepdim=True).log()) * scored_N1).sum())
        gradient_NV = p_NV.scatter_add_(1, place_N1, torch.full_like(scored_N1, -1))
        torch.mul(gradient_NV, scored_N1, out=logits[:, :vocabulary])
        logits[:, vocabulary:] = 0
    return torch.stack(losses).sum()


def sum_dtype(values: torch.Tensor) -> torch.dtype:
    """The dtype of a softmax over a vocabulary: at least single precision."""
    return torch.promote_types(values.dtype, torch.float32)


def is_rms(norm: Module) -> bool:
    """Whether a norm is the Llama family's RMSNorm."""
    return hasattr(norm, "variance_epsilon")


def rms_norm(x_BTK: torch.Tensor, norm: Module) -> torch.Tensor:
    """RMSNorm in its input's precision; transformers' own rounds double precision to single."""
    return F.rms_norm(x_BTK, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _norm(x_BTK: torch.Tensor, norm: Module) -> tuple[torch.Tensor, ...]:
    """LayerNorm or RMSNorm, and the moments that its backward pass needs."""
    if is_rms(norm):
        scale = (x_BTK.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
        return x_BTK * scale * norm.weight, scale
    return torch.native_layer_norm(x_BTK, [x_BTK.shape[-1]], norm.weight, norm.bias, norm.eps)


def _rms_norm_backward(
    grad_normed_BTK: torch.Tensor, x_BTK: torch.Tensor, scale_BT1: torch.Tensor, norm: Module
) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Gradients with respect to the input and the weight; there is no bias."""
    unit_BTK = x_BTK * scale_BT1
    grad_unit_BTK = grad_normed_BTK * norm.weight
    along_BT1 = (grad_unit_BTK * unit_BTK).mean(-1, keepdim=True)
    grad_weight = (grad_normed_BTK * unit_BTK).flatten(0, -2).sum(0)
    return (grad_unit_BTK - unit_BTK * along_BT1) * scale_BT1, grad_weight, None
