"""One Ray cluster for every test in this folder that needs one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from recur_tune.cluster.connection import DASHBOARD, Cluster, connected
from tests import forked
from tests.command import own_server
from tests.search.run.searches import make_world


@pytest.fixture(scope="session")
def forked_workers() -> Iterator[None]:
    """Workers of every cluster come from the fork server."""
    with pytest.MonkeyPatch.context() as variables:
        forked.start_from(own_server(), variables)
        yield


@pytest.fixture(scope="session")
def cluster(forked_workers: None) -> Iterator[Cluster]:
    """A cluster of this process; whoever runs a search here finds it and leaves it as it is."""
    with ExitStack() as until_the_end:
        with pytest.MonkeyPatch.context() as variables:
            variables.setenv(DASHBOARD, "off")  # nine processes that nobody looks at
            cluster = until_the_end.enter_context(connected(None))
        yield cluster


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, forked_workers: None) -> Path:
    """A base and a text."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder
