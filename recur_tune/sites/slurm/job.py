"""What runs in an allocation: a Ray cluster over its nodes and the search on it, or nodes that join a search elsewhere.

    python -m recur_tune.sites.slurm.job SEARCH_DIRECTORY host | here | guest SECONDS_OF_WARNING

The warning before the time limit (SIGUSR1) saves the trials and sends the job back to the queue; SIGTERM, which is
SLURM's last word, saves what it can. Whatever is lost beyond that, the next allocation goes on from the search
directory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from recur_tune.common.errors import Paused, UserError
from recur_tune.search.record import lease
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.tracking_place import is_server, tracking_uri
from recur_tune.sites.ray.cluster import check_reachable
from recur_tune.sites.slurm.allocation import Allocation
from recur_tune.sites.slurm.drain import drain
from recur_tune.sites.slurm.folder import Head, SlurmFolder
from recur_tune.sites.slurm.steps import EndedEarly, Steps
from recur_tune.sites.slurm.succession import go_on, say
from recur_tune.tracking.mlflow.server import private_server

_ENDED, _FAILED, _INTERRUPTED = 0, 1, 130  # exit codes of `recur-tune resume`: finished or paused, a fault, at once
_SECONDS_BETWEEN_QUESTIONS = 3.0  # to the queue, which everybody asks
_SECONDS_TO_SAVE = 4.0  # after SIGTERM; SIGKILL follows in half a minute, or sooner where a site has said so


@dataclass
class Signals:
    """What SLURM has said so far."""

    warned: bool = False
    ended: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Remember it; who is at work looks now and then."""
        self.warned |= number == signal.SIGUSR1
        self.ended |= number != signal.SIGUSR1
        say(f"SLURM sent {signal.Signals(number).name}")

    @property
    def any(self) -> bool:
        """Whether the end is near, in either way."""
        return self.warned or self.ended


def main() -> None:
    """Be what the second word says."""
    path, part = Path(sys.argv[1]), sys.argv[2]
    signals = Signals()
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signals)
    folder = SlurmFolder(SearchDirectory(path))
    if not folder.exists:
        sys.exit(
            f"recur-tune: storage: this node does not see {folder.path}; give --results on storage that all share."
        )
    os.environ.update(folder.environment())
    try:
        if part == "guest":
            with suppress(EndedEarly):
                visit(folder, Allocation.current(), signals, warning=float(sys.argv[3]))
        else:
            host(folder, Allocation.current(), signals, may_go_on=part == "host")
    except UserError as error:
        sys.exit(f"recur-tune: {error}")


def host(folder: SlurmFolder, allocation: Allocation, signals: Signals, may_go_on: bool) -> None:
    """Run the search on all nodes; what is left to do then goes to another allocation."""
    say(f"job {allocation.job} on {', '.join(allocation.nodes)}")
    folder.note(allocation.job, "begun", nodes=list(allocation.nodes))
    folder.withdraw()
    code: int | None
    try:
        with Steps(folder, allocation.job, lambda: signals.any) as steps:
            steps.start(allocation.first, "head")
            head = steps.wait_for_head()
            for node in allocation.nodes[1:]:
                steps.start(node, head.address)
            steps.wait_for_all(head)
            say(f"Ray is up on {len(allocation.nodes)} nodes at {head.address}")
            with _mlflow(folder, head):
                code = _run_search(folder, head, signals)
            folder.withdraw()  # before the nodes go: who looks for the cluster must not find a dying one
    except EndedEarly:
        say("the allocation ends before all nodes are up")
        code = None
    except UserError:
        folder.note(allocation.job, "over")
        raise
    finally:
        folder.withdraw()
    if signals.ended:
        return  # SLURM knows whether it comes back
    by_somebody = code in (_ENDED, _INTERRUPTED) and not signals.warned
    done = code is not None and folder.search.state().status == "finished"
    if by_somebody or done or code == UserError.exit_code:
        folder.note(allocation.job, "over")
        sys.exit(UserError.exit_code if code == UserError.exit_code else 0)
    go_on(folder, allocation.job, may_go_on)


