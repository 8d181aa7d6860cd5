"""Names of a search's processes in Ray's dashboard, `top` and `nvidia-smi`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recur_tune.cluster.internals import set_process_title


def trial_name(folder: Path) -> str:
    """A trial's name with its search's, from its folder."""
    return f"{folder.parent.parent.name}-T{folder.name}"


def named(train: Callable[[dict[str, Any]], None], name: str) -> Callable[[dict[str, Any]], None]:
    """The same function under another name, which Ray gives to its actors."""

    def trial(config: dict[str, Any]) -> None:
        train(config)

    trial.__name__ = name
    return trial


def call_this_process(name: str) -> None:
    """Name this process after a trial; Ray names processes after the method that they run."""
    set_process_title(f"ray::{name}")
