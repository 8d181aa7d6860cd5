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
from recur_tune.sites.slurm.requeue import requeue_if_first_node_died, requeue_or_resubmit
from tests.cli.books import make_books

WHOLE, HEADLESS = "n1,n2", "n2"  # the nodes of the job
UP, DOWN = True, False  # Ray's head


class Cluster:
    """A search's folder, Ray's head, and a `scontrol` that tells of job 7 and writes down what it is asked to do."""

    def __init__(self, folder: SlurmFolder, path: Path, head: socket.socket) -> None:
        self.folder, self._path, self._head = folder, path, head
        self._address = f"127.0.0.1:{head.getsockname()[1]}"

    def is_requeued(self, *days: tuple[str, bool]) -> bool:
        """Whether n2 requeues the job. Each time that it looks, things are as the next of these says; then it is told
        to leave."""
        (self._path / "asked").write_text("")
        coming = iter(days)
        self._become(*next(coming))

        def told_to_leave(seconds: float) -> bool:
            day = next(coming, None)
            if day is not None:
                self._become(*day)
            return day is None

        requeue_if_first_node_died(self.folder, 7, "n2", self._address, told_to_leave)
        return "requeue" in (self._path / "asked").read_text()

    def requeue_or_resubmit(self, does: str) -> str:
        """Which of the two it came to, where `scontrol requeue` does this."""
        (self._path / "requeue").write_text(does.format(state=self._path / "state"))
        requeued = requeue_or_resubmit(self.folder, 7, may_requeue=True)
        submitted = 8 in self.folder.jobs("search")
        assert requeued is not submitted
        return "requeued" if requeued else "submitted"

    def _become(self, nodes: str, up: bool) -> None:
        (self._path / "nodes").write_text(nodes)
        if not up:
            self._head.close()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
nodes=$(cat {tmp_path}/nodes) state=$(cat {tmp_path}/state)
case "$*" in
  "show job"*) echo "JobId=7 JobState=$state BatchFlag=1 NodeList=$nodes BatchHost=n1 " ;;
  "show hostnames"*) echo "$3" | tr , '\\n' ;;
  requeue*) echo "$*" >> {tmp_path}/asked; . {tmp_path}/requeue ;;
esac
""")
    program.chmod(0o755)
    (tmp_path / "state").write_text("RUNNING")
    (tmp_path / "requeue").write_text("")
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 8\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    make_books(tmp_path / "results")
    folder = SlurmFolder(SearchDirectory.open(tmp_path / "results", "books"))
    folder.create(parse(Profile, {}))
    folder.note(7, "search", by="user", nodes=2)
    folder.note(7, "begun", nodes=["n1", "n2"])
    folder.note(7, "up")
    with socket.create_server(("127.0.0.1", 0)) as head:
        yield Cluster(folder, tmp_path, head)


def test_a_node_that_comes_back_too_late_does_not_keep_the_job(cluster: Cluster) -> None:
    """Ray's head answers again, but SLURM has given up its node and will kill the script there."""
    assert cluster.is_requeued((HEADLESS, UP))


def test_a_node_that_ray_has_left_still_sees_the_first_one_die(cluster: Cluster) -> None:
    assert cluster.is_requeued((WHOLE, UP), (WHOLE, UP), (WHOLE, DOWN), (HEADLESS, DOWN))


def test_a_script_that_dies_with_its_steps_is_missed(cluster: Cluster) -> None:
    """The step is told to leave since its other end is gone; SLURM knows why."""
    assert cluster.is_requeued((WHOLE, UP), (HEADLESS, UP))


def test_a_job_that_ends_well_is_left_alone(cluster: Cluster) -> None:
    assert not cluster.is_requeued((WHOLE, UP), (WHOLE, UP), (WHOLE, DOWN))


def test_a_node_on_which_ray_did_not_start_says_so_at_once(cluster: Cluster) -> None:
    """Its step ends, and the script reads why."""
    cluster.folder.note(7, "begun", nodes=["n1", "n2"])  # requeued, with the same number
    assert not cluster.is_requeued((WHOLE, UP), (HEADLESS, DOWN))


@pytest.mark.parametrize(
    "does, becomes",
    {
        "exit 0": "requeued",
        "kill -TERM $$": "requeued",  # SLURM ends a requeued job's processes, scontrol before it has heard
        "echo COMPLETING > {state}; echo 'Socket timed out on send/recv operation' >&2; exit 1": "requeued",
        "echo 'Requested operation is presently disabled' >&2; exit 1": "submitted",
    }.items(),
)
def test_a_requeued_job_has_no_successor(cluster: Cluster, does: str, becomes: str) -> None:
    assert cluster.requeue_or_resubmit(does) == becomes
