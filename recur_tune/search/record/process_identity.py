"""The identity of a process across machines, and whether it is still alive."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ProcessIdentity:
    """A process as it can be recognised from another machine, and after its end."""

    host: str
    machine: str  # the machine id; empty where there is none, as in many containers
    boot: str
    processes: str  # the PID namespace, of which a container has its own
    process: int
    born: str  # its start time: process ids are reused
    user: int
    job: str = ""
    restarts: int = 0  # of the job, which keeps its id when SLURM requeues it

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The identity of this process."""
        return cls(
            socket.gethostname(), _line("/etc/machine-id"), _boot(), _process_table(), os.getpid(), _birth(os.getpid()),
            os.getuid(), os.environ.get("SLURM_JOB_ID", ""), int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        )  # fmt: skip

    def is_alive(self) -> bool | None:
        """Whether the process runs; None where that cannot be known from here."""
        here = ProcessIdentity.current()
        if (self.boot, self.processes) == (here.boot, here.processes):
            if _birth(self.process) == self.born:
                return True
            return False if self.user == here.user else None  # other users' processes may be hidden
        if self.machine and (self.host, self.machine) == (here.host, here.machine) and self.boot != here.boot:
            return False  # the machine has been rebooted
        if self.job and self.job == here.job and self.restarts < here.restarts:
            return False  # SLURM requeues a job only after all of its processes ended
        return None

    def __str__(self) -> str:
        return f"{self.host}, process {self.process}{f', job {self.job}' if self.job else ''}"


def _boot() -> str:
    return _line("/proc/sys/kernel/random/boot_id") or f"{psutil.boot_time():.0f}"


def _process_table() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _birth(process: int) -> str:
    """The start time of a process; empty where it has ended. On Linux it counts from the boot, not by the clock."""
    if sys.platform == "linux":
        state, *rest = _line(f"/proc/{process}/stat").rpartition(")")[2].split() or ["X"]
        return "" if state in "ZX" else rest[18]
    try:
        return f"{psutil.Process(process).create_time():.2f}"
    except psutil.Error:
        return ""


def _line(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except OSError:
        return ""
