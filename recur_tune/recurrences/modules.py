"""A mechanism's module by its name. Beside a saved model a file that knows one recurrence replaces this one."""

from __future__ import annotations

from recur_tune.recurrences.seam import Recurrence


def module_of(kind: str) -> type[Recurrence]:
    """The class of the mechanism that a configuration calls `kind`."""
    from recur_tune.recurrences.registry import MECHANISMS, canonical

    return MECHANISMS[canonical(kind)].load()
