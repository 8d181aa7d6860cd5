"""Scores of a replayed search: hypervolume against tokens, and the share of the true front that it found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from recur_tune.search.record.front import hypervolume

from .clock import Finished
from .task import Task, cheap_third

SHARES = (0.1, 0.25, 0.5, 1.0)  # of the tokens


def trajectory(task: Task, finished: Sequence[Finished]) -> list[tuple[float, float]]:
    """Tokens spent and the hypervolume of all that had finished by then."""
    curve, done = [(0.0, 0.0)], list[tuple[float, float, float]]()
    for spent, values, _ in finished:
        done.append(values)
        curve.append((spent, hypervolume(np.array(done), task.reference)))
    return curve


def volume_at(curve: Sequence[tuple[float, float]], tokens: float) -> float:
    """The hypervolume after so many tokens."""
    return max(volume for spent, volume in curve if spent <= tokens)


def tokens_to(curve: Sequence[tuple[float, float]], volume: float) -> float:
    """Tokens until a hypervolume was reached; infinite where it never was."""
    return next((spent for spent, reached in curve if reached >= volume * (1 - 1e-9)), math.inf)


def time_to(task: Task, finished: Sequence[Finished], volume: float) -> float:
    """The time until a hypervolume was reached, in times of the most expensive trial; infinite where it never was."""
    curve = trajectory(task, finished)
    at = [(time, reached) for time, (_, reached) in zip([0.0, *(one.time for one in finished)], curve, strict=True)]
    return tokens_to(at, volume) / (task.longest * task.reference[1])


def found(task: Task, finished: Sequence[Finished], wanted: np.ndarray) -> float:
    """The share of some points for which a finished trial is no worse in any objective, but for the tolerance."""
    if not finished:
        return 0.0
    values = np.array([one.values for one in finished])
    return float(np.mean([(values <= point * (1 + task.tolerance)).all(axis=1).any() for point in wanted]))


def scores(task: Task, finished: Sequence[Finished], tokens: float, goal: float) -> dict[str, float]:
    """The measures of one replay by their names; shares are of all tokens."""
    curve = trajectory(task, finished)
    return {
        "to random's last": tokens_to(curve, goal) / tokens,
        "its time": time_to(task, finished, goal),
        **{f"{share:.0%}": volume_at(curve, share * tokens) for share in SHARES},
        "front": found(task, finished, task.front),
        "cheap third": found(task, finished, cheap_third(task.front)),
    }


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First, median and third; the first and the third are values that were there, since some may be infinite."""
    ordered, last = sorted(values), len(values) - 1
    return ordered[round(last / 4)], median(ordered), ordered[round(3 * last / 4)]
