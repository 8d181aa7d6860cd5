"""Backpropagation through time over a chain of windows, with the paper's checkpoint at the bottleneck.

Between two windows only the state survives (section 3.2), so a window can be forgotten after its loss and
its state are known and run again when the backward pass reaches it. A `Plan` says what is kept instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from recur_tune.corpus.batches import WindowBatch
from recur_tune.model import RecurrentGPT2, State
from recur_tune.model.loss import summed_loss, summed_loss_with_gradients


@dataclass(frozen=True)
class Plan:
    """What a step keeps from the forward pass.

    Attributes:
        kept_windows: How many windows, counted from the chain's end, keep their activations. The backward
            pass uses these first and frees them before it runs any earlier window again, so the last window
            is always kept: its activations are what recomputing any window needs anyway.
        head_gradients: Make the vocabulary projection's gradients in the forward pass and keep them, so that
            a recomputed window ends at its last layer. Costs the last layer's output for every window.
    """

    kept_windows: int = 1
    head_gradients: bool = False


def fixed_plan(policy: Literal["all", "none"], windows: int) -> Plan:
    """`all` recomputes whatever can be, so that memory is flat in the number of windows; `none` nothing."""
    return Plan(kept_windows=1 if policy == "all" else windows)


class Chain(nn.Module):
    """A chain of windows as one forward pass, so that DDP synchronises gradients once a step."""

    def __init__(self, model: RecurrentGPT2, plan: Plan) -> None:
        super().__init__()
        self.model, self.plan = model, plan

    def forward(self, batch: WindowBatch) -> torch.Tensor:
        """The sum of negative log-likelihoods over every scored token of the batch."""
        windows = len(batch.starts)
        run = self._read if self.plan.head_gradients else self._read_and_score
        results: list[torch.Tensor] = []
        state: State | None = None
        for window in range(windows):
            arguments = (batch, window, state, window < windows - 1)
            if window < windows - self.plan.kept_windows:
                result, state = checkpoint(run, *arguments, use_reentrant=False)
            else:
                result, state = run(*arguments)
            results.append(result)
        if not self.plan.head_gradients:
            return torch.stack(results).sum()
        targets = [target_BT.flatten() for target_BT in batch.targets_WBT]
        return summed_loss_with_gradients(results, self.model.lm_head.weight, targets)

    def _read(
        self, batch: WindowBatch, window: int, state: State | None, leave_state: bool
    ) -> tuple[torch.Tensor, State | None]:
        start = batch.starts[window]
        reading = self.model.read(
            batch.inputs_WBT[window],
            state=None if start == "all" else state,
            fresh_B=batch.fresh_WB[window] if start == "some" else None,
            leave_state=leave_state,
        )
        return reading.top_BTK.flatten(0, 1), reading.state

    def _read_and_score(
        self, batch: WindowBatch, window: int, state: State | None, leave_state: bool
    ) -> tuple[torch.Tensor, State | None]:
        top_NK, state = self._read(batch, window, state, leave_state)
        return summed_loss(top_NK, self.model.lm_head.weight, batch.targets_WBT[window].flatten()), state
