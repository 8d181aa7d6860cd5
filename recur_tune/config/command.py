"""A trial as the command that trains it."""

from __future__ import annotations

import shlex
from pathlib import Path

from recur_tune.config.fields import own_fields
from recur_tune.config.trial import TrialConfig


def train_command(config: TrialConfig, out: Path) -> str:
    """The command that trains a configuration; what is as the command has it anyway goes without saying."""
    words = ["recur-tune", "train"]
    for name, value in own_fields(config).items():
        if value != TrialConfig.model_fields[name].default:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, "--out", str(out)])
