"""A cluster that is there already, reached by its own port; `test_kuberay.py` goes through a dashboard."""

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

from recur_tune.common.localhost import free_ports_from
from recur_tune.search.record.directory import SearchDirectory
from tests.command import Command
from tests.ports import FIRST
from tests.search.run.searches import assert_settled, small_spec, write_space
from tests.waiting import until

pytestmark = pytest.mark.ray


@pytest.fixture
def head() -> Iterator[str]:
    """A head node as an administrator would start it; its address."""
    gcs, client = islice(free_ports_from(FIRST), 2)
    # Where a local cluster was started before, Ray wants its token everywhere or nowhere.
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["ray", "start", "--head", "--block", "--num-cpus=2", f"--port={gcs}", f"--ray-client-server-port={client}",
         "--include-dashboard=false"],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    yield f"127.0.0.1:{gcs}"
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
def test_a_search_runs_there(head: str, world: Path, tmp_path: Path) -> None:
    wait_for(head)
    # One after the other, in one thread.
    space = write_space(tmp_path / "space.yaml", small_spec(world, budget__trials=2, resources__cpus=1.5))
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["search", space, "--name", "there", "--results", tmp_path, "--address", head]
    with Command(*words, env=env) as search:
        assert search.wait() == 0, search.err
    directory = SearchDirectory.open(tmp_path, "there")
    assert directory.state().status == "finished"
    assert_settled(directory)
