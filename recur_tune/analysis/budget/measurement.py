"""Measurement of two runs on this device: memory, time per token and quality, and a verdict for each limit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from recur_tune.analysis.budget.training_probe import TrainingProbe, probe_training
from recur_tune.ops.device import default_device, device_name
from recur_tune.ops.out_of_memory import out_of_memory_as_user_error
from recur_tune.training.loop import Report

# Fields that both should share, so that the difference is the state's.
_ALIKE = (
    "window", "overlap", "bptt_windows", "batch", "trainable", "base_bits", "dropout", "checkpointing", "memory_budget",
    "precision", "cuda_graph", "fused_kernels",
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Cost of a training step."""

    peak_memory: int  # bytes
    seconds_per_token: float


@dataclass(frozen=True)
class Measured:
    """A run's costs, and its quality beside them."""

    run: Path
    recurrence: str
    cost: Cost  # medians
    recorded_memory: int | None
    quality: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "run": str(self.run), "recurrence": self.recurrence, "peak_memory": self.cost.peak_memory,
            "recorded_peak_memory": self.recorded_memory, "seconds_per_token": self.cost.seconds_per_token,
            **self.quality,
        }  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """Both runs, and remarks on what limits the comparison."""

    device: str
    one: Measured
    other: Measured
    remarks: list[str]


@dataclass(frozen=True)
class Verdict:
    """One limit, and what is spent of it."""

    limit: Literal["memory", "time"]
    more: float  # memory in bytes, time as a share
    allowed: float

    @property
    def kept(self) -> bool:
        """Whether the limit holds."""
        return self.more <= self.allowed


def measure(
    runs: tuple[Path, Path],
    corpora: tuple[str, str],
    rounds: int,
    score: Callable[[Path, int], None] = lambda run, tokens: None,
    progress: Callable[[int], None] = lambda rounds: None,
) -> Measurement:
    """Measure the memory of each, then time per token in alternating steps, and quality on the validation split.

    Args:
        runs: The run, and the one that it is measured against.
        corpora: What each is scored and trained on.
        rounds: Timed steps of each.
        score: Called with the tokens of a run's validation split scored so far.
        progress: Called with the rounds done so far.
    """
    device = default_device()
    too_large = (
        f"run: {runs[0]} and {runs[1]} do not fit into the device's memory side by side with the batches that they "
        "were trained with; measure on a larger device."
    )
    with out_of_memory_as_user_error(too_large):
        one, other = (
            probe_training(run, corpus, device, lambda tokens, run=run: score(run, tokens))  # type: ignore[misc]
            for run, corpus in zip(runs, corpora, strict=True)
        )
        times = alternate(one.steps, other.steps, rounds, device, progress)
    return Measurement(
        device_name(device), _measured(one, times[0]), _measured(other, times[1]), _remarks(one, other, corpora)
    )


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


def verdicts(cost: Cost, against: Cost, more_memory: int, more_time: float) -> list[Verdict]:
    """Memory is compared by its difference, time per token by its ratio."""
    return [
        Verdict("memory", cost.peak_memory - against.peak_memory, more_memory),
        Verdict("time", cost.seconds_per_token / against.seconds_per_token - 1, more_time),
    ]


def _measured(probe: TrainingProbe, times: list[float]) -> Measured:
    metrics = probe.evaluation.metrics()
    quality = {name: metrics[name] for name in ("accuracy", "perplexity", "token_perplexity", "bits_per_byte")}
    cost = Cost(probe.peak_memory, statistics.median(times))
    return Measured(probe.run, probe.config.recurrence, cost, probe.recorded_memory, quality)


def _remarks(one: TrainingProbe, other: TrainingProbe, corpora: tuple[str, str]) -> list[str]:
    fields = [(name, getattr(one.config, name), getattr(other.config, name)) for name in _ALIKE]
    unlike = [f"{name} ({mine} and {theirs})" for name, mine, theirs in fields if mine != theirs]
    remarks = []
    if unlike:
        remarks.append(f"the runs differ in more than the state, and costs in that too: {', '.join(unlike)}.")
    if one.config.mechanism is None:
        remarks.append(f"{one.run} passes no state on; name the recurrent run first and the plain one by --against.")
    if one.tokenizer != other.tokenizer:
        remarks.append("the runs have several tokenizers: compare bits per byte, not accuracy or time per token.")
    if corpora[0] != corpora[1]:
        remarks.append(
            f"the runs were scored on several corpora ({' and '.join(corpora)}); --corpus gives one to both."
        )
    return remarks
