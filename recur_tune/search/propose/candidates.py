"""Candidates for the next trial: new points of the space, and paused trials to resume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SMALL_CHANCE = 0.1  # of ending on the front: a trial with less is not trained further


@dataclass(frozen=True)
class NewTrial:
    """A new point in the sampler's own names, and its expected hypervolume gain; None before anything is known."""

    point: dict[str, Any]
    gain: float | None = None


@dataclass(frozen=True)
class ResumeCandidate:
    """A paused trial that may be resumed: its expected hypervolume gain, in all (`gain`) and per remaining token
    (`rate`), and its chance of ending on the front."""

    trial: int
    gain: float
    rate: float
    chance: float

    @property
    def may_reach_front(self) -> bool:
        """Whether its chance of ending on the front is not small."""
        return self.chance >= SMALL_CHANCE


@dataclass(eq=False)
class Candidate:
    """A new trial that may be chosen. Unless its costs are exact, some of them are predicted."""

    point: dict[str, Any]
    fields: dict[str, Any]
    costs: dict[str, float]
    exact: bool