def _run_search(folder: SlurmFolder, head: Head, signals: Signals) -> int:
    search = folder.search
    _outwait_the_dead(search, signals)
    words = [*folder.command, search.name, "--results", str(search.path.parent), "--address", head.address]
    process = subprocess.Popen(
        [sys.executable, "-m", "recur_tune.cli.main", *words], stdin=subprocess.DEVNULL, cwd=folder.working_directory
    )
    told = False
    while process.poll() is None and not signals.ended:
        if signals.warned and not told:
            process.send_signal(signal.SIGINT)  # trials save themselves
            told = True
        time.sleep(0.2)
    if signals.ended:
        _end(process, search)
    search.release_dead_lease()  # where it was killed: from the login node nobody could tell
    if signals.ended:
        return process.returncode
    if process.returncode == UserError.exit_code and not _is_up(head):
        say(f"Ray has ended; what it said last is in {folder.ray_logs(head.job, head.node)}")
        return _FAILED  # through nobody's fault: another allocation may fare better
    if process.returncode == Paused.exit_code and _is_up(head):
        say("the cluster is well, but not what the search writes to: no other allocation would help.")
        return UserError.exit_code
    return process.returncode


def _outwait_the_dead(search: SearchDirectory, signals: Signals) -> None:
    """An earlier allocation that was killed with its node has not given the search back; its lease runs out."""
    deadline = time.monotonic() + lease.TERM
    while search.is_running and time.monotonic() < deadline and not signals.any:
        time.sleep(0.5)


def _is_up(head: Head) -> bool:
    try:
        check_reachable(head.address)
    except UserError:
        return False
    return True


def _end(process: subprocess.Popen[bytes], search: SearchDirectory) -> None:
    """SLURM's last word was for every process of the job: what cannot be saved in seconds is left as it is.

    The search must not outlive this job, where the next allocation would find it at work.
    """
    with suppress(UserError):  # a full disk must not keep us here
        search.request_stop()  # not with a signal: the search has had SLURM's, and a second one means at once
    try:
        process.wait(_SECONDS_TO_SAVE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _mlflow(folder: SlurmFolder, head: Head) -> Iterator[None]:
    """MLflow's own server, where the runs lie in a file: its user sees them through a tunnel to this node."""
    uri = tracking_uri(folder.search)
    if not folder.profile.mlflow or is_server(uri):
        yield
        return
    log = folder.ray_logs(head.job, head.node) / "mlflow.log"
    with private_server(uri, folder.profile.scratch_folder, log) as (_, socket):
        folder.publish(replace(head, mlflow=str(socket)))
        yield


def visit(folder: SlurmFolder, allocation: Allocation, signals: Signals, warning: float) -> None:
    """Lend these nodes to the search wherever its cluster is, until it or this allocation ends."""
    say(f"job {allocation.job} lends {', '.join(allocation.nodes)}")
    while not signals.any and _search_lives(folder):
        head = folder.head
        if head is None:
            time.sleep(_SECONDS_BETWEEN_QUESTIONS)
            continue
        with Steps(folder, allocation.job, lambda: signals.any) as steps:
            for node in allocation.nodes:
                steps.start(node, head.address)
            steps.wait_for_all(head)
            say(f"joined {head.address}")
            while steps.any_left and _same_cluster(folder.head, head) and not signals.any:
                time.sleep(0.5)
            if signals.warned:
                drain(folder, head, allocation.nodes, warning, lambda: signals.ended)
        while _same_cluster(folder.head, head) and _search_lives(folder) and not signals.any:
            time.sleep(_SECONDS_BETWEEN_QUESTIONS)  # its head is gone and has not been able to say so


def _same_cluster(one: Head | None, other: Head) -> bool:
    return one is not None and one.address == other.address


def _search_lives(folder: SlurmFolder) -> bool:
    return not folder.is_over and any(kind == "search" for kind, _ in folder.living_jobs())


if __name__ == "__main__":
    main()
