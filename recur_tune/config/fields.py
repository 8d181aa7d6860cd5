"""Fields that apply to a trial, given its recurrence and its task; and the command that trains it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recur_tune.config.trial import TrialConfig, meaningless_beside
from recur_tune.recurrences.registry import FIELDS, NONE, canonical, fields_of

RECURRENCE_FIELDS = frozenset({*FIELDS, "recurrence_rate", "trainable"})
_LORA = "lora"  # of `trainable`; the plain model has it too
_ANY_RECURRENCE = RECURRENCE_FIELDS - FIELDS.keys()


def own_fields(config: TrialConfig) -> dict[str, Any]:
    """A trial's fields without those of other recurrences and tasks."""
    values = own_values(config.recurrence, dict(config))
    return {name: value for name, value in values.items() if name not in config.foreign_fields}


def own_values(recurrence: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that apply to a trial with this recurrence; all of them where it is not known.

    Where a space lists a recurrence's fields beside it, the sampler chooses them for every trial.
    """
    if recurrence is None:
        return dict(values)
    foreign = RECURRENCE_FIELDS - fields_of(recurrence)
    if canonical(recurrence) != NONE:
        foreign -= _ANY_RECURRENCE
    if (trainable := values.get("trainable")) == _LORA:
        foreign -= {"trainable"}
    if trainable is not None:
        foreign |= meaningless_beside("all" if "trainable" in foreign else trainable)
    return {name: value for name, value in values.items() if name not in foreign}


def train_command(config: TrialConfig, out: Path) -> str:
    """The command that trains a configuration, without the flags that have their defaults."""
    words = ["recur-tune", "train"]
    for name, value in own_fields(config).items():
        if value != TrialConfig.model_fields[name].default:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, "--out", str(out)])
