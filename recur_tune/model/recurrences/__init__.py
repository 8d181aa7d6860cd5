"""Recurrences: one mechanism a file."""

from __future__ import annotations

from recur_tune.model.recurrence import Recurrence


def module_of(kind: str) -> type[Recurrence]:
    """The module of a mechanism, by the name that a configuration has for it."""
    from recur_tune.recurrences import MECHANISMS, canonical

    return MECHANISMS[canonical(kind)].load()
