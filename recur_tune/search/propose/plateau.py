"""A plateau: new trials are expected to add too little, so that a search ends before its budget of trials."""

from __future__ import annotations

from recur_tune.search.record.front import search_hypervolume
from recur_tune.search.record.progress import expected_gains
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState

_TRIALS = 3  # in a row whose expected gain is too small


def plateau(spec: SearchSpec, state: SearchState, gain: float) -> str:
    """Why a search ends where the expected gains of the next trial and of those before it are all too small; empty
    where one is large enough."""
    share, volume = spec.budget.plateau, search_hypervolume(state, spec.objectives)
    last = [*expected_gains(state), gain][-_TRIALS:]
    if share is None or not volume or len(last) < _TRIALS or max(last) >= share * volume:
        return ""
    return f"the next trial is expected to add {gain / volume:.2g} of the hypervolume; budget.plateau is {share:g}."
