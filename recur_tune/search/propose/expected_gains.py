"""What further trials are expected to be worth, given what is known of those before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from recur_tune.search.propose.acquisition import expected_hypervolume_improvement
from recur_tune.search.propose.candidates import Candidate
from recur_tune.search.propose.features import NEW, Features, rows_at
from recur_tune.search.propose.observations import Fields, ObservedTrial
from recur_tune.search.propose.scale import Standardization

if TYPE_CHECKING:
    from recur_tune.search.propose.gaussian_process import FittedKernel

# Of log quality at full budget, before any is known: about a tenth better than the reference, give or take as much.
_BETTER, _SPREAD = -0.1, 0.1
_GUESSED = 0.9  # what the gain of a candidate counts for whose costs are guessed


class ExpectedGains:
    """What further trials are expected to be worth. Trials that are on their way count as if they ended where they are
    expected to, so that parallel workers do not look for the same."""

    def __init__(
        self,
        features: Features,
        curves: FittedKernel,
        costs: Sequence[str],
        budget: int,
        trials: Sequence[ObservedTrial],
        reference: np.ndarray,
    ) -> None:
        self.features, self.costs, self.budget, self.reference = features, costs, budget, reference
        taught = [one for one in trials if one.curve]
        rows, values = self.validations(taught)
        self.process = curves.posterior(rows, values, Standardization(math.log(reference[0]) + _BETTER, _SPREAD))
        again = [one for one in taught if one.complete and one.repeats is not None]
        front = [[_quality(one, again), *self._costs(one)] for one in taught if one.complete and one.repeats is None]
        pending = [one for one in trials if one.pending and one.repeats is None]
        if pending:
            ends = rows_at(features([one.fields for one in pending]), 1.0, [one.number for one in pending])
            believed, _ = self.process.predict(ends)
            front += [[math.exp(end), *self._costs(one)] for one, end in zip(pending, believed, strict=True)]
            self.process = self.process.conditioned_on(ends, believed)
        self.front = np.array(front).reshape(-1, 1 + len(costs))

    def best_of(self, pool: Sequence[Candidate]) -> tuple[Candidate, float]:
        """The candidate with the largest gain, and that; one whose costs are exact wins where it gains nearly as much,
        since to simulate a step takes longer than all the rest."""
        gains = self.gains(
            [one.fields for one in pool], np.array([[one.costs[name] for name in self.costs] for one in pool])
        )
        exact = np.array([one.exact for one in pool])
        best = int(np.argmax(np.where(exact, gains, _GUESSED * gains)))
        return pool[best], float(gains[best])

    def gains(self, trials: Sequence[Fields], costs: np.ndarray) -> np.ndarray:
        """Expected hypervolume improvement of trials that were not proposed yet."""
        mean, std = self.predict(trials)
        return expected_hypervolume_improvement(mean, std, costs, self.front, self.reference)

    def predict(self, trials: Sequence[Fields]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of new trials' log quality at full budget."""
        return self.process.predict(rows_at(self.features(trials), 1.0, NEW))

    def ends_of(self, trials: Sequence[ObservedTrial]) -> tuple[list[float], list[float]]:
        """Of trials that are on their way, if they are continued to their end: their gains, and their chances to beat
        everything that costs no more."""
        rows = rows_at(self.features([one.fields for one in trials]), 1.0, [one.number for one in trials])
        mean, std = self.process.predict(rows)
        costs = np.array([self._costs(one) for one in trials])
        gains = expected_hypervolume_improvement(mean, std, costs, self.front, self.reference)
        no_dearer = (self.front[None, :, 1:] <= costs[:, None]).all(axis=2)
        best = np.where(no_dearer, self.front[None, :, 0], np.inf).min(axis=1, initial=np.inf)
        return gains.tolist(), ndtr((np.log(best) - mean) / np.maximum(std, 1e-12)).tolist()

    def _costs(self, trial: ObservedTrial) -> list[float]:
        return [trial.costs[name] for name in self.costs]

    def validations(self, trials: Sequence[ObservedTrial]) -> tuple[np.ndarray, np.ndarray]:
        """What trials teach: rows for the process, and log qualities."""
        features = self.features([one.fields for one in trials])
        found = [
            (place, tokens / self.budget, one.number, quality)
            for place, one in enumerate(trials)
            for tokens, quality in one.curve
        ]
        if not found:
            return np.empty((0, features.shape[1] + 2)), np.empty(0)
        places, shares, numbers, qualities = map(np.array, zip(*found, strict=True))
        return rows_at(features[places], shares, numbers), np.log(qualities)


def _quality(trial: ObservedTrial, again: Sequence[ObservedTrial]) -> float:
    """What a trial came to; where it was trained again, its further seeds' mean, since the number for which it was
    chosen to be would flatter it."""
    ends = [math.log(one.curve[-1][1]) for one in again if one.repeats == trial.number]
    return math.exp(sum(ends) / len(ends)) if ends else trial.curve[-1][1]
