"""The job of an allocation: a Ray cluster on its nodes with the search, or nodes that join a running search.

    python -m recur_tune.sites.slurm.job SEARCH_DIRECTORY host | here | guest SECONDS_OF_WARNING

SIGUSR1, the warning before the time limit, saves the trials and requeues the job. SIGTERM saves what it can in seconds.
The next allocation resumes from the search directory.
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

from recur_tune.cluster.connection import check_reachable
from recur_tune.common.errors import Paused, UserError
from recur_tune.common.units import counted
from recur_tune.search.record import lease
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.tracking_place import is_server, tracking_uri
from recur_tune.sites.slurm.allocation import Allocation
from recur_tune.sites.slurm.drain import drain
from recur_tune.sites.slurm.folder import Head, SlurmFolder
from recur_tune.sites.slurm.requeue import requeue_or_resubmit, say
from recur_tune.sites.slurm.steps import EndedEarly, Steps
from recur_tune.tracking.mlflow.server import private_server

_ENDED, _FAILED, _INTERRUPTED = 0, 1, 130  # exit codes of `recur-tune resume`: finished or paused, a fault, at once
_SECONDS_BETWEEN_POLLS = 3.0  # between questions to SLURM, which all users share
_SECONDS_TO_SAVE = 4.0  # after SIGTERM; SIGKILL follows in half a minute, or sooner on some sites


@dataclass
class Signals:
    """Signals that SLURM has sent so far."""

    warned: bool = False
    ended: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Record a signal; the main loop polls."""
        self.warned |= number == signal.SIGUSR1
        self.ended |= number != signal.SIGUSR1
        say(f"SLURM sent {signal.Signals(number).name}")

    @property
    def any(self) -> bool:
        """Whether the end is near, in either way."""
        return self.warned or self.ended


def main() -> None:
    """Run as host or guest, as the second argument says."""
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
                lend_nodes(folder, Allocation.current(), signals, warning=float(sys.argv[3]))
        else:
            run_host(folder, Allocation.current(), signals, may_requeue=part == "host")
    except UserError as error:
        sys.exit(f"recur-tune: {error}")


def run_host(folder: SlurmFolder, allocation: Allocation, signals: Signals, may_requeue: bool) -> None:
    """Run the search on all nodes, and requeue the job if it is not finished."""
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
            folder.note(allocation.job, "up")
            say(f"Ray is up on {counted(len(allocation.nodes), 'node')} at {head.address}")
            with _mlflow(folder, head):
                code = _run_search(folder, head, signals)
            folder.withdraw()  # before the nodes stop, so that no guest joins a cluster that ends
    except EndedEarly:
        say("the allocation ends before all nodes are up")
        code = None
    except UserError:
        folder.note(allocation.job, "over")
        raise
    finally:
        folder.withdraw()
    if signals.ended:
        return  # SLURM decides whether to requeue
    by_user = code in (_ENDED, _INTERRUPTED) and not signals.warned
    done = code is not None and folder.search.state().status == "finished"
    if by_user or done or code == UserError.exit_code:
        folder.note(allocation.job, "over")
        sys.exit(UserError.exit_code if code == UserError.exit_code else 0)
    requeue_or_resubmit(folder, allocation.job, may_requeue)


def _run_search(folder: SlurmFolder, head: Head, signals: Signals) -> int:
    search = folder.search
    _await_lease_expiry(search, signals)
    words = [*folder.command, search.name, "--results", str(search.path.parent), "--address", head.address]
    process = subprocess.Popen(
        [sys.executable, "-m", "recur_tune.cli.main", *words], stdin=subprocess.DEVNULL, cwd=folder.working_directory
    )
    told = False
    while process.poll() is None and not signals.ended:
        if signals.warned and not told:
            process.send_signal(signal.SIGINT)  # saves the trials
            told = True
        time.sleep(0.2)
    if signals.ended:
        _end(process, search)
    search.release_dead_lease()  # if it was killed, which the login node cannot see
    if signals.ended:
        return process.returncode
    if process.returncode == UserError.exit_code and not _is_up(head):
        say(f"Ray has ended; what it said last is in {folder.ray_logs(head.job, head.node)}")
        return _FAILED  # another allocation may succeed
    if process.returncode == Paused.exit_code and _is_up(head):
        if not _cannot_write(search):
            return _ENDED  # it was asked to pause
        say("the cluster is up, but the search cannot write its results: another allocation would not help.")
        return UserError.exit_code
    return process.returncode


def _cannot_write(search: SearchDirectory) -> bool:
    """Whether a search ended because of its storage, and not on request: then its log says so, or has no end."""
    try:
        state = search.state()
    except UserError:
        return True
    return bool(state.fault) or state.status != "paused"


def _await_lease_expiry(search: SearchDirectory, signals: Signals) -> None:
    """Wait for the lease of an earlier allocation that was killed with its node."""
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
    """End the search after SIGTERM, with a few seconds to save.

    It must not outlive this job: the next allocation would find it running.
    """
    with suppress(UserError):  # a full disk must not delay the end
        search.request_stop()  # not by a signal: the search may not have got SLURM's
    try:
        process.wait(_SECONDS_TO_SAVE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _mlflow(folder: SlurmFolder, head: Head) -> Iterator[None]:
    """MLflow's server where the runs are a local database; the user reaches it through a tunnel."""
    uri = tracking_uri(folder.search)
    if not folder.profile.mlflow or is_server(uri):
        yield
        return
    log = folder.ray_logs(head.job, head.node) / "mlflow.log"
    with private_server(uri, folder.profile.scratch_folder, log) as (_, socket):
        folder.publish(replace(head, mlflow=str(socket)))
        yield


def lend_nodes(folder: SlurmFolder, allocation: Allocation, signals: Signals, warning: float) -> None:
    """Join these nodes to the search's cluster until the search or this allocation ends."""
    say(f"job {allocation.job} lends {', '.join(allocation.nodes)}")
    while not signals.any and _search_lives(folder):
        head = folder.head
        if head is None:
            time.sleep(_SECONDS_BETWEEN_POLLS)
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
            time.sleep(_SECONDS_BETWEEN_POLLS)  # the head died without removing its address


def _same_cluster(one: Head | None, other: Head) -> bool:
    return one is not None and one.address == other.address


def _search_lives(folder: SlurmFolder) -> bool:
    if folder.is_over:
        return False
    try:
        return any(kind == "search" for kind, _ in folder.living_jobs())
    except UserError:  # the controller restarts; the search runs on without it
        return True


if __name__ == "__main__":
    main()
