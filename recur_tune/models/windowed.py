"""What decoders and encoders share: a pretrained body, the recurrence that connects its windows, and a head.

Shape suffixes: W windows, B batch rows, T positions, N positions of a window in one row, K hidden size.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from recur_tune.common.shape import Shape, shape_of
from recur_tune.common.windowing import Windowing
from recur_tune.ops.body import Body
from recur_tune.recurrences.modules import module_of
from recur_tune.recurrences.seam import Recurrence, State


class WindowedConfig(PretrainedConfig):
    """What our configurations add to a family's own.

    Attributes:
        recurrence: The mechanism's name as `kind`, and its fields; None is the plain model.
        window: Tokens that the model was trained to read at a time: a text of any length is read so, and evaluation
            warns when it reads otherwise.
        overlap: Tokens of a window that are read again in the next.
    """

    recurrence: dict[str, Any] | None = None
    window: int | None = None
    overlap: int | None = None

    @property
    def shape(self) -> Shape:
        """The body's."""
        return shape_of(self.to_dict())

    @property
    def windowing(self) -> Windowing:
        """The windows in which a text is read."""
        context = self.shape.context
        size = self.window or context
        if size > context:
            raise ValueError(f"window: {size} is more than the {context} positions of this model.")
        return Windowing(size, self.overlap or 0)


@dataclass(frozen=True)
class WindowOutput:
    """What one window (or the next part of it) became: the last layer's output, and the state that it leaves."""

    top_BTK: torch.Tensor
    state: State | None


class Scorer(Protocol):
    """The head of a model and the loss of its task, during one step: windows are shown to it in their order as they are
    first read, and scored from the last to the first. Whoever asks for a window's loss gets the gradient of its input
    at the same time."""

    def see(self, window: int, top_NK: torch.Tensor) -> None:
        """A window's last layer as it is first read, for a loss over all windows together."""

    def score(self, window: int, top_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a window adds to the sum of losses, and the sum's gradient by its last layer."""

    def gradients(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """What all windows said about the head's weights, of those that are trained."""


class Windowed(PreTrainedModel):
    """A pretrained body and the recurrence that connects its windows.

    A family's class says where its modules are (`find_body`).

    Attributes:
        opened_by: transformers' class that opens such a model by its folder's name.
        scored_by: Where its `Scorer` is, as `package.module:Class`. A model that is saved does without.
        read: Runs one window: its tokens, the state of the window before, and how.
    """

    opened_by: str
    scored_by: str
    recurrence: Recurrence | None
    read: Callable[..., WindowOutput]

    def scorer(self, targets_WBT: torch.Tensor, fresh_WB: torch.Tensor, fused: bool) -> Scorer:
        """What scores a step's windows; `fresh_WB` are those that begin a document, `fused` takes a GPU's kernels."""
        place, _, name = self.scored_by.partition(":")
        return getattr(importlib.import_module(place), name)(self, targets_WBT, fresh_WB, fused)

    def calibrate(self, texts: Callable[[], torch.Tensor], weight: float = 1.0) -> None:
        """Let the recurrence measure the body on texts [N, T], where it has anything to measure."""

    def find_body(self) -> Body:
        """The family's modules in their places."""
        raise NotImplementedError

    @cached_property
    def body(self) -> Body:
        """The same, found once."""
        return self.find_body()

    def add_recurrence(self) -> None:
        """A fresh one, as the configuration describes it, or none."""
        settings = self.config.recurrence
        self.recurrence = None
        if settings is not None:
            fields = {name: value for name, value in settings.items() if name != "kind"}
            # Before there were others, a configuration did not say which.
            self.recurrence = module_of(settings.get("kind", "pooled"))(self.config.shape, **fields)

    def take_buffers(self, other: nn.Module) -> None:
        """What another model of the family computes with and does not save, as the angles of rotary positions."""
        own = dict(self.named_buffers())
        for name, buffer in other.named_buffers():
            if name in own and own[name].is_meta:
                place, _, attribute = name.rpartition(".")
                setattr(self.get_submodule(place), attribute, buffer)

    def freeze_body(self) -> None:
        """Leave only the recurrence to be trained."""
        assert self.recurrence is not None
        self.requires_grad_(False)
        self.recurrence.requires_grad_(True)

    def _init_weights(self, module: nn.Module) -> None:
        # The recurrence has a start of its own; a body's narrow normal would leave the state at almost nothing.
        if self.recurrence is not None and any(module is part for part in self.recurrence.modules()):
            self.recurrence.reset(module)
        else:
            super()._init_weights(module)
