"""Successive halving over several objectives: who goes on at a rung, decided from what the others had there.

Costs are known exactly before a trial runs, so the only question at a rung is quality. A trial is pruned only by
peers that are better at no more cost: a cheap configuration is never measured against an expensive one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import moocore
import numpy as np

from recur_tune.searching.objectives import SAME_COST


class Rungs:
    """The tables of what every trial had when it reached each rung, in tokens.

    `costs` says which values are costs: they are compared in steps of `SAME_COST`, because a configuration that is a
    thousandth cheaper than all others would otherwise be out of everybody's reach.
    """

    def __init__(self, tokens: Sequence[int], reduction: float, costs: Sequence[bool] = ()) -> None:
        self.tokens, self.reduction, self.costs = sorted(tokens), reduction, costs
        self.tables: dict[int, dict[int, list[float]]] = {rung: {} for rung in self.tokens}

    def reach(self, trial: int, tokens: int, values: Sequence[float]) -> bool:
        """Note what a trial has after so many tokens, and say whether it goes on.

        The decision falls once per rung; the last rung is the full budget, where nothing is left to stop.
        """
        new = [rung for rung in self.tokens if rung <= tokens and trial not in self.tables[rung]]
        for rung in new:
            self.tables[rung][trial] = self._comparable(values)
        if not new or new[-1] == self.tokens[-1]:
            return True
        return self._survives(trial, self.tables[new[-1]])

    def _comparable(self, values: Sequence[float]) -> list[float]:
        is_cost = [*self.costs, *[False] * (len(values) - len(self.costs))]
        steps = math.log1p(SAME_COST)
        return [round(math.log(value) / steps) if cost else value for value, cost in zip(values, is_cost, strict=True)]

    def _survives(self, trial: int, table: dict[int, list[float]]) -> bool:
        trials = list(table)
        order = best_first(np.array([table[one] for one in trials], dtype=float))
        place = [trials[index] for index in order].index(trial)
        if place < max(1, math.ceil(len(trials) / self.reduction)):
            return True
        return not any(_dominates(table[peer], table[trial]) for peer in trials)


def best_first(values: np.ndarray) -> list[int]:
    """The rows in order: by non-dominated sorting, and within a front the lonelier first, so that it stays spread."""
    ranks = np.asarray(moocore.pareto_rank(values))
    spread = np.zeros(len(values))
    for rank in np.unique(ranks):
        members = np.flatnonzero(ranks == rank)
        spread[members] = crowding_distance(values[members])
    return sorted(range(len(values)), key=lambda row: (ranks[row], -spread[row], row))


def crowding_distance(values: np.ndarray) -> np.ndarray:
    """How far a row's neighbours are from each other, summed over objectives; infinite at the ends."""
    distance = np.zeros(len(values))
    for column in values.T:
        order = np.argsort(column, kind="stable")
        width = column[order[-1]] - column[order[0]]
        if width == 0:
            continue
        distance[order[[0, -1]]] = np.inf
        distance[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / width
    return distance


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and list(one) != list(other)
