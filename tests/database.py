"""An MLflow database without runs, made once for all tests of this machine: making one takes seconds of a core."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import mlflow.version
from filelock import FileLock
from mlflow import MlflowClient


def empty_database(path: Path) -> Path:
    """A copy of it at this path."""
    folder = Path(tempfile.gettempdir()) / f"recur-tune-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder / f"mlflow-{mlflow.version.VERSION}.db"
    with FileLock(f"{made}.lock"):
        if not made.exists():
            making = made.with_suffix(".making")
            making.unlink(missing_ok=True)
            MlflowClient(f"sqlite:///{making}").search_experiments()
            making.rename(made)
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(made, path))
