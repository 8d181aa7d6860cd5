"""Importing what takes seconds of a core: torch, transformers and whatever stands on them."""

from __future__ import annotations

import gc
import importlib
from typing import Any


def load(module: str) -> Any:
    """Import a module with the garbage collector paused: what it brings stays, and looking through all of it again and
    again takes a sixth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collecting:
            gc.enable()
