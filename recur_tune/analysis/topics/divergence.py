"""Jensen-Shannon divergence: how far two distributions lie apart, the same from either side."""

from __future__ import annotations

import numpy as np
from scipy.special import rel_entr

BASE = 2  # of the logarithm: nought where two distributions are the same, one where they share nothing


def jensen_shannon(one_NK: np.ndarray, other_NK: np.ndarray) -> np.ndarray:
    """Of each row with its counterpart, in bits."""
    twice_NK = one_NK + other_NK  # their mean, twice: halved, the smallest number there is would be none
    nats_N = (rel_entr(2 * one_NK, twice_NK) + rel_entr(2 * other_NK, twice_NK)).sum(-1) / 4
    return np.clip(nats_N / np.log(BASE), 0.0, 1.0)  # rounding may go beyond the ends
