"""MLflow's own server, on this machine alone, over the database of a results folder."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from recur_tune.common.errors import UserError
from recur_tune.common.localhost import free_ports_from, last_log_line, port_was_taken, wait_until_up
from recur_tune.search.record.tracking_place import FILES
from recur_tune.tracking.mlflow.calls import ENVIRONMENT
from recur_tune.tracking.mlflow.database import REBUILD, is_damaged

# Its job queue is for evaluating prompts, and would start more processes than the server itself.
_SETTINGS = {**ENVIRONMENT, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}

_LONGEST_SOCKET = 107  # letters of a path, as the kernel has it


@contextmanager
def mlflow_server(uri: str, place: int | Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server for the runs at `uri` on a port or a socket, until the block ends; its output goes to a file."""
    words = ["server", "--backend-store-uri", uri, "--workers", "1"]
    if isinstance(place, Path):
        words += ["--uvicorn-opts", shlex.join(["--uds", str(place)])]
    else:
        words += ["--host", "127.0.0.1", "--port", str(place)]
    if uri.startswith("sqlite:///"):  # MLflow would put files that it is sent into the current folder
        words += ["--artifacts-destination", str(Path(uri.removeprefix("sqlite:///")).absolute().parent / FILES)]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words], stdout=output, stderr=subprocess.STDOUT,
            env=os.environ | _SETTINGS, start_new_session=True,  # Ctrl-C goes to this process, which ends it
        )  # fmt: skip
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)  # its workers are in its session
            server.wait()


@contextmanager
def answering_server(uri: str, wanted: int, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server that answers on the wanted port or the next free one; a failure says why."""
    for port in free_ports_from(wanted):
        with mlflow_server(uri, port, log) as server:
            if wait_until_up(server, port, "/health"):
                yield server, port
                return
        if not port_was_taken(log):
            break
    raise _refusal(uri, log)


@contextmanager
def private_server(uri: str, parent: Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A server on a socket in a folder below `parent` that only its user can enter.

    MLflow lets every client read and change everything, and all users of a machine reach its localhost.
    """
    with TemporaryDirectory(prefix="rt", dir=parent) as folder:  # made for its owner alone
        socket = Path(folder) / "mlflow"
        if len(str(socket)) > _LONGEST_SOCKET:
            raise UserError(f"TMPDIR: {parent} is too long for a socket in it; choose a shorter one.")
        with mlflow_server(uri, socket, log) as server:
            yield server, socket


@contextmanager
def answering_private_server(uri: str, parent: Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The same once it answers; a failure says why."""
    with private_server(uri, parent, log) as (server, socket):
        if not wait_until_up(server, socket, "/health"):
            raise _refusal(uri, log)
        yield server, socket


def _refusal(uri: str, log: Path) -> UserError:
    said = log.read_text(errors="replace")
    if is_damaged(said):
        return UserError(f"MLflow's database {uri} is damaged; {REBUILD}.")
    if "out-of-date database schema" in said:
        return UserError(
            f"MLflow's database {uri} is of an older version; `mlflow db upgrade {uri}` brings it up to date."
        )
    return UserError(f"MLflow's server did not start {last_log_line(log)}.")
