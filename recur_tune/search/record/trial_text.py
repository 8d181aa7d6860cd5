"""A trial's chosen parameters as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recur_tune.recurrences.registry import FIELDS, MECHANISMS
from recur_tune.search.record.state import TrialRecord

# Fields in this order; on a narrow screen the last are left out.
_TELLING = [name for mechanism in MECHANISMS.values() for name in [*mechanism.spec.model_fields][:2]]
_ORDER = tuple(
    dict.fromkeys(["recurrence", "window", "overlap", "bptt_windows", *_TELLING, "learning_rate", *FIELDS])
)  # fmt: skip


def describe_trial(trial: TrialRecord) -> str:
    """A trial's chosen parameters in a line."""
    parts = [f"{trial.role}:"] if trial.role else []
    for name in chosen_fields([trial]):
        parts.append(field_text(trial, name) if name == "recurrence" else f"{name} {field_text(trial, name)}")
    if trial.workers > 1:
        parts.append(f"on {trial.workers} workers")
    return " ".join(parts)


def chosen_fields(trials: Iterable[TrialRecord]) -> list[str]:
    """Every field that the search chose for a trial, in the same order whichever trials are shown."""
    found = {name for trial in trials for name in trial.params}
    return [name for name in _ORDER if name in found] + sorted(found.difference(_ORDER))


def field_text(trial: TrialRecord, field: str) -> str:
    """A field's value as text; empty where the trial has no such field."""
    value: Any = trial.params.get(field, "")
    return f"{value:.3g}" if isinstance(value, float) else str(value)
