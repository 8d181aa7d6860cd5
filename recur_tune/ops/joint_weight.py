"""The weights of a projection in one matrix, in one storage where they are frozen, and with room for LoRA's."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from recur_tune.ops.body import Projection

_ALIGNMENT = 8  # tensor cores read rows that begin at multiples of 16 bytes, which are 8 numbers of bfloat16


class Room(NamedTuple):
    """Rows and columns behind a projection's weights, in their layout; B's ranks beside the inputs, or A's below the
    outputs."""

    rows: int = 0
    columns: int = 0


def room_for_lora(projection: Projection) -> Room:
    """None where there is no LoRA, where the weights learn too, or are quantised."""
    weights = projection.weights
    if not projection.lora_downs or not weights or any(weight.requires_grad for weight in weights):
        return Room()
    ranks = padded_ranks(projection)
    return Room(rows=ranks) if is_beside_inputs(projection) == projection.inputs_first else Room(columns=ranks)


def padded_ranks(projection: Projection) -> int:
    """LoRA's ranks of all modules, rounded up."""
    return -(-sum(map(len, projection.lora_downs)) // _ALIGNMENT) * _ALIGNMENT


def is_beside_inputs(projection: Projection) -> bool:
    """Whether B is to stand beside the weight's inputs: A below several modules would be multiplied for all of them,
    and what is done on the shorter side alone takes less time."""
    inputs, outputs = 0, 0
    for weight in projection.weights:
        inputs, columns = weight.shape if projection.inputs_first else weight.shape[::-1]
        outputs += columns
    return len(projection.modules) > 1 or outputs > inputs


def lay_together(projection: Projection) -> None:
    """Hold a projection's frozen weights in one storage with room for LoRA's, so that a step multiplies by all of them
    at once without a copy. Moving them to another device takes them apart."""
    weights, room = projection.weights, room_for_lora(projection)
    if any(weight.requires_grad for weight in weights) or (len(weights) < 2 and not any(room)):
        return
    together, columns, end = weight_together(projection, room, weights[0].dtype), weights[0].shape[1], 0
    for module, weight in zip(projection.modules, weights, strict=True):
        begin, end = end, end + len(weight)
        module.weight = nn.Parameter(together[begin:end, :columns], requires_grad=False)


def weight_together(projection: Projection, room: Room, dtype: torch.dtype) -> torch.Tensor:
    """The weights one behind the other, then the room; no copy where they are held so in this dtype, else with zeros in
    the room."""
    weights = projection.weights
    if (held := _held_together(weights, room, dtype)) is not None:
        return held
    parts = [weight.detach().to(dtype) for weight in weights]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return F.pad(whole, (0, room.columns, 0, room.rows)) if any(room) else whole


def _held_together(weights: tuple[nn.Parameter, ...], room: Room, dtype: torch.dtype) -> torch.Tensor | None:
    """Weights and room as one tensor, where they fill a storage of their own in this order."""
    first, rows, columns = weights[0], sum(map(len, weights)) + room.rows, weights[0].shape[1] + room.columns
    if _storage(first).nbytes() != rows * columns * first.element_size():
        return None
    storage, at = _storage(first)._cdata, 0
    for weight in weights:
        is_next = weight.storage_offset() == at and _storage(weight)._cdata == storage and weight.dtype == dtype
        if not is_next or weight.stride() != (columns, 1) or weight.shape[1] != first.shape[1]:
            return None
        at += len(weight) * columns
    return first.detach().as_strided((rows, columns), (columns, 1))


def _storage(parameter: torch.Tensor) -> torch.UntypedStorage:
    return getattr(parameter, "meta", parameter).untyped_storage()  # a fake tensor's is not its own
