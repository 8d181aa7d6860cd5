"""Candidates for the next trial: new points of the space, and paused trials to resume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SMALL_CHANCE = 0.1  # of ending on the front: too small to be may_reach_front


@dataclass(frozen=True)
class NewTrial:
    """A point in the sampler's own names, and what it is expected to add to the hypervolume; None where nobody knows
    yet."""

    point: dict[str, Any]
    gain: float | None = None


@dataclass(frozen=True)
class ResumeCandidate:
    """A paused trial to continue: what that is expected to add, all in all and for each token that is left, and its
    chance of ending on the front."""

    trial: int
    gain: float
    rate: float
    chance: float

    @property
    def may_reach_front(self) -> bool:
        """Whether it might still end on the front."""
        return self.chance >= SMALL_CHANCE


@dataclass(eq=False)
class Candidate:
    """A trial that may be chosen; of its costs some are guessed unless they are exact."""

    point: dict[str, Any]
    fields: dict[str, Any]
    costs: dict[str, float]
    exact: bool
