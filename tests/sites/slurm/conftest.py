"""One SLURM for every test in this folder that needs one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sites.slurm.mini_slurm import MiniSlurm, available
from tests.sites.slurm.site import Site


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniSlurm]:
    """Three nodes, idle when the first test gets them; a test leaves them as it found them."""
    if reason := available():
        pytest.skip(reason)
    with open_to_all(Path(__file__).parents[3]), MiniSlurm(tmp_path_factory.mktemp("shared")) as slurm:
        yield slurm


@contextmanager
def open_to_all(checkout: Path) -> Iterator[None]:
    """The nodes' other users run this code too, though it may lie in a folder that `mktemp -d` made for one."""
    mode = checkout.stat().st_mode
    checkout.chmod(mode | 0o055)
    try:
        yield
    finally:
        checkout.chmod(mode)


@pytest.fixture(scope="session")
def storage(slurm: MiniSlurm) -> Site:
    """A text and a base to search with, on storage that all nodes share."""
    return Site(slurm)


@pytest.fixture
def site(storage: Site) -> Iterator[Site]:
    """The same for one test, whose jobs end with it."""
    yield storage
    for user in ("root", "alice"):
        storage.slurm.run("scancel", f"--user={user}")
