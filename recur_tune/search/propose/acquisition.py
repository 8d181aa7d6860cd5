"""Acquisition function: expected hypervolume improvement. Of a trial's objectives its quality alone is uncertain.

A trial adds to a front the volume that it alone dominates. Cut the space of costs into boxes at the costs of the
front's points. Within a box the best quality so far is one number b, and a trial whose costs reach into the box adds b
- y of quality there, if that is positive. So its expected gain is a sum over boxes: the box's size, which is known,
times an expected improvement E[max(b - y, 0)], which has a closed form.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr, ndtr

from recur_tune.search.record.front import non_dominated

_MOST_CELLS = 20_000  # boxes of a front; a front with more is thinned out
_AT_ONCE = 4_000_000  # numbers in memory at a time


def expected_improvement(best: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """E[max(best - y, 0)] where log y is normal with that mean and standard deviation; arguments are broadcast."""
    std = np.maximum(std, 1e-12)
    distance = (np.log(best) - mean) / std
    return best * ndtr(distance) - np.exp(mean + std**2 / 2 + log_ndtr(distance - std))


def expected_hypervolume_improvement(
    mean: np.ndarray, std: np.ndarray, costs: np.ndarray, front: np.ndarray, reference: np.ndarray
) -> np.ndarray:
    """What each trial is expected to add to the hypervolume, as a share of the box up to the reference point.

    `mean` and `std` are of log quality, [trials]; `costs` [trials, costs]; `front` [points, 1 + costs] and `reference`
    have the quality first.
    """
    costs, front = costs / reference[1:], front / reference
    front = front[(front < 1).all(axis=1)]
    front = _thinned(front[non_dominated(front)] if len(front) else front)
    mean = mean - np.log(reference[0])
    edges = [np.concatenate([[-np.inf], np.unique(column)]) for column in front[:, 1:].T]
    best = _best_quality(front, edges)
    levels, level_of_cell = np.unique(best, return_inverse=True)
    found = np.empty(len(mean))
    step = max(1, _AT_ONCE // best.size)
    for start in range(0, len(mean), step):
        part = slice(start, start + step)
        gain = expected_improvement(levels, mean[part, None], std[part, None])
        cells = gain[:, level_of_cell.reshape(best.shape)]
        for cost, edge in reversed(list(zip(costs[part].T, edges, strict=True))):
            above = np.concatenate([edge[1:], [1.0]])
            width = np.clip(above - np.maximum(cost[:, None], edge), 0, None)
            cells = np.einsum("n...i,ni->n...", cells, width)
        found[part] = cells
    return found


def _best_quality(front: np.ndarray, edges: list[np.ndarray]) -> np.ndarray:
    """The best quality in every box, over the front's points that cost no more than the box's lowest corner."""
    best = np.ones([len(edge) for edge in edges])
    corners = tuple(np.searchsorted(edge, cost) for edge, cost in zip(edges, front[:, 1:].T, strict=True))
    np.minimum.at(best, corners, front[:, 0])
    for axis in range(best.ndim):
        best = np.minimum.accumulate(best, axis=axis)
    return best


def _thinned(front: np.ndarray) -> np.ndarray:
    """At most as many points as the number of boxes allows, evenly along the quality."""
    most = int(_MOST_CELLS ** (1 / (front.shape[1] - 1)))
    if len(front) <= most:
        return front
    order = np.argsort(front[:, 0])
    return front[order[np.linspace(0, len(front) - 1, most).astype(int)]]
