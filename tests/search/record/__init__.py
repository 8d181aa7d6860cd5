"""What the tests of searches share: small searches, and trials without training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recur_tune.common.parsing import parse
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState, TrialRecord, TrialState, Validation

OBJECTIVES = ("perplexity", "flops_per_token", "peak_memory")


def search(**fields: Any) -> SearchSpec:
    """A search with as little in it as there has to be."""
    return parse(SearchSpec, {"space": {"window": [200, 300]}, "budget": {"trials": 3}, **fields})


def trial(
    number: int,
    perplexity: float | None,
    flops: float,
    memory: float,
    state: TrialState = "complete",
    params: Mapping[str, Any] | None = None,
) -> TrialRecord:
    """A trial that came so far; without a perplexity it has not been validated yet."""
    validations = [] if perplexity is None else [Validation(1000, {"perplexity": perplexity})]
    costs = {"flops_per_token": flops, "peak_memory": memory}
    return TrialRecord(number, dict(params or {}), costs, state=state, validations=validations)


def state_of(*trials: TrialRecord) -> SearchState:
    """A search with these trials."""
    return SearchState(trials={trial.number: trial for trial in trials})
