"""Check of a site: a short job in which every node probes network, storage, locks, scratch and GPUs, and all of them
sum a buffer as the workers of a trial would.

On the login node `look_at` submits it and reads its findings. In the allocation `main` runs on the first node and
starts itself on every node, where it calls `probe_node`; then `all_reduce` on every node.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_text
from recur_tune.common.parsing import parse, read_yaml, write_yaml
from recur_tune.search.record import lease
from recur_tune.sites.slurm import queue
from recur_tune.sites.slurm.allocation import Allocation, Grant, free_ports, own_address
from recur_tune.sites.slurm.finding import Finding, as_json, from_json
from recur_tune.sites.slurm.folder import tail
from recur_tune.sites.slurm.job_script import render
from recur_tune.sites.slurm.profile import Profile
from recur_tune.sites.slurm.steps import step_on
from recur_tune.sites.slurm.submit import file_system

_SECONDS_TO_PROBE = 40.0
_SECONDS_TO_SUM = 120.0  # with loading torch from a network file system
_LENGTH = 240.0  # of the job
_LEASE, _FLOCK = "lease", "flock"  # locks that the first node holds while the nodes probe


def look_at(profile: Profile, results: Path, say: Callable[[str], None]) -> list[Finding]:
    """Submit the job, wait for it and return its findings; its folder is removed."""
    results.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".check-", dir=results))
    try:
        write_yaml(folder / "profile.yaml", profile.model_dump())
        short = profile.model_copy(update={"time": _LENGTH, "warning": 10.0, "requeue": False})
        (folder / "job.sh").write_text(render(short, "check", folder, "check"))
        job = queue.submit(folder / "job.sh")
        try:
            return _await_findings(profile, folder, job, say)
        finally:
            with suppress(UserError):
                queue.cancel(job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _await_findings(profile: Profile, folder: Path, job: int, say: Callable[[str], None]) -> list[Finding]:
    told = ""
    while not (folder / "findings.json").exists():
        found = queue.find([job]).get(job)
        if found is None or not (found.is_waiting or found.is_running):
            time.sleep(1)  # a network file system shows files late
            if (folder / "findings.json").exists():
                break
            log = folder / f"job-{job}.log"
            said = tail(log) if log.exists() else f"it left no log in {folder}: do the nodes share that folder?"
            raise UserError(f"slurm: the job ended as {found.state if found else 'unknown'} without findings; {said}")
        if found.state != told:
            say(str(found))
            told = found.state
        time.sleep(0.5)
    findings = from_json((folder / "findings.json").read_text())
    # The findings were read here, so the login node shares the storage.
    return [*findings, Finding("login", "storage", True, f"sees what the nodes write in {folder.parent}")]


def main() -> None:
    """In the allocation: run the probes on all nodes, and write their findings."""
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        probe_node(folder, sys.argv[2], sys.argv[3])
        return
    allocation = Allocation.current()
    profile = parse(Profile, read_yaml(folder / "profile.yaml"))
    port, port_of_sums = free_ports(2, allocation.job)
    host = own_address(profile.interface, queue.controller())
    with (
        socket.create_server(("", port), backlog=len(allocation.nodes)), lease.held(folder / _LEASE),
        (folder / _FLOCK).open("w") as kernels,
    ):  # fmt: skip
        with suppress(OSError):
            fcntl.flock(kernels, fcntl.LOCK_EX)
        program = [sys.executable, "-m", "recur_tune.sites.slurm.check", str(folder)]
        _run_on_all({node: [*program, node, f"{host}:{port}"] for node in allocation.nodes}, _SECONDS_TO_PROBE)
    findings = [finding for node in allocation.nodes for finding in _findings_of(folder, node)]
    if len(allocation.nodes) > 1 and all(finding.good for finding in findings):
        findings += _sums(folder, allocation.nodes, f"{host}:{port_of_sums}")
    write_text(folder / "findings.json", as_json(findings))


def _run_on_all(programs: Mapping[str, list[str]], seconds: float) -> None:
    """Run a program on each node, and wait so long at most."""
    steps = [subprocess.Popen([*step_on(node), *program]) for node, program in programs.items()]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(step.poll() is None for step in steps):
        time.sleep(0.2)


def _findings_of(folder: Path, node: str) -> list[Finding]:
    try:
        return from_json((folder / f"{node}.json").read_text())
    except (OSError, ValueError):
        return [Finding(node, "storage", False, f"wrote nothing into {folder}: does it share that folder?")]


def _sums(folder: Path, nodes: Sequence[str], first: str) -> list[Finding]:
    program = [sys.executable, "-m", "recur_tune.sites.slurm.all_reduce", str(folder)]
    words = {node: [*program, node, str(rank), str(len(nodes)), first] for rank, node in enumerate(nodes)}
    _run_on_all(words, _SECONDS_TO_SUM)
    late = f"an all-reduce with {len(nodes) - 1} other nodes took longer than {_SECONDS_TO_SUM:.0f} s"
    findings = []
    for node in nodes:
        written = folder / f"{node}-sums.json"
        findings += from_json(written.read_text()) if written.exists() else [Finding(node, "sums", False, late)]
    return findings


def probe_node(folder: Path, node: str, first: str) -> None:
    """On one node: run all probes and write the findings."""
    profile = parse(Profile, read_yaml(folder / "profile.yaml"))
    findings = [
        _network(node, profile, first), _locks(node, folder), _granted(node, profile), _scratch(node, profile),
        _gpus(node, profile),
    ]  # fmt: skip
    write_text(folder / f"{node}.json", as_json(finding for finding in findings if finding))


def _network(node: str, profile: Profile, first: str) -> Finding:
    host, _, port = first.rpartition(":")
    try:
        address = own_address(profile.interface, host)
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, UserError) as error:
        return Finding(node, "network", False, f"cannot reach the first node at {first} ({error})")
    return Finding(node, "network", True, f"is {address} and reaches the first node at {host}")


def _locks(node: str, folder: Path) -> Finding:
    """The results' file system, and whether the first node's lease is seen here."""
    kind = file_system(folder)
    if not lease.is_held(folder / _LEASE):
        return Finding(node, "locks", False, f"{kind}: the lease of a search on the first node is not seen here")
    return Finding(node, "locks", True, f"{kind}: a search's lease holds between nodes; {_flock(folder / _FLOCK)}")


def _flock(file: Path) -> str:
    try:
        with file.open("rb") as kernels:
            fcntl.flock(kernels, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "so does the kernel's (flock)"
    except OSError as error:
        return f"the kernel's (flock) is not there ({error.strerror}), and not needed"
    return "the kernel's (flock) is each node's own, and not needed"


def _granted(node: str, profile: Profile) -> Finding:
    grant = Grant.from_environment(os.environ)
    enough = grant.gpus >= profile.gpus_per_node and grant.cpus >= (profile.cpus_per_node or 1)
    return Finding(node, "granted", enough, f"{grant.cpus} cores, {grant.gpus} GPUs")


def _scratch(node: str, profile: Profile) -> Finding:
    try:
        folder = profile.scratch_folder
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
        ports = free_ports(2, int(os.environ["SLURM_JOB_ID"]))
    except (OSError, UserError) as error:
        return Finding(node, "scratch", False, str(error))
    return Finding(node, "scratch", True, f"{folder}, {free / 2**30:.0f} GiB free, ports {ports} free")


def _gpus(node: str, profile: Profile) -> Finding | None:
    """GPUs that torch sees; only where the profile requests some."""
    if not profile.gpus_per_node:
        return None
    import torch

    seen = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(number) for number in range(seen))
    good = seen >= profile.gpus_per_node
    return Finding(node, "torch", good, names or "sees no GPU; is this a CPU build of torch, or no driver on the node?")


if __name__ == "__main__":
    main()
