"""Backpropagation through time over a chain of windows, with activation checkpointing at the state.

Between two windows only the state is kept (the paper's section 3.2). So the chain is read once for the states. Then
windows are recomputed, scored and differentiated one by one, the last first. The vocabulary projection, a third of a
small model's work, runs only in this second pass. A `Plan` says how many windows keep their activations from the first
reading instead. Where no gradient goes from window to window, as in the plain model, each is differentiated when it is
read, and the plan does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from recur_tune.bptt.cuda_graph import CudaGraphStep
from recur_tune.bptt.plan import Execution, Plan
from recur_tune.bptt.rng import RngStates
from recur_tune.bptt.step_gradients import StepGradients
from recur_tune.data.batches import WindowBatch
from recur_tune.models import State, Windowed
from recur_tune.models.windowed import Scorer
from recur_tune.ops.flat_layout import trained_parameters
from recur_tune.ops.fused_backward import FusedBackward, GradAccumulators

Read = tuple[torch.Tensor, State | None]  # a window's last layer, [N, K], and the state that it leaves

Gradients = list[torch.Tensor | None]


class Chain:
    """A chain of windows, and the gradients of its loss.

    With a CUDA graph or fused kernels every window runs the same operations, whether documents begin there or not: a
    graph is captured from one batch and replayed for all, so nothing may depend on a batch's values on the host.

    Args:
        model: A body and its recurrence.
        plan: Which windows keep their activations.
        execution: How operations are launched.
        shards: Workers that share the optimizer's state; the gradients' buffer has an equal part for each.
        capture: Whether a CUDA graph is captured; an estimate of a step's cost does without.
        around_read: A context for every reading of a window, for measurements.
    """

    def __init__(
        self,
        model: Windowed,
        plan: Plan,
        execution: Execution = Execution(),  # noqa: B008 - a constant
        shards: int = 1,
        capture: bool = True,
        around_read: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.model, self.plan, self.shards = model, plan, shards
        self.uniform, self.fused = any(execution), execution.fused_kernels
        self._graph = CudaGraphStep(model, self.differentiate_now) if execution.cuda_graph and capture else None
        self._around_read = around_read

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that require gradients."""
        return trained_parameters(self.model)

    def differentiate(self, batch: WindowBatch) -> StepGradients:
        """The task's loss, summed over the batch, and its gradients; the next call overwrites them. For next tokens the
        loss is the cross-entropy of every scored token, or is mixed with the divergence from a teacher."""
        return self._graph.differentiate(batch) if self._graph else self.differentiate_now(batch)

    @torch.enable_grad()
    def differentiate_now(self, batch: WindowBatch, rng: RngStates | None = None) -> StepGradients:
        """The same without a CUDA graph; dropout draws from `rng`."""
        rng = rng or RngStates(self.model)
        trained = self.trained
        totals = GradAccumulators(trained, self.model.body, self.shards)
        scorer = self.model.scorer(batch, self.fused)
        step = FusedBackward(totals, self.fused)
        losses: list[torch.Tensor] = []
        grad_state: Gradients | None = None  # with respect to the state that a window leaves, from the windows behind
        for window, entry, reading in self._readings(batch, step, rng, scorer):
            top_NK, left = reading
            loss, grad_top_NK = scorer.score(window, top_NK)
            losses.append(loss)
            grad_outputs: list[tuple[torch.Tensor, torch.Tensor | None]] = [(top_NK, grad_top_NK)]
            if left is not None and grad_state is not None:
                grad_outputs += zip(left, grad_state, strict=True)
            # The step accumulates the body's gradients itself; autograd returns the recurrence's.
            grad_entry, grad_trained = _differentiate(grad_outputs, step.anchor, entry or (), trained)
            grad_state = None if entry is None else grad_entry
            _add(totals.gradients, grad_trained)
            del reading, top_NK, left, grad_outputs, grad_trained  # before another window's activations are made
        for weight, gradient in scorer.gradients():
            at_head = next(at for at, parameter in enumerate(trained) if parameter is weight)
            totals.gradients[at_head] += gradient
        totals.loss.copy_(torch.stack(losses).sum())
        return StepGradients(totals.loss, totals.gradients, totals.buffer)

    def _readings(
        self, batch: WindowBatch, step: FusedBackward, rng: RngStates, scorer: Scorer
    ) -> Iterator[tuple[int, State | None, Read]]:
        """Windows in the order in which they are differentiated: number, state at the beginning, reading."""
        recurrence = self.model.recurrence if self.model.carries_state else None
        if recurrence is not None and recurrence.stops_gradients:
            yield from self._separate_readings(batch, range(len(batch.starts)), step, rng)
            return
        if recurrence is None and scorer.is_separate:
            # From the last to the first, as recomputed windows are: the same sums to the last bit. With dropout from
            # the first, so that the windows draw the same numbers.
            windows = range(len(batch.starts))
            yield from self._separate_readings(batch, windows if rng.has_dropout else windows[::-1], step, rng)
            return
        entries, readings = self._read_for_states(batch, step, rng, scorer)
        for window in reversed(range(len(entries))):
            entry, reading = entries.pop(), readings.pop(window, None)
            if reading is None:
                with rng.again(window):
                    reading = self._read(batch, window, entry, step)
            yield window, entry, reading
            del reading

    def _separate_readings(
        self, batch: WindowBatch, windows: Sequence[int], step: FusedBackward, rng: RngStates
    ) -> Iterator[tuple[int, State | None, Read]]:
        """Without gradients from later windows, each window is differentiated when it is read; none is recomputed."""
        left: State | None = None
        for window in windows:
            with rng.first(window):
                top_NK, left = self._read(batch, window, self._entry(batch, window, left), step)
            yield window, None, (top_NK, None)
            del top_NK

    def _read_for_states(
        self, batch: WindowBatch, step: FusedBackward, rng: RngStates, scorer: Scorer
    ) -> tuple[list[State | None], dict[int, Read]]:
        """The state that each window begins with, and the readings that keep their activations."""
        windows = len(batch.starts)
        entries: list[State | None] = []
        readings: dict[int, Read] = {}
        left: State | None = None
        for window in range(windows):
            entries.append(self._entry(batch, window, left))
            kept = window >= windows - self.plan.kept_windows
            with torch.set_grad_enabled(kept), rng.first(window):
                reading = self._read(batch, window, entries[-1], step)
            left = reading[1]
            scorer.see(window, reading[0])
            if kept:
                readings[window] = reading
        return entries, readings

    def _entry(self, batch: WindowBatch, window: int, left: State | None) -> State | None:
        """The state that a window begins with; None where it has none."""
        recurrence = self.model.recurrence if self.model.carries_state else None
        if recurrence is None or (batch.starts[window] == "all" and not self.uniform):
            return None
        if left is None:
            return recurrence.empty(batch.inputs_WBT.shape[1])
        return tuple(one.detach() for one in left)

    def _read(self, batch: WindowBatch, window: int, entry: State | None, step: FusedBackward) -> Read:
        with self._around_read():
            return self._read_window(batch, window, entry, step)

    def _read_window(self, batch: WindowBatch, window: int, entry: State | None, step: FusedBackward) -> Read:
        if entry is not None and torch.is_grad_enabled():
            for one in entry:
                if one.is_floating_point():  # bytes of quantised numbers have no gradient
                    one.requires_grad_()  # the leaves of this window's graph
            entry = tuple(one.view_as(one) for one in entry)  # torch counts no FLOPs of modules on leaves
        masked = entry is not None and (self.uniform or batch.starts[window] == "some")
        fresh_B = batch.fresh_WB[window] if masked else None
        leave_state = self.uniform or window < len(batch.starts) - 1
        reading = self.model.read(batch.inputs_WBT[window], entry, fresh_B, leave_state=leave_state, ops=step)
        return reading.top_BTK.flatten(0, 1), reading.state


def _differentiate(
    grad_outputs: list[tuple[torch.Tensor, torch.Tensor | None]],
    anchor: torch.Tensor,
    entry: State,
    trained: Sequence[nn.Parameter],
) -> tuple[Gradients, Gradients]:
    """Differentiate a window: gradients with respect to the state that it began with, and to trained parameters.

    With a frozen body a window without a state may have no graph at all.
    """
    known = [(output, gradient) for output, gradient in grad_outputs if output.requires_grad and gradient is not None]
    inputs = anchor, *entry, *trained
    wanted = [one for one in inputs if one.requires_grad]
    found: Gradients = [None] * len(wanted)
    if known:
        outputs, gradients = zip(*known, strict=True)
        found = list(torch.autograd.grad(outputs, wanted, gradients, allow_unused=True))
    of_wanted = iter(found)
    _, *behind_anchor = (next(of_wanted) if one.requires_grad else None for one in inputs)
    return behind_anchor[: len(entry)], behind_anchor[len(entry) :]


def _add(gradients: Sequence[torch.Tensor], found: Sequence[torch.Tensor | None]) -> None:
    """Accumulate gradients; a window without a state has none for the recurrence."""
    pairs = [(total, one) for total, one in zip(gradients, found, strict=True) if one is not None]
    if pairs:
        torch._foreach_add_([total for total, _ in pairs], [one for _, one in pairs])
