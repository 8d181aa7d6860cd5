"""Queries, keys and values: the kernels that turn, join, move and pack them, at sizes that fill no block."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recur_tune.ops.triton import attention as attention_kernels
from tests.kernels import KINDS, Numbers, assert_as_passes, launches

_LANES, _POSITIONS, _HEADS, _SHARED, _HEAD = 3, 12, 2, 1, 6
_WIDE, _NARROW = _HEADS * _HEAD, _SHARED * _HEAD
_INSERTED = 3
_SEEN = pytest.mark.parametrize("per_row", [False, True], ids=["all", "per row"])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rows and columns are several of them."""
    for name, size in {"_LONG": 16, "_BATCH": 2, "_SHORT": 16, "_TALLER": 32, "_WIDE": 8}.items():
        monkeypatch.setattr(attention_kernels, name, size)


def _cos_sin(numbers: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
    angle = numbers.summed(_POSITIONS, _HEAD // 2).repeat(1, 2)
    return angle.cos(), angle.sin()


def _parts(numbers: Numbers, rows: int) -> tuple[torch.Tensor, ...]:
    return tuple(numbers.rounded(_LANES, rows, columns) for columns in (_WIDE, _NARROW, _NARROW))


def _seen(numbers: Numbers, per_row: bool) -> torch.Tensor | None:
    """How many of the inserted rows lanes see: none, all, and some."""
    return numbers.whole(0, _INSERTED, 1) if per_row else None


@KINDS
@pytest.mark.parametrize("back", [False, True], ids=["forth", "back"])
@launches("_rotate")
def test_heads_are_turned(back, kind, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        qkv = numbers.rounded(_LANES, _POSITIONS, _WIDE + 2 * _NARROW)
        return [passes.apply_rotary(qkv, *_cos_sin(numbers), _HEADS + _SHARED, back)]

    assert_as_passes(run, kind, device)


@KINDS
@_SEEN
@launches("_join")
def test_gradients_of_heads_are_joined(per_row, kind, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        parts, total = _parts(numbers, _POSITIONS + _INSERTED), numbers.summed(_WIDE + 2 * _NARROW)
        seen = _seen(numbers, per_row)
        packed = passes.join(parts, total, None, _INSERTED if seen is None else seen, _POSITIONS)
        return [packed, total] if per_row else [packed, total, passes.join(parts, None)]

    assert_as_passes(run, kind, device)


@KINDS
@_SEEN
@launches("_join_rotary")
def test_gradients_of_rotated_heads_are_joined(per_row, kind, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        parts, total = _parts(numbers, _POSITIONS + _INSERTED), numbers.summed(_WIDE + 2 * _NARROW)
        seen, turn = _seen(numbers, per_row), _cos_sin(numbers)
        packed = passes.join(parts, total, turn, _INSERTED if seen is None else seen, _POSITIONS)
        return [packed, total] if per_row else [packed, total, passes.join(_parts(numbers, _POSITIONS), None, turn)]

    assert_as_passes(run, kind, device)


@KINDS
@_SEEN
@launches("_move")
def test_rows_are_moved(per_row, kind, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        x, down = numbers.rounded(_LANES, _POSITIONS, 19), numbers.whole(0, 2, 1) if per_row else 2
        return [passes.move(x, down, _POSITIONS + 2), passes.move(x, -down, _POSITIONS - 2)]

    assert_as_passes(run, kind, device)


@pytest.mark.parametrize(
    ("kind", "per_row", "has_places"),
    [
        (torch.float32, False, True),
        (torch.float32, True, True),
        (torch.bfloat16, True, False),
    ],
    ids=["placed", "placed, per row", "per row, half"],
)
@launches("_pack")
def test_what_is_inserted_is_packed(has_places, per_row, kind, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        extra = numbers.rounded(_LANES, 2, _INSERTED, 2 * _NARROW)[:, 1]  # one site's of a state
        places = numbers.summed(_INSERTED, 2 * _NARROW) if has_places else None
        x = numbers.rounded(_LANES, _POSITIONS, _WIDE + 2 * _NARROW)
        return [passes.pack(extra, x, _seen(numbers, per_row), places)]

    assert_as_passes(run, kind, device)


@KINDS
@_SEEN
@launches("_grad_extra", "_grad_places")
def test_gradients_of_what_is_inserted(per_row, kind, device):
    def run(passes: Any, numbers: Numbers) -> list[torch.Tensor]:
        parts, seen = _parts(numbers, _POSITIONS + _INSERTED)[1:], _seen(numbers, per_row)
        return [
            passes.grad_extra(parts, _INSERTED, seen),
            passes.grad_places(parts, _INSERTED, seen, numbers.single),
        ]

    assert_as_passes(run, kind, device)
