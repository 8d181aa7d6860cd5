"""What a recurrence's window_pass makes of random heads in all layers, with its kernels and by single operations.

`check_gpu.py` compares both with the same in double precision: what heads took, the next state, and the gradients of
all that went in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from recur_tune.common.shape import Shape, shape_of
from recur_tune.recurrences.modules import module_of

LANES = 3
# Name, fields, heads, heads of keys and values, their size, positions, and how many of them come again.
FORMS: list[tuple[str, dict[str, Any], tuple[int, int, int], int, int]] = [
    ("cache", {"cache_rows": 40, "cache_join": "gate"}, (4, 4, 64), 77, 0),
    ("cache", {"cache_rows": 150, "cache_join": "gate"}, (6, 2, 48), 130, 5),
    ("cache", {"cache_rows": 150}, (4, 4, 64), 130, 5),
    ("fast_weights", {"write_rule": "linear"}, (4, 4, 64), 77, 0),
    ("fast_weights", {"write_rule": "delta"}, (4, 4, 64), 77, 0),
    ("fast_weights", {"write_rule": "delta"}, (6, 2, 48), 130, 5),
    ("fast_weights", {"write_rule": "gated"}, (4, 4, 64), 77, 0),
    ("fast_weights", {"write_rule": "gated"}, (6, 2, 32), 130, 5),
    ("scores", {"score_heads": 4}, (8, 8, 64), 77, 0),
    ("scores", {"score_heads": 4, "dilation": 3}, (6, 2, 48), 130, 5),
]


def window_passes(fused: bool, device: torch.device, exactly: bool = False) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Every form's results; `fused`: what Triton kernels make of the same numbers. All of them are rounded to bfloat16,
    and `exactly` computes with them in double precision."""
    wide, kind = (torch.float64, torch.float64) if exactly else (torch.float32, torch.bfloat16)
    for name, fields, (heads, groups, size), positions, overlap in FORMS:
        torch.manual_seed(0)
        shape = _shape(heads, groups, size)
        recurrence = module_of(name)(shape, **fields)
        with torch.no_grad():
            for parameter in recurrence.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        recurrence.to(device, wide)
        state = [_state(one.shape, device, wide) for one in recurrence.empty(LANES)]
        fresh_B = torch.tensor([False, True, False], device=device)
        window_pass = recurrence.open(tuple(state), fresh_B, in_parts=False)
        window_pass.fused = fused
        given, made = [*state, *recurrence.parameters()], []
        for layer in range(shape.layers):
            qkv, out = (
                torch.randn(LANES, positions, columns, device=device).bfloat16().to(kind).requires_grad_()
                for columns in ((heads + 2 * groups) * size, heads * size)
            )
            parts = [part.unflatten(-1, (-1, size)).transpose(1, 2) for part in
                     qkv.split([heads * size, groups * size, groups * size], dim=-1)]  # fmt: skip
            made.append(window_pass.attended(layer, out, lambda parts=parts: tuple(parts)))
            given += [qkv, out]
        made += window_pass.close(overlap, None)
        loss = sum((one.to(wide) * torch.randn(one.shape, device=device)).sum() for one in made)
        found = torch.autograd.grad(loss, [one for one in given if one.requires_grad], allow_unused=True)
        title = ", ".join([name, *map(str, fields.values()), f"{heads} over {groups} heads of {size}"])
        yield title, [*(one.detach() for one in made), *(one for one in found if one is not None)]


def _state(shape: torch.Size, device: torch.device, kind: torch.dtype) -> torch.Tensor:
    """Positive, as sums of features are; how many rows of a cache are filled is a number for each lane alone."""
    if len(shape) == 1:
        return torch.tensor([30.0, 20.0, 40.0], device=device)
    return torch.rand(shape, device=device).to(kind).requires_grad_()


def _shape(heads: int, groups: int, size: int) -> Shape:
    return shape_of({
        "model_type": "qwen3", "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": groups,
        "head_dim": size, "hidden_size": heads * size, "intermediate_size": 64, "max_position_embeddings": 512,
        "vocab_size": 100,
    })  # fmt: skip
