"""Processes of a search out of the fork server: a trial then starts in a second, not in seven.

Ray itself has the two hooks that its workers take: a driver's runtime environment can be changed on its way to the
cluster, and may name what starts a worker in place of Python. Drivers are met by `startup/sitecustomize.py`.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import handover

if TYPE_CHECKING:  # drivers and workers have no use for it
    import pytest

HOOK = "RAY_RUNTIME_ENV_HOOK"
# A node starts a worker for each core before it is asked for one: Python's own, of which no trial here has any use.
_PRESTART = "RAY_prestart_worker_first_driver"


def settings(server: Path) -> dict[str, str]:
    """The environment of a driver that is to come from there, with its workers; it has to find these files."""
    here = Path(__file__).parent
    found = os.pathsep.join([str(here.parent), str(here / "startup")])
    return {
        handover.SERVER: str(server), HOOK: "tests.forked.with_forked_workers", "PYTHONPATH": found, _PRESTART: "0",
    }  # fmt: skip


def start_from(server: Path, variables: pytest.MonkeyPatch) -> None:
    """Until these variables are undone, what is started here comes from there."""
    for name, value in settings(server).items():
        variables.setenv(name, value)


def with_forked_workers(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Ray's hook: the runtime environment of a driver, changed."""
    without_packages = [sys.executable, "-S"]  # it starts at once
    python = [*without_packages, handover.__file__, os.environ[handover.SERVER]]
    return {**(runtime_env or {}), "py_executable": shlex.join(python)}
