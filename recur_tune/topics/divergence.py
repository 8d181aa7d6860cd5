"""Jensen-Shannon divergence: how far two distributions lie apart, the same from either side."""

from __future__ import annotations

import numpy as np
from scipy.special import rel_entr

BASE = 2  # of the logarithm: nought where two distributions are the same, one where they share nothing


def jensen_shannon(one_NK: np.ndarray, other_NK: np.ndarray) -> np.ndarray:
    """Of each row with its counterpart, in bits."""
    middle_NK = (one_NK + other_NK) / 2
    nats_N = (rel_entr(one_NK, middle_NK) + rel_entr(other_NK, middle_NK)).sum(-1) / 2
    return np.clip(nats_N / np.log(BASE), 0.0, 1.0)  # rounding may go beyond the ends
