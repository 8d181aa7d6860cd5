"""Outlook: the hypervolume that the next trials are expected to add, with an interval.

The rest of the search is simulated. Workers take trials in the order of their expected gain per token, those before
each believed to end as expected. Then the qualities of all are drawn jointly from the process in a number of worlds. A
world's gain is what its trials add to the hypervolume by the time that so many tokens are trained.

The process is too sure, and wrong of many trials alike, such as all with one learning rate. So for the interval all of
a world's trials are off together by some of their standard deviations, besides what the process draws. The expectation
is the process's own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from recur_tune.search.propose.acquisition import expected_hypervolume_improvement
from recur_tune.search.record.front import hypervolume, non_dominated
from recur_tune.search.record.progress import SHARE_OF_OUTLOOKS

AHEAD = (1, 2, 4, 8, 16, 32)  # tokens of so many whole trials
COMMON_ERROR = 3.0  # standard deviation of the error that all trials share, in units of their own
_WORLDS = 64


@dataclass(frozen=True)
class Outlook:
    """Expected gains of hypervolume, with the interval's ends, by the tokens ahead in whole trials."""

    trials: list[float]
    expected: list[float]
    low: list[float]
    high: list[float]

    @classmethod
    def of_nothing(cls) -> Outlook:
        """Where no trial is left."""
        nothing = [0.0] * len(AHEAD)
        return cls([*map(float, AHEAD)], nothing, nothing, nothing)


@dataclass(frozen=True)
class Options:
    """Trials that may end next, the running ones first: log quality at the end with its covariance, costs, what is left
    of each as a share of a whole trial, the time that a token takes it, and whether it is new."""

    mean: np.ndarray
    covariance: np.ndarray
    costs: np.ndarray
    left: np.ndarray
    slowness: np.ndarray
    is_new: np.ndarray
    running: int


def outlook(
    options: Options, front: np.ndarray, reference: np.ndarray, new_trials: float = math.inf,
    common_error: float = COMMON_ERROR, worlds: int = _WORLDS, ahead: Sequence[float] = AHEAD,
) -> Outlook:  # fmt: skip
    """What the next trials are expected to add to the front, of which at most so many begin."""
    front = front[non_dominated(front)] if len(front) else front
    workers = max(1, options.running)
    order = _order(options, front, reference, max(ahead) + workers, new_trials)
    ends = _tokens_at_ends(options, order, workers)
    random = np.random.default_rng(0)
    shares = (np.arange(worlds) + 0.5) / worlds
    common = common_error * np.outer(ndtri(shares), np.sqrt(options.covariance.diagonal()[order]))
    own = random.standard_normal((worlds, len(order))) @ _root(options.covariance[np.ix_(order, order)]).T
    logs, costs = options.mean[order] + own, options.costs[order]
    expected = _gains(np.exp(logs), costs, ends, front, reference, ahead).mean(axis=0)
    gains = _gains(np.exp(logs + common), costs, ends, front, reference, ahead)
    low, high = np.quantile(gains, [(1 - SHARE_OF_OUTLOOKS) / 2, (1 + SHARE_OF_OUTLOOKS) / 2], axis=0)
    # Where few worlds gain anything, their mean lies beyond the quantile.
    low, high = np.minimum(low, expected), np.maximum(high, expected)
    return Outlook([*map(float, ahead)], *(one.tolist() for one in (expected, low, high)))


def _gains(
    qualities: np.ndarray, costs: np.ndarray, ends: np.ndarray, front: np.ndarray, reference: np.ndarray,
    ahead: Sequence[float],
) -> np.ndarray:  # fmt: skip
    """What a world's trials add to the front by the time that so many tokens are trained: [worlds, ahead]."""
    corner = reference.tolist()
    before = hypervolume(front, corner)
    gains = np.zeros((len(qualities), len(ahead)))
    for world, quality in enumerate(qualities):
        further = np.column_stack([quality, costs])
        gaining = ~(front[:, None] <= further).all(axis=2).any(axis=0)
        for place, tokens in enumerate(ahead):
            if (ended := gaining & (ends <= tokens)).any():
                gains[world, place] = hypervolume(np.vstack([front, further[ended]]), corner) - before
    return gains


def _order(options: Options, front: np.ndarray, reference: np.ndarray, tokens: float, new: float) -> list[int]:
    """The options in the order in which workers take them, up to so many tokens: running ones first, then always the
    one with the largest expected gain per token, where all before it end as expected."""
    mean, covariance = options.mean, options.covariance.copy()
    order: list[int] = []
    waiting = np.ones(len(mean), dtype=bool)
    while options.left[order].sum() < tokens and waiting.any():
        if len(order) < options.running:
            best = len(order)
        else:
            places = np.flatnonzero(waiting)
            std = np.sqrt(np.maximum(covariance.diagonal()[places], 0))
            gains = expected_hypervolume_improvement(mean[places], std, options.costs[places], front, reference)
            best = int(places[np.argmax(gains / options.left[places])])
        order.append(best)
        waiting[best] = False
        new -= bool(options.is_new[best])
        if new <= 0:
            waiting &= ~options.is_new
        front = np.vstack([front, [math.exp(mean[best]), *options.costs[best]]])
        column = covariance[:, best] / max(covariance[best, best], 1e-12)
        covariance -= np.outer(column, covariance[best])
    return order


def _tokens_at_ends(options: Options, order: list[int], workers: int) -> np.ndarray:
    """The tokens that all trials have been trained for when each ends; a free worker takes the next in order."""
    free = [0.0] * workers
    begins, ends = np.zeros(len(order)), np.zeros(len(order))
    for place, option in enumerate(order):
        begins[place] = heapq.heappop(free)
        ends[place] = begins[place] + options.left[option] * options.slowness[option]
        heapq.heappush(free, float(ends[place]))
    shares = (ends[:, None] - begins) / (ends - begins)
    return np.asarray((np.clip(shares, 0, 1) * options.left[order]).sum(axis=1))


def _root(covariance: np.ndarray) -> np.ndarray:
    """A matrix whose square is the covariance, which may be singular: candidates may be alike."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))
