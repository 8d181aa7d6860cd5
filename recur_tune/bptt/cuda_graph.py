"""A chain's losses and gradients as one CUDA graph.

A step of a small batch is thousands of kernels of a few microseconds each, and to launch them one by one takes longer
than to run them. Recorded once, the device runs them by itself.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import torch

from recur_tune.bptt.rng import RecordedDice
from recur_tune.data.batches import WindowBatch

if TYPE_CHECKING:
    from recur_tune.bptt.chain import Chain

_UNRECORDED = 2  # steps before the recording: compilers and libraries settle in them


class Recording:
    """Does what the chain does, from a recording as soon as there is one; a batch of another shape is done by hand."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.steps = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def differentiate(self, batch: WindowBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The loss and the gradients, which lie where the next call will write its own."""
        self.steps += 1
        if self.steps <= _UNRECORDED:
            return self._by_hand(batch)
        if self.graph is None:
            self._record(batch)
        assert self.graph is not None
        if batch.inputs_WBT.shape != self.batch.inputs_WBT.shape:
            return self._by_hand(batch)
        for own, given in ((self.batch.inputs_WBT, batch.inputs_WBT), (self.batch.targets_WBT, batch.targets_WBT),
                           (self.batch.fresh_WB, batch.fresh_WB)):  # fmt: skip
            own.copy_(given)
        self.graph.replay()
        return self.loss.clone(), self.gradients

    def _by_hand(self, batch: WindowBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """On a stream of its own, as CUDA wants it before a recording."""
        stream, current = side_stream(torch.cuda.current_device()), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = self.chain.differentiate_now(batch)
        current.wait_stream(stream)
        return result

    def _record(self, batch: WindowBatch) -> None:
        self.batch = replace(
            batch,
            inputs_WBT=batch.inputs_WBT.clone(),
            targets_WBT=batch.targets_WBT.clone(),
            fresh_WB=batch.fresh_WB.clone(),
        )
        gc.collect()  # an earlier chain's recording, if Python came to destroy it meanwhile, would spoil this one
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the recording has memory of its own, and what the steps before took is free again
        self.graph = torch.cuda.CUDAGraph()
        dice = RecordedDice(self.chain.model, len(batch.starts), self.graph)
        # What other threads of this process ask the device meanwhile spoils nothing.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.loss, self.gradients = self.chain.differentiate_now(self.batch, dice)


@cache
def side_stream(device: int) -> torch.cuda.Stream:
    """One for all recordings of a process: cuBLAS keeps a workspace for every stream that it has ever worked on."""
    return torch.cuda.Stream(device)
