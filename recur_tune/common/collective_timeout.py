"""How long the workers of a trial wait for each other in a collective before they fail."""

from __future__ import annotations

import math
import os

from recur_tune.common.errors import UserError

COLLECTIVE_TIMEOUT = "RECUR_TUNE_COLLECTIVE_TIMEOUT"  # the variable, in seconds
DEFAULT_COLLECTIVE_TIMEOUT = 1800.0


def collective_timeout() -> float:
    """Seconds, from the environment of this process."""
    given = os.environ.get(COLLECTIVE_TIMEOUT, "")
    if not given:
        return DEFAULT_COLLECTIVE_TIMEOUT
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UserError(f"{COLLECTIVE_TIMEOUT}: {given!r} is not a number of seconds such as 600.")
    return seconds
