"""The ground of a soak: a SLURM of three nodes on a disk of its own, an MLflow server, and ways to spoil each."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.command import CHECKOUT
from tests.database import empty_database
from tests.disks import mounted_disk
from tests.sites.slurm.conftest import open_to_all
from tests.sites.slurm.mini_slurm import NODES, MiniSlurm
from tests.sites.slurm.site import Site
from tests.waiting import until

_DISK = "2g"
_LEFT_TO_OTHERS = 16 << 20  # bytes, more than anybody writes in the moment that it takes to fill the rest
_PORT = 5000
_NO_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # they would take more processes than the server


class Ground:
    """Where searches run, and what faults are done to."""

    def __init__(self, slurm: MiniSlurm) -> None:
        self.slurm, self.disk = slurm, slurm.shared
        self.site = Site(slurm, forked_workers=False)
        self.database = empty_database(self.disk / "mlflow.db")
        self.tracking = f"http://10.77.0.254:{_PORT}"
        self._library, self._control = self._build()
        self._server: subprocess.Popen[str] | None = None
        self.start_mlflow()

    def profile(self) -> Path:
        """Two nodes of the three; every process of a search has the library that spoils clock and disk."""
        setup = [f"export LD_PRELOAD='{self._library}' SOAK_CONTROL='{self._control}'"]
        return self.site.profile(nodes=2, setup=setup, allocations=1000)

    def _build(self) -> tuple[Path, Path]:
        library, control = self.disk / "place.so", self.disk / "control"
        source = Path(__file__).with_name("place.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        control.mkdir()
        for node in NODES:
            (control / node).write_bytes(bytes(16))
        return library, control

    def spoil(self, node: str, seconds: int = 0, microseconds: int = 0) -> None:
        """Set a node's wall clock wrong, or its shared disk slow, for the processes of searches."""
        with (self._control / node).open("r+b") as file:  # which they have mapped
            file.write(struct.pack("qq", seconds, microseconds))

    @contextmanager
    def ballast(self, room: int) -> Iterator[None]:
        """Fill the disk, but for so many bytes."""
        file, block = self.disk / "ballast", bytes(1 << 16)
        free = os.statvfs(self.disk)
        try:
            with file.open("wb", buffering=0) as ballast:
                os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_frsize - _LEFT_TO_OTHERS)
                ballast.seek(0, os.SEEK_END)
                with suppress(OSError):  # others write too: how much is left shows at the end
                    while True:
                        ballast.write(block)
                ballast.truncate(ballast.tell() - room)
            yield
        finally:
            file.unlink(missing_ok=True)

    def start_mlflow(self) -> None:
        """MLflow's server on the login node, and wait until it listens."""
        words = [
            "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self.database}", "--workers", "1",
            "--artifacts-destination", str(self.disk / "mlartifacts"), "--host", "0.0.0.0", "--port", str(_PORT),
            "--allowed-hosts", "*",
        ]  # fmt: skip
        with (self.disk / "mlflow.log").open("a") as log:
            server = self.slurm.popen(sys.executable, *words, env=_NO_JOBS, stdout=log, stderr=log)
        self._server = server
        listens = ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{_PORT}"]
        until(
            lambda: self.slurm.run(*listens, check=False).returncode == 0, "MLflow's server",
            hopeless=lambda: server.poll() is not None, pause=0.5,
        )  # fmt: skip

    def kill_mlflow(self) -> None:
        """At once, whatever it is doing."""
        assert self._server is not None
        for process in psutil.Process(self._server.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._server.wait()

    def processes(self, node: str) -> list[psutil.Process]:
        """All that run on a node, which is known by its process table."""
        with suppress(FileNotFoundError):  # the node is down
            table = os.readlink(f"/proc/{self.slurm.pid(node)}/ns/pid")
            return [process for process in psutil.process_iter() if _table_of(process) == table]
        return []

    def is_down(self, node: str) -> bool:
        """Whether SLURM has noticed that a node is gone."""
        return "down" in self.slurm.run("sinfo", "--noheader", f"--nodes={node}", "--format=%T").stdout

    def revive(self, *nodes: str) -> None:
        """Boot killed nodes once SLURM has missed them: what ran there is not to be taken for running."""
        until(lambda: all(self.is_down(node) for node in nodes), f"SLURM misses {nodes}", pause=0.5)
        for node in nodes:
            self.slurm.revive_node(node)


@contextmanager
def ground() -> Iterator[Ground]:
    """One that leaves nothing on the machine, however the block ends."""
    with (
        tempfile.TemporaryDirectory(prefix="recur-tune-soak-") as folder,
        open_to_all(CHECKOUT),
        mounted_disk(Path(folder) / "shared", _DISK) as disk,
        MiniSlurm(disk) as slurm,
    ):
        yield Ground(slurm)


def _table_of(process: psutil.Process) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{process.pid}/ns/pid")
    return ""
