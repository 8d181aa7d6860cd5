"""A temporary folder that lives as long as the object that uses it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


def scratch_folder(owner: object, place: Path | None = None) -> Path:
    """A new folder that is removed with its owner. A `TemporaryDirectory` would warn that nobody closed it."""
    folder = Path(tempfile.mkdtemp(dir=place))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder
