"""What a recurrence's window pass makes of random heads in all layers: with its kernels, and operation by operation."""

from __future__ import annotations

from typing import Any

import torch

from recur_tune.common.shape import shape_of
from recur_tune.recurrences.registry import MECHANISMS
from recur_tune.recurrences.seam import GATE_SPEED
from tests.kernels import CLOSE, Numbers, assert_close

LANES = 2


def assert_as_operations(
    name: str,
    fields: dict[str, Any],
    kind: torch.dtype,
    device: torch.device,
    close: float | None = None,
    **form: Any,
) -> None:
    """A recurrence's results are the same with its kernels and without: what heads took, the next state, and the
    gradients of all that went in."""
    found = _results(name, fields, True, Numbers(kind, device, exactly=False), **form)
    expected = _results(name, fields, False, Numbers(kind, device, exactly=True), **form)
    assert_close(found, expected, close or CLOSE[kind])


def _results(
    name: str, fields: dict[str, Any], fused: bool, numbers: Numbers, positions: int, overlap: int,
    group: int = 1, groups: int = 2, size: int = 6, layers: int = 1, placed: bool = False, begins: bool = False,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """One window's, of `groups` of heads that share keys and values. The second row begins a document; with `begins`
    no row has a state yet."""
    heads, body = group * groups, _learned if placed else _rotary
    torch.manual_seed(0)
    recurrence = MECHANISMS[name].load()(shape_of(body(heads, groups, size, layers)), **fields)
    recurrence.to(numbers.device, numbers.single)
    with torch.no_grad():
        for name, value in (*recurrence.named_parameters(), *recurrence.named_buffers()):
            is_gate = "gate" in name or "logits" in name  # which are neither open nor closed
            some = numbers.summed(*value.shape)
            value.copy_(some / GATE_SPEED if is_gate else value + 0.3 * some)
    state = [_some(one, numbers, recurrence) for one in recurrence.empty(LANES)]
    window_pass = recurrence.open(None if begins else tuple(state), numbers.whole(0, 1).bool(), in_parts=False)
    window_pass.fused = fused
    given = {f"state {number}": one for number, one in enumerate(state)} | dict(recurrence.named_parameters())
    made: dict[str, torch.Tensor] = {}
    for layer in range(layers):
        qkv, out = (
            numbers.rounded(LANES, positions, columns * size).requires_grad_()
            for columns in (heads + 2 * groups, heads)
        )
        by_head = qkv.unflatten(-1, (-1, size)).transpose(1, 2)
        parts = by_head.split([heads, groups, groups], dim=1)
        made[f"layer {layer}"] = window_pass.attended(layer, out, lambda parts=parts: parts)
        given |= {f"heads {layer}": qkv, f"taken {layer}": out}
    made |= {f"next state {number}": one for number, one in enumerate(window_pass.close(overlap, None))}
    loss = sum((one.to(numbers.single) * numbers.summed(*one.shape)).sum() for one in made.values())
    wanted = {name: one for name, one in given.items() if one.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    gradients = {f"by {name}": one for name, one in zip(wanted, found, strict=True) if one is not None}
    return made | gradients


def _some(zeros: torch.Tensor, numbers: Numbers, recurrence: Any) -> torch.Tensor:
    """A state: positive, as sums of features are; how many rows of a cache are filled is one number for each lane, and
    its bytes are quantised rows, the same on both sides."""
    if zeros.dim() == 1:
        return numbers.whole(6, 3).to(zeros.dtype)
    if zeros.dtype == torch.uint8:
        rows: torch.Tensor = recurrence.stored(numbers.summed(*zeros.shape[:-1], recurrence.columns).float())
        return rows
    return numbers.summed(*zeros.shape).abs().to(zeros.dtype).requires_grad_()


def _rotary(heads: int, groups: int, size: int, layers: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": size,
        "num_key_value_heads": groups, "hidden_size": heads * size, "intermediate_size": 8, "vocab_size": 10,
        "max_position_embeddings": 256,
    }  # fmt: skip


def _learned(heads: int, groups: int, size: int, layers: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2", "n_layer": layers, "n_head": heads, "n_embd": heads * size, "vocab_size": 10,
        "n_positions": 256,
    }  # fmt: skip
