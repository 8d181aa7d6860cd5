"""Verdicts: what one run costs more than another, against its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Cost:
    """Cost of a training step."""

    peak_memory: int  # bytes
    seconds_per_token: float


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


def verdicts(cost: Cost, against: Cost, more_memory: int, more_time: float) -> list[Verdict]:
    """Memory is compared by its difference, time per token by its ratio."""
    return [
        Verdict("memory", cost.peak_memory - against.peak_memory, more_memory),
        Verdict("time", cost.seconds_per_token / against.seconds_per_token - 1, more_time),
    ]
