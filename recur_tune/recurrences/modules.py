"""Modules of mechanisms by a model's configuration. Beside a saved model a file that knows its own replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recur_tune.recurrences.seam import Recurrence


def modules_of(settings: Mapping[str, Any]) -> list[type[Recurrence]]:
    """The classes of a recurrence's parts: one, or an exact part and its second ones."""
    from recur_tune.recurrences.composition import own_fields
    from recur_tune.recurrences.registry import of_settings
    from recur_tune.recurrences.second_parts import ROLES, unchosen_fields

    mechanism, spec = of_settings(settings)
    modules, fields = [part.load() for part in mechanism.parts], spec.model_dump()
    taken = {name for module in modules for name in own_fields(module, fields)}
    # A field that no module takes would be searched, and change nothing.
    if lost := fields.keys() - taken - ROLES.keys() - unchosen_fields(spec):
        raise TypeError(
            f"the module of {mechanism.name!r} does not take {', '.join(sorted(lost))}, which its spec has."
        )
    return modules
