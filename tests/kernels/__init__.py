"""Every Triton kernel beside the operations that it stands for: what it makes, and gradients.

A CPU runs kernels in Triton's interpreter, so these tests are a part of all others. A GPU compiles them: `make
test-gpu`. The yardstick is always the operations in double precision, on the same numbers.

Nothing here imports `tests.conftest`, which hides GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from recur_tune.ops import reference as passes
from recur_tune.ops.triton import pointwise as kernels

launches = pytest.mark.launches  # the names of kernels that a test runs; `test_every_kernel.py` looks for all of them
KINDS = pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["single", "half"])

# Of a result's size. Half precision has eight bits, and a result may be made of numbers that were rounded to these.
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

_BEYOND = 4096  # numbers before and behind those that a kernel is given


class Numbers:
    """Random numbers for both sides: a kernel gets them as they are, its operations in double precision."""

    def __init__(self, kind: torch.dtype, device: torch.device, exactly: bool) -> None:
        self.device, self._kind, self._exactly = device, kind, exactly
        self._random = torch.Generator().manual_seed(0)

    @property
    def kind(self) -> torch.dtype:
        """What products make."""
        return torch.float64 if self._exactly else self._kind

    @property
    def single(self) -> torch.dtype:
        """What sums over layers, windows or rows are."""
        return torch.float64 if self._exactly else torch.float32

    def rounded(self, *shape: int) -> torch.Tensor:
        """What a product could have made."""
        return self._some(shape).to(self._kind).to(self.kind)[_BEYOND:-_BEYOND].view(shape)

    def summed(self, *shape: int) -> torch.Tensor:
        """What a sum could be."""
        return self._some(shape).to(self.single)[_BEYOND:-_BEYOND].view(shape)

    def whole(self, *values: int) -> torch.Tensor:
        """One for each lane."""
        return torch.tensor(values, device=self.device)

    def _some(self, shape: tuple[int, ...]) -> torch.Tensor:
        """In one row, between large numbers: whoever reads beyond the shape is far off."""
        beyond, count = torch.full((_BEYOND,), 1e4), torch.Size(shape).numel()
        return torch.cat([beyond, torch.randn(count, generator=self._random), beyond]).to(self.device)


def assert_as_passes(
    run: Callable[[Any, Numbers], Sequence[torch.Tensor]], kind: torch.dtype, device: torch.device
) -> None:
    """`run` makes the same of the same numbers, whether it is given the kernels or the operations."""
    found = run(kernels, Numbers(kind, device, exactly=False))
    expected = run(passes, Numbers(kind, device, exactly=True))
    assert_close(dict(enumerate(found)), dict(enumerate(expected)), CLOSE[kind])


def assert_close(found: dict[Any, torch.Tensor], expected: dict[Any, torch.Tensor], close: float) -> None:
    """Every result is as far from the expected one as its size allows; one that is no number is far off."""
    shapes = [{name: tuple(one.shape) for name, one in made.items()} for made in (found, expected)]
    assert shapes[0] == shapes[1], shapes
    errors = {name: _off(one, expected[name]) for name, one in found.items()}
    wrong = {name: f"off by {error:.1e}" for name, error in errors.items() if not error <= close}
    assert not wrong, wrong


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """A distance over a size; of nothing, the distance."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return float((found - expected).norm() / (expected.norm() or 1.0))
