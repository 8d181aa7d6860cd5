"""RNG states of a chain's windows, so that dropout disturbs a window which is run again as it did the first time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recur_tune.models import Windowed

_SEEDS = 2**62


class RngStates:
    """Remembers the RNG state before each window and goes back to it."""

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
        """While it is run again; afterwards chance goes on where it was."""
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
    """The same inside a CUDA graph, where no state can be read or set: every window has two generators that begin alike
    and, since each replay draws as many numbers from both, stay alike."""

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
        """While it is run again."""
        with self._from(self._agains[window] if self.has_dropout else None):
            yield

    @contextmanager
    def _from(self, generator: torch.Generator | None) -> Iterator[None]:
        """Numbers come from this generator, where there is one."""
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
