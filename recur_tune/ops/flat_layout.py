"""Flat layout: where each trained parameter's gradient lies in one buffer, which workers exchange in one collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from recur_tune.ops.body import Body

_ALIGNMENT = 16  # elements; vectorised kernels load 16 bytes at a time, and a cache line has 64


@dataclass(frozen=True)
class FlatLayout:
    """The elements of a flat buffer.

    Parameters of one projection lie one behind the other, so that one matrix product adds to all of them. What is left
    over stays zero.

    Attributes:
        spans: Each parameter's elements.
        stacks: The elements of the parameters of one projection, together.
        length: Of the buffer. Its last element is the loss's.
    """

    spans: dict[nn.Parameter, slice]
    stacks: dict[tuple[nn.Parameter, ...], slice]
    length: int

    def new_buffer(self) -> torch.Tensor:
        """A buffer of zeros, in the dtype and on the device of the parameters."""
        return self.new_part(1)

    def new_part(self, shards: int) -> torch.Tensor:
        """The same for one of `shards` equal parts."""
        like, size = next(iter(self.spans), None), self.length // shards
        return torch.zeros(size) if like is None else like.new_zeros(size)

    def part(self, rank: int, shards: int) -> slice:
        """The elements of one of `shards` equal parts."""
        size = self.length // shards
        return slice(rank * size, (rank + 1) * size)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that require gradients."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def flat_layout(trained: Sequence[nn.Parameter], body: Body, shards: int = 1) -> FlatLayout:
    """Lay these parameters out in a buffer that `shards` workers can share evenly."""
    wanted = set(trained)
    projections = [stack for one in body.projections for stack in (one.weights, one.biases, one.lora_downs)]
    together = [stack for stack in projections if stack and wanted.issuperset(stack)]
    spans: dict[nn.Parameter, slice] = {}
    stacks: dict[tuple[nn.Parameter, ...], slice] = {}
    end = 0
    for stack in (*together, *((parameter,) for parameter in trained)):
        if stack[0] in spans:
            continue
        begin = end = _rounded_up(end, _ALIGNMENT)
        for parameter in stack:
            spans[parameter] = slice(end, end + parameter.numel())
            end = spans[parameter].stop
        stacks[stack] = slice(begin, end)
    return FlatLayout(spans, stacks, _rounded_up(end + 1, _ALIGNMENT * shards))


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
