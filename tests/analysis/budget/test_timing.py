"""Steps alternate, and a step's time is divided by its own tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from recur_tune.analysis.budget import measurement
from recur_tune.analysis.budget.measurement import alternate
from recur_tune.training.loop import Report


class Clock:
    """A time that passes when a step is made."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, ""

    def perf_counter(self) -> float:
        return self.now

    def training(self, name: str, seconds: list[float], tokens: list[int]) -> Iterator[Report]:
        done = 0
        for took, read in zip(seconds, tokens, strict=True):
            self.now, self.order, done = self.now + took, self.order + name, done + read
            yield Report(1, done, 0.0, 0.0, 0.0, 0.0)


def test_rounds_alternate_and_every_step_counts_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(measurement, "time", clock)
    one = clock.training("a", [50, 2, 3, 4], [10, 10, 10, 20])  # the first step is not timed
    other = clock.training("b", [70, 1, 1, 6], [10, 10, 20, 10])
    rounds: list[int] = []
    times = alternate(one, other, 3, torch.device("cpu"), rounds.append)
    assert times == ([0.2, 0.3, 0.2], [0.1, 0.05, 0.6])
    assert clock.order == "aa" + "bb" + "b" + "a" + "a" + "b" and rounds == [1, 2, 3]
