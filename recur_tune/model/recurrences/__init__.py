"""Recurrences: one mechanism a file."""

from __future__ import annotations

from recur_tune.model.recurrence import Recurrence


def module_of(kind: str) -> type[Recurrence]:
    """The module of a mechanism, by its name."""
    from recur_tune.model.recurrences.pooled import Pooled

    return {"pooled": Pooled, "memory": Pooled}[kind]
