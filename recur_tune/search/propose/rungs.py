"""Early stopping over several objectives: a trial is pruned at a rung when its chance of ending on the front is small.

Costs are known exactly before a trial runs, so it ends on the front if its quality beats that of everything that costs
no more. How far qualities still fall from a rung to the end is learned from this search's own finished trials: their
mean and their spread make a Student t distribution, which is wide while there are few of them. So a mechanism that
starts equal to the plain model, at slightly more cost, has an even chance and goes on; what is cheaper than all that
have ended, by whichever cost, has nothing to beat and always does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr

from recur_tune.search.propose.candidates import SMALL_CHANCE


class Rungs:
    """The tables of what every trial had when it reached each rung, in tokens; `costs` says which values are costs."""

    def __init__(self, tokens: Sequence[int], costs: Sequence[bool]) -> None:
        self.tokens = sorted(tokens)
        self.costs, self.qualities = np.flatnonzero(costs), np.flatnonzero(~np.array(costs))
        self.tables: dict[int, dict[int, np.ndarray]] = {rung: {} for rung in self.tokens}

    def note(self, trial: int, tokens: int, values: Sequence[float]) -> int | None:
        """Note what a trial has after so many tokens; gives the rung at which there is something to decide.

        The decision falls once per rung; the last rung is the full budget, where nothing is left to stop.
        """
        new = [rung for rung in self.tokens if rung <= tokens and trial not in self.tables[rung]]
        for rung in new:
            self.tables[rung][trial] = np.array(values, dtype=float)
        return new[-1] if new and new[-1] != self.tokens[-1] else None

    def reach(self, trial: int, tokens: int, values: Sequence[float]) -> bool:
        """The same; says whether the trial goes on."""
        rung = self.note(trial, tokens, values)
        return rung is None or self.chance(trial, rung) >= SMALL_CHANCE

    def chance(self, trial: int, rung: int) -> float:
        """The probability that a trial ends better, in some quality, than each that ended at no more cost.

        It may fall as finished trials do on average, or as the very one that it has to beat: the better of both
        counts, since a mechanism that starts closed follows the plain model's curve, however far that fell.
        """
        values, ends, starts = self.tables[rung][trial], self.tables[self.tokens[-1]], self.tables[rung]
        curves = [number for number in ends if number in starts]
        peers = [number for number in curves if (ends[number][self.costs] <= values[self.costs]).all()]
        if not peers or len(curves) < 2:
            return 1.0
        start, end = (np.log([table[number][self.qualities] for number in curves]) for table in (starts, ends))
        falls = end - start
        spread = falls.std(axis=0, ddof=1)
        beaten = np.isin(curves, peers)
        now = np.log(values[self.qualities])
        by_average = _chance(
            end[beaten] - now - falls.mean(axis=0), spread * math.sqrt(1 + 1 / len(curves)), len(curves)
        )
        alike = _chance(start[beaten] - now, spread * math.sqrt(2), len(curves))
        return float(np.maximum(by_average, alike).max(axis=1).min())


def _chance(ahead: np.ndarray, spread: np.ndarray, curves: int) -> np.ndarray:
    """Of ending better by nought or more, when that much is expected; curves that are all alike leave nothing open."""
    certain = np.where(ahead >= -1e-9, 1.0, 0.0)  # a value that is no number is behind
    sure = np.where(spread > 1e-12, spread, 1.0)
    return np.where(spread > 1e-12, np.nan_to_num(stdtr(curves - 1, ahead / sure)), certain)
