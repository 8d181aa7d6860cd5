"""Expected hypervolume gains of further trials, given the trials before them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from recur_tune.search.propose.acquisition import expected_hypervolume_improvement
from recur_tune.search.propose.candidates import Candidate
from recur_tune.search.propose.features import NEW, Features, LazyRows, rows_at
from recur_tune.search.propose.observations import Fields, ObservedTrial

if TYPE_CHECKING:
    from recur_tune.search.propose.earlier_searches import LeaningKernel
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
        kernel: FittedKernel | LeaningKernel,
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
        self._ends: dict[Candidate, tuple[float, float]] = {}  # mean and standard deviation of log quality at the end
        self._known: dict[tuple[Candidate, tuple[float, ...]], float] = {}  # at these costs

    def best_of(self, pool: Sequence[Candidate]) -> tuple[Candidate, float]:
        """The candidate with the largest gain, and its gain. One with exact costs is preferred where it gains nearly as
        much, since to simulate a step takes longer than all the rest."""
        gains = self._gains_of(pool)
        exact = np.array([one.exact for one in pool])
        best = int(np.argmax(np.where(exact, gains, _INEXACT * gains)))
        return pool[best], float(gains[best])

    def _gains_of(self, pool: Sequence[Candidate]) -> np.ndarray:
        """Candidates' gains. They are asked for again whenever a cost was made exact, and all but few are as they were:
        what was expected of a candidate is kept, and its gain as long as its costs are the same."""
        if unseen := [one for one in pool if one not in self._ends]:
            self._ends.update(zip(unseen, zip(*self.predict([one.fields for one in unseen]), strict=True), strict=True))
        costs = [tuple(one.costs[name] for name in self.costs) for one in pool]
        keys = list(zip(pool, costs, strict=True))
        if changed := [key for key in keys if key not in self._known]:
            mean, std = np.array([self._ends[one] for one, _ in changed]).T
            at = np.array([cost for _, cost in changed])
            gains = expected_hypervolume_improvement(mean, std, at, self.front, self.reference)
            self._known.update(zip(changed, gains, strict=True))
        return np.array([self._known[key] for key in keys])

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

    def validations(self, trials: Sequence[ObservedTrial]) -> tuple[LazyRows, np.ndarray]:
        """Rows for the process, one a validation, and their log qualities."""
        curves = [one.curve for one in trials]
        validations = np.array([*chain(*curves)], dtype=float).reshape(-1, 2)
        places = np.repeat(np.arange(len(trials)), [*map(len, curves)])
        numbers = np.array([one.number for one in trials], dtype=float)[places]
        fields = [one.fields for one in trials]
        rows = LazyRows(self.features, fields, places, validations[:, 0] / self.budget, numbers)
        return rows, np.log(validations[:, 1])


def _quality(trial: ObservedTrial, repeats: Sequence[ObservedTrial]) -> float:
    """A trial's quality at its end; where it was repeated, the mean of its further seeds, which has no selection
    bias."""
    ends = [math.log(one.curve[-1][1]) for one in repeats if one.repeats == trial.number]
    return math.exp(sum(ends) / len(ends)) if ends else trial.curve[-1][1]
