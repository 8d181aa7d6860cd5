"""Ray on one node of an allocation: start it, watch it, and clean up when it ends.

Runs as a step of the job, one per node:  python -m recur_tune.sites.slurm.node SEARCH_DIRECTORY JOB NODE head|HOST:PORT
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import psutil

from recur_tune.cluster import command as ray_command
from recur_tune.cluster.connection import NODE_NAME, START_UP, START_UPS, TOO_SLOW
from recur_tune.common.collective_timeout import COLLECTIVE_TIMEOUT
from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.allocation import Grant, free_ports, own_address
from recur_tune.sites.slurm.fabric import network_between_workers
from recur_tune.sites.slurm.folder import Head, SlurmFolder
from recur_tune.sites.slurm.profile import Profile
from recur_tune.sites.slurm.requeue import requeue_if_first_node_died
from recur_tune.sites.slurm.scratch import own_scratch

_MARK = "RECUR_TUNE_MARK"  # a variable that identifies our processes, whatever their parent
_OBJECT_STORE = 128 * 2**20  # bytes; trials exchange files, few objects
_SECONDS_TO_LISTEN = 5.0  # for the rest of an ended process's output; its children may hold the pipe open

_PORTS_OF_A_NODE = (
    "node-manager-port", "object-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
)  # fmt: skip
_DASHBOARD_HOSTS = {"localhost": "127.0.0.1", "network": "0.0.0.0"}

# Notice a lost node in seconds, let a cut-off one give up soon, and stop at once when the job ends: SLURM kills half a
# minute after its first signal.
_SETTINGS = {
    **START_UP,
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}


def main() -> None:
    """Run Ray on this node until Ray ends or this step is told to stop."""
    path, job, node, place = sys.argv[1:]
    signal.signal(signal.SIGTERM, _leave)
    folder = SlurmFolder(SearchDirectory(Path(path)))
    try:
        code = run_ray(folder, int(job), node, place)
        if place != "head" and int(job) in folder.jobs("search"):  # a guest's job has its own script
            requeue_if_first_node_died(folder, int(job), node, place, _told_to_leave)
        sys.exit(code)
    except UserError as error:
        sys.exit(f"recur-tune: node {node}: {error}")


def _leave(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise SystemExit(0)


def run_ray(folder: SlurmFolder, job: int, node: str, place: str) -> int:
    """Start Ray as the head, or as a worker of the head at HOST:PORT, and wait for its end."""
    if not folder.path.is_dir():
        raise UserError(
            f"storage: {node} does not see {folder.path}; searches must lie on storage that all nodes share."
        )
    profile, mark = folder.profile, uuid.uuid4().hex
    scratch = own_scratch(profile.scratch_folder)
    try:
        towards = queue.controller() if place == "head" else place.rpartition(":")[0]
        address = own_address(profile.interface, towards)
        environment = {
            COLLECTIVE_TIMEOUT: str(profile.patience), **network_between_workers(profile, address),
            **os.environ, **_SETTINGS, **folder.environment(),
            _MARK: mark, NODE_NAME: node, "TMPDIR": str(scratch),
            "RAY_enable_metrics_collection": str(int(profile.metrics)),
        }  # fmt: skip
        words, head = _ray_start(profile, job, node, address, place, scratch)
        for _ in range(START_UPS):
            process = RayStart(words, environment)
            if head:
                _wait_for_port(process, head.address)
                folder.publish(head)
            while process.poll() is None and not _told_to_leave(0.5):
                pass
            if not process.was_too_slow:
                break
            print(f"{node}: Ray did not start within its own time limit; trying again.", flush=True)
            stop_marked(mark)
        return process.returncode or 0
    finally:
        stop_marked(mark)
        folder.keep_ray_logs(job, node, scratch / "session_latest" / "logs")
        shutil.rmtree(scratch, ignore_errors=True)


class RayStart(subprocess.Popen[str]):
    """`ray start`, whose stderr is printed and read."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        super().__init__(words, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._too_slow = False
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self.stderr is not None
        for line in self.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            self._too_slow |= TOO_SLOW in line

    @property
    def was_too_slow(self) -> bool:
        """Whether it failed by its own time limit: the node may only be busy."""
        if not self.poll():  # it runs, or has ended well
            return False
        self._listening.join(_SECONDS_TO_LISTEN)
        return self._too_slow


def _told_to_leave(seconds: float) -> bool:
    """Whether the process that started this step closes its input, or dies, within these seconds."""
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1024)


def _ray_start(
    profile: Profile, job: int, node: str, address: str, place: str, scratch: Path
) -> tuple[list[str], Head | None]:
    """The command that starts Ray here and, for a head, its addresses."""
    grant = Grant.from_environment(os.environ)
    store, client, dashboard, *own = free_ports(3 + len(_PORTS_OF_A_NODE), job)
    options: dict[str, object] = {
        "node-ip-address": address, "node-name": node, "temp-dir": scratch,
        "num-cpus": grant.cpus, "num-gpus": grant.gpus, "object-store-memory": _OBJECT_STORE,
        **dict(zip(_PORTS_OF_A_NODE, own, strict=True)),
        "include-log-monitor": False,  # it would send workers' output to a driver that ignores it
    }  # fmt: skip
    if grant.memory:
        options["memory"] = grant.memory
    head = None
    if place == "head":
        shown = profile.dashboard != "off"
        head = Head(job, node, f"{address}:{store}", client, dashboard if shown else None)
        options |= {"head": None, "port": store, "ray-client-server-port": client, "include-dashboard": shown}
        options |= {"dashboard-host": _DASHBOARD_HOSTS[profile.dashboard], "dashboard-port": dashboard} if shown else {}
    else:
        options["address"] = place
    words = [sys.executable, "-m", ray_command.__name__, "start", "--block", "--disable-usage-stats"]
    return words + [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()], head


def _wait_for_port(process: subprocess.Popen[str], address: str) -> None:
    host, _, port = address.rpartition(":")
    while process.poll() is None:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise UserError("Ray's head did not start; its error is above.")


def stop_marked(mark: str, patience: float = 3.0) -> None:
    """End every process with the mark, and no other: other users' processes have the same names."""
    ours = _marked(mark)
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(list(ours), timeout=patience)
    left = list({*left, *_marked(mark)})
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=patience)  # one that still runs may write


def _marked(mark: str) -> set[psutil.Process]:
    """Processes with the mark, and their children: a Ray worker's title overwrites its environment."""
    carriers = [process for process in psutil.process_iter() if _carries(process, mark)]
    found = set(carriers)
    for carrier in carriers:
        with suppress(psutil.Error):
            found |= set(carrier.children(recursive=True))
    return found


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark
    except (psutil.Error, OSError):
        return False  # another user's, or gone


if __name__ == "__main__":
    main()
