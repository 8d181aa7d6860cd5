"""Disks small enough to be full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of its own, of so many bytes, as 64k; a test that cannot have one is skipped."""
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("no disk can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # a process of Ray's may still be there
