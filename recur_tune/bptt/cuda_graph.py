"""CUDA graph of a chain's loss and gradients (field `cuda_graph`): captured once, then replayed.

A step of a small batch is thousands of kernels of a few microseconds each. Launching them one by one takes longer than
running them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache

import torch

from recur_tune.bptt.rng import GraphRngStates, RngStates
from recur_tune.bptt.step_gradients import StepGradients
from recur_tune.data.batches import WindowBatch
from recur_tune.models import Windowed

# The loss and the gradients of a batch, with these RNG states or new ones.
Differentiate = Callable[[WindowBatch, RngStates | None], StepGradients]

_EAGER = 2  # warm-up steps before the capture, in which kernels are compiled and libraries initialised


class CudaGraphStep:
    """Runs `differentiate` by replaying a CUDA graph, as soon as one is captured; batches of another shape run without
    it."""

    def __init__(self, model: Windowed, differentiate: Differentiate) -> None:
        self.model, self._differentiate = model, differentiate
        self.steps = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def differentiate(self, batch: WindowBatch) -> StepGradients:
        """The loss and the gradients; the next call overwrites them."""
        self.steps += 1
        if self.steps <= _EAGER:
            return self._eager(batch)
        if self.graph is None:
            self._capture(batch)
        assert self.graph is not None
        if batch.inputs_WBT.shape != self.batch.inputs_WBT.shape:
            return self._eager(batch)
        for own, given in zip(self.batch.tensors, batch.tensors, strict=True):
            own.copy_(given)
        self.graph.replay()
        return self.found

    def _eager(self, batch: WindowBatch) -> StepGradients:
        """Without a graph, on a side stream, as CUDA requires before a capture."""
        stream, current = side_stream(torch.cuda.current_device()), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            found = self._differentiate(batch, None)
        current.wait_stream(stream)
        return found

    def _capture(self, batch: WindowBatch) -> None:
        self.batch = batch.copy()
        gc.collect()  # destroying an earlier graph during the capture would make it fail
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the graph has its own memory pool, and that of the warm-up steps is free again
        self.graph = torch.cuda.CUDAGraph()
        rng = GraphRngStates(self.model, len(batch.starts), self.graph)
        # Other threads of this process may use the device during the capture.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.found = self._differentiate(self.batch, rng)


@cache
def side_stream(device: int) -> torch.cuda.Stream:
    """One for all captures of a process: cuBLAS keeps a workspace for every stream that it has ever worked on."""
    return torch.cuda.Stream(device)
