"""Who asks for the next allocation when the first node of a job is gone; SLURM's answers are written here, since a node
that is lost for longer than SLURM's patience and comes back takes minutes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from recur_tune.common.parsing import parse
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm.folder import SlurmFolder
from recur_tune.sites.slurm.profile import Profile
from recur_tune.sites.slurm.requeue import requeue_if_first_node_died
from tests.cli.books import make_books

WHOLE, HEADLESS = "n1,n2", "n2"


class Cluster:
    """A search's folder, Ray's head, and a `scontrol` that tells of job 7 and writes down what it is asked to do."""

    def __init__(self, folder: SlurmFolder, path: Path, head: socket.socket) -> None:
        self.folder, self._path, self._head = folder, path, head

    def ask(self, nodes: str, up: bool, polls: int = 0) -> bool:
        """Whether n2 requeues the job; `polls` is how often it may wait before it is told to leave."""
        (self._path / "nodes").write_text(nodes)
        (self._path / "asked").write_text("")
        address = f"127.0.0.1:{self._head.getsockname()[1]}"
        if not up:
            self._head.close()
        left = iter([False] * polls + [True])
        requeue_if_first_node_died(self.folder, 7, "n2", address, lambda seconds: next(left))
        return "requeue" in (self._path / "asked").read_text()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
nodes=$(cat {tmp_path}/nodes)
case "$*" in
  "show job"*) echo "JobId=7 JobState=RUNNING BatchFlag=1 NodeList=$nodes BatchHost=n1 " ;;
  "show hostnames"*) echo "$3" | tr , '\\n' ;;
  *) echo "$*" >> {tmp_path}/asked ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    make_books(tmp_path / "results")
    folder = SlurmFolder(SearchDirectory.open(tmp_path / "results", "books"))
    folder.create(parse(Profile, {}))
    folder.note(7, "search", by="user", nodes=2)
    with socket.create_server(("127.0.0.1", 0)) as head:
        yield Cluster(folder, tmp_path, head)


def test_a_node_that_comes_back_too_late_does_not_keep_the_job(cluster: Cluster) -> None:
    """Ray's head answers again, but SLURM has given up its node and will kill the script there."""
    assert cluster.ask(HEADLESS, up=True)


def test_a_job_with_its_script_is_left_alone(cluster: Cluster) -> None:
    assert not cluster.ask(WHOLE, up=True)


def test_a_head_that_does_not_answer_is_waited_for(cluster: Cluster) -> None:
    assert not cluster.ask(WHOLE, up=False, polls=2)


def test_a_dead_first_node_is_replaced_when_slurm_has_noticed(cluster: Cluster) -> None:
    assert cluster.ask(HEADLESS, up=False)
