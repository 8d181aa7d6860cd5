"""A cluster that is there already, reached in each of the ways that `--address` knows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from recur_tune.localhost import free_ports_from
from recur_tune.searching.directory import SearchDirectory
from tests.command import Command
from tests.ports import FIRST
from tests.running.searches import assert_settled, small_spec, write_space
from tests.waiting import until

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A head node as an administrator would start it; its addresses by kind."""
    gcs, dashboard, client = islice(free_ports_from(FIRST), 3)
    # Where a local cluster was started before, Ray wants its token everywhere or nowhere.
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["ray", "start", "--head", "--block", "--num-cpus=2", f"--port={gcs}", f"--ray-client-server-port={client}",
         f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1", "--include-dashboard=true"],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    yield {"gcs": f"127.0.0.1:{gcs}", "dashboard": f"http://127.0.0.1:{dashboard}"}
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(address: str) -> None:
    host, _, port = address.rpartition("/")[2].partition(":")

    def answers() -> bool:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True

    until(answers, f"an answer at {address}")


# Not ray://: Ray's client server starts a process per client and gives it half a minute, too little on two busy cores.
@pytest.mark.parametrize("kind", ["gcs", "dashboard"])
def test_a_search_runs_there(head: dict[str, str], kind: str, world: Path, tmp_path: Path) -> None:
    for address in head.values():
        wait_for(address)
    # One after the other, in one thread.
    space = write_space(tmp_path / "space.yaml", small_spec(world, budget__trials=2, resources__cpus=1.5))
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["search", space, "--name", "there", "--results", tmp_path, "--address", head[kind]]
    with Command(*words, env=env) as search:
        assert search.wait() == 0, search.err
    directory = SearchDirectory.open(tmp_path, "there")
    assert directory.state().status == "finished"
    assert_settled(directory)
