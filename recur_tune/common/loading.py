"""Imports of heavy modules: torch, transformers and what depends on them."""

from __future__ import annotations

import gc
import importlib
from typing import Any


def load(module: str) -> Any:
    """Import a module with the garbage collector paused: imported objects stay alive, and scanning them takes a sixth
    of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collecting:
            gc.enable()


def named(place: str) -> Any:
    """What stands at `package.module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
