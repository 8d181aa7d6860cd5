"""Early stopping over several objectives: a trial is pruned at a rung when its chance of ending on the front is small.

Costs are known before a trial runs, so it ends on the front if its quality beats that of every trial that costs no
more. How far qualities still fall from a rung to the end is estimated from the search's finished trials: a Student t
distribution with their mean and spread, which is wide while they are few. So a mechanism that starts equal to the plain
model, at slightly more cost, has an even chance and continues. A trial that no finished one matches on every cost has
nothing to beat and always continues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr

from recur_tune.search.propose.candidates import SMALL_CHANCE


class Rungs:
    """By rung, in tokens, each trial's objectives when it reached the rung; `costs` says which objectives are costs."""

    def __init__(self, tokens: Sequence[int], costs: Sequence[bool]) -> None:
        self.tokens = sorted(tokens)
        self.costs, self.qualities = np.flatnonzero(costs), np.flatnonzero(~np.array(costs))
        self.tables: dict[int, dict[int, np.ndarray]] = {rung: {} for rung in self.tokens}

    def note(self, trial: int, tokens: int, values: Sequence[float]) -> int | None:
        """Note a trial's objectives after so many tokens; gives the rung at which to decide on it, or None.

        There is one decision per rung, and none at the last, which is the full budget.
        """
        new = [rung for rung in self.tokens if rung <= tokens and trial not in self.tables[rung]]
        for rung in new:
            self.tables[rung][trial] = np.array(values, dtype=float)
        return new[-1] if new and new[-1] != self.tokens[-1] else None

    def reach(self, trial: int, tokens: int, values: Sequence[float]) -> bool:
        """The same; says whether the trial continues."""
        rung = self.note(trial, tokens, values)
        return rung is None or self.chance(trial, rung) >= SMALL_CHANCE

    def chance(self, trial: int, rung: int) -> float:
        """The probability that a trial ends better, in some quality, than each that ended at no more cost.

        Its quality may fall as finished trials' did on average, or as that of the trial to beat; the better of both
        counts. A mechanism that starts equal to the plain model follows its curve, however far that fell.
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
    """The chance of ending no worse, when it is expected to end so far `ahead`; without a spread it is 0 or 1."""
    certain = np.where(ahead >= -1e-9, 1.0, 0.0)  # NaN counts as behind
    sure = np.where(spread > 1e-12, spread, 1.0)
    return np.where(spread > 1e-12, np.nan_to_num(stdtr(curves - 1, ahead / sure)), certain)
