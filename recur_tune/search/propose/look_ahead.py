"""Look ahead: the outlook of a search from its trials so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from recur_tune.search.propose.acquisition import expected_hypervolume_improvement
from recur_tune.search.propose.features import rows_at
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.propose.observations import TIME, Fields, ObservedTrial
from recur_tune.search.propose.outlook import Options, Outlook, outlook

_MOST_OPTIONS = 80  # paused trials and candidates, those with the largest gains per token


class _Next(NamedTuple):
    """A trial that may end next."""

    number: int
    fields: Fields
    costs: Mapping[str, float]
    tokens: int  # trained so far
    is_new: bool = False


def look_ahead(
    model: KnownCosts, trials: Sequence[ObservedTrial], reference: Mapping[str, float], trained: Mapping[int, int],
    new_trials: float = math.inf,
) -> Outlook | None:  # fmt: skip
    """The outlook of a search in which at most so many new trials begin; None while no cost is known. `trained` has
    the tokens of running trials by their numbers, which are more than those of their last validations."""
    pool, expected = model.survey(trials, reference)
    if expected is None:
        return None
    budget, unused = model.spec.budget.tokens, 1 + max(one.number for one in trials)

    def known(one: ObservedTrial) -> _Next:
        tokens = one.curve[-1][0] if one.curve else 0
        return _Next(one.number, one.fields, one.costs, max(tokens, trained.get(one.number, 0)))

    def rows(some: Sequence[_Next]) -> np.ndarray:
        return rows_at(model.features([one.fields for one in some]), 1.0, [one.number for one in some])

    def costs(some: Sequence[_Next]) -> np.ndarray:
        return np.array([[one.costs[name] for name in model.costs] for one in some]).reshape(-1, len(model.costs))

    def left(some: Sequence[_Next]) -> np.ndarray:
        return np.array([max(1, budget - one.tokens) / budget for one in some])

    running = [known(one) for one in trials if one.pending and one.repeats is None]
    others = [known(one) for one in trials if one.paused and one.curve]
    if new_trials > 0:
        others += [_Next(unused + place, one.fields, one.costs, 0, is_new=True) for place, one in enumerate(pool)]
    if others:
        mean, std = expected.process.predict(rows(others))
        gains = expected_hypervolume_improvement(mean, std, costs(others), expected.front, expected.reference)
        best = np.argsort(-gains / left(others), kind="stable")[:_MOST_OPTIONS]
        others = [others[place] for place in np.sort(best)]
    options = [*running, *others]
    if not options:
        return Outlook.of_nothing()
    mean, covariance = expected.process.predict_jointly(rows(options))
    slowness = np.array([one.costs.get(TIME, 1.0) for one in options])
    is_new = np.array([one.is_new for one in options])
    after = Options(mean, covariance, costs(options), left(options), slowness, is_new, len(running))
    return outlook(after, expected.front, expected.reference, new_trials)
