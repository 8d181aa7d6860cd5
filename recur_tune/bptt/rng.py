"""RNG states of a chain's windows, so that a recomputed window has the same dropout as the first time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recur_tune.models import Windowed

_SEEDS = 2**62


class RngStates:
    """Saves the RNG state before each window and restores it when the window is recomputed."""

    def __init__(self, model: Windowed) -> None:
        self.has_dropout = model.training and model.body.has_dropout
        self.devices = [device] if (device := next(model.parameters()).device).type == "cuda" else []
        self._before: dict[int, tuple[torch.Tensor, ...]] = {}

    @contextmanager
    def first(self, window: int) -> Iterator[None]:
        """While a window is run for the first time."""
        if self.has_dropout:
            self._before[window] = (torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices))
        yield

    @contextmanager
    def again(self, window: int) -> Iterator[None]:
        """While it is recomputed; afterwards the RNG continues where it was."""
        if not self.has_dropout:
            yield
            return
        with torch.random.fork_rng(self.devices):
            on_cpu, *on_devices = self._before.pop(window)
            torch.set_rng_state(on_cpu)
            for state, device in zip(on_devices, self.devices, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


class GraphRngStates(RngStates):
    """The same inside a CUDA graph, where states can be neither read nor set. Every window has two generators with one
    seed. Each replay draws equally many numbers from both, so they stay in step."""

    def __init__(self, model: Windowed, windows: int, graph: torch.cuda.CUDAGraph) -> None:
        super().__init__(model)
        if not self.has_dropout:
            return
        [self._device] = self.devices
        seeds = torch.randint(_SEEDS, (windows,)).tolist()
        self._firsts, self._agains = (
            [torch.Generator(self._device).manual_seed(seed) for seed in seeds] for _ in range(2)
        )
        for generator in (*self._firsts, *self._agains):
            graph.register_generator_state(generator)

    @contextmanager
    def first(self, window: int) -> Iterator[None]:
        """While a window is run for the first time."""
        with self._from(self._firsts[window] if self.has_dropout else None):
            yield

    @contextmanager
    def again(self, window: int) -> Iterator[None]:
        """While it is recomputed."""
        with self._from(self._agains[window] if self.has_dropout else None):
            yield

    @contextmanager
    def _from(self, generator: torch.Generator | None) -> Iterator[None]:
        """Draw from this generator, where there is one."""
        if generator is None:
            yield
            return
        usual = torch.cuda.default_generators[self._device.index or 0]
        before = usual.graphsafe_get_state()
        usual.graphsafe_set_state(generator)
        try:
            yield
        finally:
            usual.graphsafe_set_state(before)
