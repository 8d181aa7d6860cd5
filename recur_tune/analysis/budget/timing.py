"""Time per token of two trainings on one device, in alternating steps, so that drift affects both equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from recur_tune.training.loop import Report


def alternate(
    one: Iterator[Report],
    other: Iterator[Report],
    rounds: int,
    device: torch.device,
    progress: Callable[[int], None] = lambda rounds: None,
) -> tuple[list[float], list[float]]:
    """Seconds per token of every step. The order changes each round, so that a device that warms up favours neither."""
    times: tuple[list[float], list[float]] = ([], [])
    trainings = [_seconds_per_token(steps, device) for steps in (one, other)]
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            times[which].append(next(trainings[which]))
        progress(number + 1)
    return times


def _seconds_per_token(steps: Iterator[Report], device: torch.device) -> Iterator[float]:
    before = next(steps).tokens  # not timed: the start of the count
    while True:
        _wait(device)
        started = time.perf_counter()
        report = next(steps)
        _wait(device)
        yield (time.perf_counter() - started) / (report.tokens - before)
        before = report.tokens


def _wait(device: torch.device) -> None:
    """Wait for queued kernels, which must not count for the other training."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
