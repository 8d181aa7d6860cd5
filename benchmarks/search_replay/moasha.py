"""MO-ASHA: asynchronous successive halving over several objectives, as published and with its ranks mended.

A trial continues at a rung when its rank among the trials there is in the best 1/reduction. Ranks come from
non-dominated sorting and, within a front, from an order in which each is farthest from those before it. Syne Tune 0.16
takes the sorted indices for ranks, and within a front the ranks for indices: that is the rule as published.
"""

from __future__ import annotations

from collections.abc import Sequence

import moocore
import numpy as np


class MOASHA:
    """The rule for stopping; it proposes nothing."""

    def __init__(self, rungs: Sequence[int], reduction: float, mended: bool) -> None:
        self.reduction, self.mended = reduction, mended
        self.tables: dict[int, dict[int, list[float]]] = {rung: {} for rung in sorted(rungs, reverse=True)}

    def should_continue(self, trial: int, tokens: int, values: list[float]) -> bool:
        rung = next((rung for rung, table in self.tables.items() if rung <= tokens and trial not in table), None)
        if rung is None:
            return True
        table = self.tables[rung]
        table[trial] = values
        order = best_first(np.array(list(table.values())), self.mended)
        rank = order.index(len(order) - 1) if self.mended else order[-1]
        return len(order) == 1 or rank / len(order) <= 1 / self.reduction


def best_first(values: np.ndarray, mended: bool = True) -> list[int]:
    """The rows' indices: front by front; in each the best quality, then always the row farthest from all before it."""
    ranks = np.asarray(moocore.pareto_rank(values))
    order: list[int] = []
    for rank in np.unique(ranks):
        members = np.flatnonzero(ranks == rank)
        places = _spread_out(values[members])
        order += members[places if mended else np.argsort(places)].tolist()
    return order


def _spread_out(values: np.ndarray) -> list[int]:
    order = [int(np.argmin(values[:, 0]))]
    nearest = np.linalg.norm(values - values[order[0]], axis=1)
    while len(order) < len(values):
        nearest[order] = -1.0
        order.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.linalg.norm(values - values[order[-1]], axis=1))
    return order
