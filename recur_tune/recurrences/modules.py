"""Modules of mechanisms by a model's configuration. Beside a saved model a file that knows its own replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recur_tune.recurrences.seam import Recurrence


def modules_of(settings: Mapping[str, Any]) -> list[type[Recurrence]]:
    """The classes of a recurrence's parts: one, or an exact part and its second ones."""
    from recur_tune.recurrences.registry import of_settings

    return [part.load() for part in of_settings(settings)[0].parts]
