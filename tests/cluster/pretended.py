"""Cards that a machine does not have, as NVIDIA's tool would tell of them."""

from __future__ import annotations

import shlex
from pathlib import Path


def pretend_cards(folder: Path, said: str) -> None:
    """A tool that says so, in a folder that goes first in PATH."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(said)}\n")
    tool.chmod(0o755)
