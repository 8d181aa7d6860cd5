"""Recurrences: one mechanism a file."""

from __future__ import annotations

from recur_tune.recurrences.seam import Recurrence


def module_of(kind: str) -> type[Recurrence]:
    """The module of a mechanism, by the name that a configuration has for it."""
    from recur_tune.recurrences.registry import MECHANISMS, canonical

    return MECHANISMS[canonical(kind)].load()
