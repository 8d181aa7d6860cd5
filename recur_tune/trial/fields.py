"""The fields that a trial has: a plain model has none of a recurrence's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recur_tune.spec import MemorySpec, TrialConfig

OF_A_RECURRENCE = frozenset({*MemorySpec.model_fields, "recurrence_rate"})


def own_fields(config: TrialConfig) -> dict[str, Any]:
    """A trial's fields without those that mean nothing in it."""
    return own(config.recurrence, dict(config))


def own(recurrence: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Of some values by field, those of fields that a trial with this recurrence has.

    Where a space lists a recurrence's fields beside it and not below, the sampler decides them for plain trials too.
    """
    return {name: value for name, value in values.items() if recurrence != "none" or name not in OF_A_RECURRENCE}
