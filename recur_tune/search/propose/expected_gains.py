"""Expected hypervolume gains of further trials, given the trials before them."""

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

if TYPE_CHECKING:
    from recur_tune.search.propose.gaussian_process import FittedKernel

# The prior of log quality at full budget: a tenth better than the reference, with a standard deviation of a tenth.
_PRIOR_MEAN, _PRIOR_STD = -0.1, 0.1
_INEXACT = 0.9  # factor on the gain of a candidate whose costs are predicted


class ExpectedGains:
    """The acquisition function (`acquisition.py`) of further trials. Pending trials count as if they had ended at their
    predicted mean, so that parallel workers do not train similar trials."""

    def __init__(
        self,
        features: Features,
        kernel: FittedKernel,
        costs: Sequence[str],
        budget: int,
        trials: Sequence[ObservedTrial],
        reference: np.ndarray,
    ) -> None:
        self.features, self.costs, self.budget, self.reference = features, costs, budget, reference
        observed = [one for one in trials if one.curve]
        rows, values = self.validations(observed)
        self.process = kernel.posterior(rows, values, (math.log(reference[0]) + _PRIOR_MEAN, _PRIOR_STD))
        repeats = [one for one in observed if one.complete and one.repeats is not None]
        ended = [one for one in observed if one.complete and one.repeats is None]
        front = [[_quality(one, repeats), *self._costs(one)] for one in ended]
        pending = [one for one in trials if one.pending and one.repeats is None]
        if pending:
            ends = rows_at(features([one.fields for one in pending]), 1.0, [one.number for one in pending])
            means, _ = self.process.predict(ends)
            front += [[math.exp(end), *self._costs(one)] for one, end in zip(pending, means, strict=True)]
            self.process = self.process.conditioned_on(ends, means)
        self.front = np.array(front).reshape(-1, 1 + len(costs))

    def best_of(self, pool: Sequence[Candidate]) -> tuple[Candidate, float]:
        """The candidate with the largest gain, and its gain. One with exact costs is preferred where it gains nearly as
        much, since to simulate a step takes longer than all the rest."""
        gains = self.gains(
            [one.fields for one in pool], np.array([[one.costs[name] for name in self.costs] for one in pool])
        )
        exact = np.array([one.exact for one in pool])
        best = int(np.argmax(np.where(exact, gains, _INEXACT * gains)))
        return pool[best], float(gains[best])

    def gains(self, trials: Sequence[Fields], costs: np.ndarray) -> np.ndarray:
        """Expected hypervolume improvements of new trials."""
        mean, std = self.predict(trials)
        return expected_hypervolume_improvement(mean, std, costs, self.front, self.reference)

    def predict(self, trials: Sequence[Fields]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of new trials' log quality at full budget."""
        return self.process.predict(rows_at(self.features(trials), 1.0, NEW))

    def ends_of(self, trials: Sequence[ObservedTrial]) -> tuple[list[float], list[float]]:
        """The gains of unfinished trials if they are trained to their end, and their chances of ending on the front: of
        beating every trial that costs no more."""
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
        """Rows for the process, one a validation, and their log qualities."""
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


def _quality(trial: ObservedTrial, repeats: Sequence[ObservedTrial]) -> float:
    """A trial's quality at its end; where it was repeated, the mean of its further seeds, which has no selection
    bias."""
    ends = [math.log(one.curve[-1][1]) for one in repeats if one.repeats == trial.number]
    return math.exp(sum(ends) / len(ends)) if ends else trial.curve[-1][1]
