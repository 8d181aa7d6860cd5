"""The Pareto front: the complete trials that no other dominates, and their hypervolume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import moocore
import numpy as np

from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.state import SearchState, TrialRecord

BEYOND_THE_FIRST = 1.05  # the reference quality over the baseline's first, which useful trials are better than


def front(trials: Iterable[TrialRecord], objectives: Sequence[str]) -> list[TrialRecord]:
    """The non-dominated complete trials, best quality first; of trials with equal objectives the first."""
    complete = [t for t in trials if t.state == "complete" and has_values(t, objectives)]
    if not complete:
        return []
    values = np.array([t.values(objectives) for t in complete], dtype=float)
    chosen: dict[tuple[float, ...], TrialRecord] = {}
    for trial, row, best in zip(complete, values.tolist(), non_dominated(values), strict=True):
        known = chosen.get(tuple(row))
        if best and (known is None or trial.number < known.number):
            chosen[tuple(row)] = trial
    qualities = [objective for objective in objectives if OBJECTIVES[objective].kind == "quality"]
    return sorted(chosen.values(), key=lambda t: (t.values(qualities), t.values(objectives), t.number))


def equals(trials: Iterable[TrialRecord], best: Sequence[TrialRecord], objectives: Sequence[str]) -> dict[str, str]:
    """Trials whose objectives equal those of a trial on the front, as text: by its name, the others' names."""
    by_values = {tuple(one.values(objectives) or ()): one for one in best}
    found: dict[str, str] = {}
    for trial in trials:
        on_front = by_values.get(tuple(trial.values(objectives) or ()))
        if trial.state == "complete" and on_front is not None and trial is not on_front:
            found[on_front.name] = ", ".join(filter(None, [found.get(on_front.name, ""), trial.name]))
    return found


def non_dominated(values: np.ndarray) -> np.ndarray:
    """Which rows no other row dominates; equal rows do not dominate each other."""
    return np.asarray(moocore.is_nondominated(values, keep_weakly=True), dtype=bool)


def hypervolume(values: np.ndarray, reference: Sequence[float]) -> float:
    """The share of the box from 0 to the reference point that the rows dominate: 0 to 1, more is better.

    Objectives are divided by the reference point, so that their units do not matter.
    """
    scaled = np.asarray(values, dtype=float).reshape(-1, len(reference)) / np.asarray(reference, dtype=float)
    inside = scaled[(scaled < 1).all(axis=1)]
    return float(moocore.hypervolume(inside, ref=np.ones(len(reference)))) if len(inside) else 0.0


class GrowingFront:
    """The hypervolume of a front to which trials are added one by one."""

    def __init__(self, reference: Sequence[float]) -> None:
        self.reference, self.best, self.hypervolume = reference, np.empty((0, len(reference))), 0.0

    def add(self, values: Sequence[float] | None) -> float:
        """Add a trial; gives the hypervolume. It is computed only where the trial is not dominated, which is rare."""
        newcomer = np.array(values or [np.nan], dtype=float)
        if np.isfinite(newcomer).all() and not (self.best <= newcomer).all(axis=1).any():
            self.best = np.vstack([self.best[~(newcomer <= self.best).all(axis=1)], newcomer])
            self.hypervolume = hypervolume(self.best, self.reference)
        return self.hypervolume


def search_hypervolume(state: SearchState, objectives: Sequence[str]) -> float | None:
    """The hypervolume of a search's front; None before its reference point is known."""
    if any(objective not in state.reference for objective in objectives):
        return None
    best = front(state.trials.values(), objectives)
    return hypervolume(
        np.array([t.values(objectives) for t in best], dtype=float), reference_point(state.reference, objectives)
    )


def reference_point(reference: Mapping[str, float], objectives: Sequence[str]) -> list[float]:
    """The reference in the objectives' order."""
    return [reference[objective] for objective in objectives]


def has_values(trial: TrialRecord, objectives: Sequence[str]) -> bool:
    """Whether a trial has a finite number for every objective."""
    values = trial.values(objectives)
    return values is not None and bool(np.isfinite(values).all())


def front_rows(state: SearchState, objectives: Sequence[str]) -> list[dict[str, Any]]:
    """The front as rows for a table, best quality first."""
    return [trial_row(trial, objectives) for trial in front(state.trials.values(), objectives)]


def trial_row(trial: TrialRecord, objectives: Sequence[str]) -> dict[str, Any]:
    """A trial as a row: its name, parameters, tokens and objectives."""
    return {
        "trial": trial.name,
        "number": trial.number,
        "params": trial.params,
        "tokens": trial.tokens,
        **({"untrained": trial.untrained} if trial.untrained else {}),
        **{objective: trial.value(objective) for objective in objectives},
    }
