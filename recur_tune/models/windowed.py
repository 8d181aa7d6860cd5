"""Base class of decoders and encoders: a pretrained body, the recurrence that connects its windows, and a head.

Shape suffixes: W windows, B batch rows, T positions, N positions of a window over all batch rows, K hidden size.
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
from recur_tune.recurrences.composition import built
from recur_tune.recurrences.modules import modules_of
from recur_tune.recurrences.seam import Recurrence, State


class WindowedConfig(PretrainedConfig):
    """What our configurations add to a family's own.

    Attributes:
        recurrence: The mechanism's name as `kind`, and its fields; None is the plain model.
        window: Window size in training, in tokens. Texts of any length are read in such windows, and evaluation warns
            where it uses others.
        overlap: Tokens of a window that the next one reads again.
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
    """The last layer's output for a window, or the next part of it, and the state that it leaves."""

    top_BTK: torch.Tensor
    state: State | None


class Scorer(Protocol):
    """A model's head and its task's loss during one step.

    It sees windows in their order when they are first read. Then it scores them from the last to the first. A window's
    loss comes together with the gradient with respect to its last layer.

    Attributes:
        is_separate: Whether a window's loss is its own, so that it may be scored before others are seen, in any order.
    """

    is_separate: bool

    def see(self, window: int, top_NK: torch.Tensor) -> None:
        """See a window's last layer when it is first read, for losses over several windows."""

    def score(self, window: int, top_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A window's part of the summed loss, and the gradient with respect to its last layer."""

    def gradients(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Of the head's trained weights, accumulated over all windows."""


class Windowed(PreTrainedModel):
    """A pretrained body and the recurrence that connects its windows.

    A family's class says where its modules are (`find_body`).

    Attributes:
        opened_by: transformers' auto class for such a model.
        dropout_fields: Its configuration's dropout rates.
        scored_by: Where its `Scorer` is, as `package.module:Class`; by name, since a saved model's code has none.
        read: Runs one window.
        unread: Names of tensors in its base's files that it does not have.
    """

    opened_by: str
    dropout_fields: tuple[str, ...] = ("attention_dropout",)
    scored_by: str
    recurrence: Recurrence | None
    read: Callable[..., WindowOutput]
    unread: frozenset[str] = frozenset()

    def scorer(self, batch: Any, fused: bool) -> Scorer:
        """The scorer of one step on a batch of windows (`recur_tune.data.batches.WindowBatch`); `fused` takes Triton
        kernels."""
        place, _, name = self.scored_by.partition(":")
        return getattr(importlib.import_module(place), name)(self, batch, fused)

    def blank(self, windows: int, chains: int, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of a batch, all zeros, with which costs are simulated: chains of so many windows of
        `window` tokens."""
        inputs, targets = (torch.zeros((windows, chains, window), dtype=torch.long) for _ in range(2))
        return inputs, targets

    @property
    def carries_state(self) -> bool:
        """Whether a state goes from window to window."""
        return self.recurrence is not None

    def calibrate(self, texts: Callable[[], torch.Tensor], weight: float = 1.0) -> None:
        """Let the recurrence measure the body on texts [N, T], if it has something to measure."""

    def find_body(self) -> Body:
        """The family's modules in their places."""
        raise NotImplementedError

    @cached_property
    def body(self) -> Body:
        """The same, found once."""
        return self.find_body()

    def add_recurrence(self) -> None:
        """Build the configuration's recurrence with fresh weights, or none."""
        settings = self.config.recurrence
        self.recurrence = None
        if settings is not None:
            self.recurrence = built(modules_of(settings), self.config.shape, settings)

    def take_buffers(self, other: nn.Module) -> None:
        """Take over buffers that checkpoints do not have, such as rotary frequencies, from a model of the family."""
        own = dict(self.named_buffers())
        for name, buffer in other.named_buffers():
            if name in own and own[name].is_meta:
                place, _, attribute = name.rpartition(".")
                setattr(self.get_submodule(place), attribute, buffer)

    def freeze_body(self) -> None:
        """Train only the recurrence, where there is one."""
        self.requires_grad_(False)
        if self.recurrence is not None:
            self.recurrence.requires_grad_(True)

    def _init_weights(self, module: nn.Module) -> None:
        # A recurrence initialises itself; the body's small standard deviation would leave the state near zero.
        if self.recurrence is not None and any(module is part for part in self.recurrence.modules()):
            self.recurrence.reset(module)
        else:
            super()._init_weights(module)
