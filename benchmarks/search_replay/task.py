"""A task: a space whose trials are all known, with their validations and costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np

from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.front import non_dominated
from recur_tune.search.record.spec import SearchSpec

History = list[tuple[int, float]]  # tokens and quality at every validation, the whole budget last
Verdict = Literal["go on", "stop", "pause"]  # of a trial at a validation
COSTS = ("flops_per_token", "peak_memory")


class Task(ABC):
    """Three objectives, the quality first; the two costs are known before a trial runs."""

    name: str
    quality: str
    search: dict[str, Any]  # `space` and `budget` as a search has them
    longest: int  # tokens of a trial that is not stopped
    reference: list[float]  # the worst that counts
    front: np.ndarray  # the true one, or the best that is known of it
    tolerance: float  # by which a finished trial may be worse than a point of the front, and it counts as found

    @abstractmethod
    def history(self, config: TrialConfig) -> History:
        """A trial's validations."""

    @abstractmethod
    def costs(self, config: TrialConfig) -> tuple[float, float]:
        """FLOPs for a token, and bytes."""

    def values(self, config: TrialConfig) -> tuple[float, float, float]:
        """All objectives at the full budget."""
        return (self.history(config)[-1][1], *self.costs(config))

    @property
    def objectives(self) -> tuple[str, ...]:
        """Their names as a search has them."""
        return (self.quality, *COSTS)

    def spec(self, sampler: str = "random", seed: int = 0) -> SearchSpec:
        """The search that all methods run."""
        budget = {**self.search["budget"], "trials": 10_000}
        return parse(
            SearchSpec,
            {"space": self.search["space"], "objectives": self.objectives, "budget": budget,
             "sampler": {"name": sampler, "seed": seed}},
        )  # fmt: skip


def cheap_third(front: np.ndarray) -> np.ndarray:
    """The third of a front that costs the fewest FLOPs."""
    return front[np.argsort(front[:, 1], kind="stable")[: -(-len(front) // 3)]]


def best_of(values: np.ndarray) -> np.ndarray:
    """The distinct rows that no other dominates."""
    return np.unique(values[non_dominated(values)], axis=0)
