"""What further trials are expected to be worth, given what is known of those before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from recur_tune.modelling.features import NEW, rows_at
from recur_tune.modelling.improvement import expected_hypervolume_improvement
from recur_tune.modelling.scale import Scale
from recur_tune.modelling.seen import Fields, Seen

if TYPE_CHECKING:
    from recur_tune.modelling.known_costs import Candidate, KnownCosts

SMALL_CHANCE = 0.1  # of ending on the front: too small to be wanted
# Of log quality at full budget, before any is known: about a tenth better than the reference, give or take as much.
_BETTER, _SPREAD = -0.1, 0.1
_CASES = 16  # of how trials on their way may end together
_GUESSED = 0.9  # what the gain of a candidate counts for whose costs are guessed


class Outlook:
    """What further trials are expected to be worth. How trials that are on their way may end together is drawn from the
    process, and a gain is the mean over these cases: what several workers may find already is not looked for again."""

    def __init__(self, sampler: KnownCosts, trials: Sequence[Seen], reference: np.ndarray) -> None:
        self.sampler, self.reference = sampler, reference
        taught = [one for one in trials if one.curve]
        rows, values = self.validations(taught)
        self.process = sampler.curves.given(rows, values, Scale(math.log(reference[0]) + _BETTER, _SPREAD))
        again = [one for one in taught if one.complete and one.repeats is not None]
        front = [[_quality(one, again), *self._costs(one)] for one in taught if one.complete and one.repeats is None]
        pending = [one for one in trials if one.pending and one.repeats is None]
        if pending:
            ends = rows_at(sampler.features([one.fields for one in pending]), 1.0, [one.number for one in pending])
            drawn = self.process.draw(ends, _CASES)
            costs = [self._costs(one) for one in pending]
            self.fronts = [np.array([*front, *np.column_stack([np.exp(case), costs])]) for case in drawn.T]
            self.process = self.process.and_given(ends, drawn)
        else:
            self.fronts = [np.array(front).reshape(-1, 1 + len(sampler.costs))]

    def best_of(self, pool: Sequence[Candidate]) -> tuple[Candidate, float]:
        """The candidate with the largest gain, and that; one whose costs are exact wins where it gains nearly as much,
        since to simulate a step takes longer than all the rest."""
        gains = self.gains([one.fields for one in pool], self.sampler.matrix(pool))
        exact = np.array([one.exact for one in pool])
        best = int(np.argmax(np.where(exact, gains, _GUESSED * gains)))
        return pool[best], float(gains[best])

    def gains(self, trials: Sequence[Fields], costs: np.ndarray) -> np.ndarray:
        """Expected hypervolume improvement of trials that were not proposed yet."""
        return self._expected(*self.predict(trials), costs)

    def predict(self, trials: Sequence[Fields]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of new trials' log quality at full budget, in every case."""
        return self.process.predict(rows_at(self.sampler.features(trials), 1.0, NEW))

    def ends_of(self, trials: Sequence[Seen]) -> tuple[list[float], list[float]]:
        """Of trials that are on their way, if they are continued to their end: their gains, and their chances to beat
        everything that costs no more."""
        rows = rows_at(self.sampler.features([one.fields for one in trials]), 1.0, [one.number for one in trials])
        mean, std = self.process.predict(rows)
        costs = np.array([self._costs(one) for one in trials])
        return self._expected(mean, std, costs).tolist(), self._chances(mean, std, costs).tolist()

    def _expected(self, mean: np.ndarray, std: np.ndarray, costs: np.ndarray) -> np.ndarray:
        gains = [
            expected_hypervolume_improvement(middle, spread, costs, front, self.reference)
            for middle, spread, front in zip(*_by_case(mean, std), self.fronts, strict=True)
        ]
        return np.asarray(np.mean(gains, axis=0))

    def _chances(self, mean: np.ndarray, std: np.ndarray, costs: np.ndarray) -> np.ndarray:
        """Of trials to beat everything that costs no more."""
        chances = []
        for middle, spread, front in zip(*_by_case(mean, std), self.fronts, strict=True):
            no_dearer = (front[None, :, 1:] <= costs[:, None]).all(axis=2)
            best = np.where(no_dearer, front[None, :, 0], np.inf).min(axis=1, initial=np.inf)
            chances.append(ndtr((np.log(best) - middle) / np.maximum(spread, 1e-12)))
        return np.asarray(np.mean(chances, axis=0))

    def _costs(self, trial: Seen) -> list[float]:
        return [trial.costs[name] for name in self.sampler.costs]

    def validations(self, trials: Sequence[Seen]) -> tuple[np.ndarray, np.ndarray]:
        """What trials teach: rows for the process, and log qualities."""
        features = self.sampler.features([one.fields for one in trials])
        budget = self.sampler.spec.budget.tokens
        found = [
            (place, tokens / budget, one.number, quality)
            for place, one in enumerate(trials)
            for tokens, quality in one.curve
        ]
        if not found:
            return np.empty((0, features.shape[1] + 2)), np.empty(0)
        places, shares, numbers, qualities = map(np.array, zip(*found, strict=True))
        return rows_at(features[places], shares, numbers), np.log(qualities)


def _by_case(mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[trials] or [trials, cases] as [cases, trials]."""
    return np.atleast_2d(mean.T), np.atleast_2d(std.T)


def _quality(trial: Seen, again: Sequence[Seen]) -> float:
    """What a trial came to; where it was trained again, its further seeds' mean, since the number for which it was
    chosen to be would flatter it."""
    ends = [math.log(one.curve[-1][1]) for one in again if one.repeats == trial.number]
    return math.exp(sum(ends) / len(ends)) if ends else trial.curve[-1][1]
