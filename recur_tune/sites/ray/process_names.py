"""What the parts of a search are called where one looks at a cluster: Ray's dashboard, `top`, `nvidia-smi`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recur_tune.sites.ray.internals import set_process_title


def trial_name(folder: Path) -> str:
    """The trial as people call it, from its folder in its search."""
    return f"{folder.parent.parent.name}-T{folder.name}"


def named(train: Callable[[dict[str, Any]], None], name: str) -> Callable[[dict[str, Any]], None]:
    """The same function by another name, which Ray gives to the actors that run it."""

    def trial(config: dict[str, Any]) -> None:
        train(config)

    trial.__name__ = name
    return trial


def call_this_process(name: str) -> None:
    """Ray calls its processes by the method that they run; people look for a trial."""
    set_process_title(f"ray::{name}")
