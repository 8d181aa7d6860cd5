"""A verdict per limit: what one run costs more than another, and what it may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Cost:
    """What a training step takes."""

    peak_memory: int  # bytes
    seconds_per_token: float


@dataclass(frozen=True)
class Verdict:
    """One limit: kept where no more is spent than is allowed."""

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
