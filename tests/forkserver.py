"""A fork server: processes that have loaded torch, transformers and MLflow before they begin.

Loading them takes seconds of a core, and tests start dozens of commands and of Ray's workers, and are themselves in
processes that need them. Otherwise each is what a shell, Ray or pytest would have started: it has its own process
number, session, signals, environment and files to read and to print to, and it is where it was asked for: as that user,
in those namespaces.

    python -m tests.forkserver SOCKET      # the process that is forked
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pwd
import random
import runpy
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

COMMAND = "recur-tune"  # the first word of a command of ours; any other is what Python would be given

# What is loaded; not Ray, which finds no cluster after a fork, nor MLflow's server, which reads its environment then.
_PRELOADED = (
    "attr", "flask", "fsspec", "jsonschema", "matplotlib.backends.backend_agg", "mlflow.pyfunc",
    "mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking", "moocore", "optuna", "pandas", "pyarrow",
    "sklearn.gaussian_process", "torch", "uvicorn", "wcwidth",
    "recur_tune.cli.main", "recur_tune.cost.training_memory", "recur_tune.report.front_files",
    "recur_tune.search.run.trainable", "recur_tune.training.setup",
)  # fmt: skip
_NAMESPACES = ("net", "uts", "ipc", "pid", "mnt")


def serve(place: Path) -> list[str]:
    """Fork for whoever asks; returns in the forked process alone, with the words that it is to run."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(f"{place}.new")
        os.chmod(f"{place}.new", 0o666)  # a site has users
        door.listen()
        os.rename(f"{place}.new", place)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need no one to wait for them
        while True:
            ready, _, _ = select.select([door, sys.stdin], [], [])
            if sys.stdin in ready:  # whose end is that of the tests
                os._exit(0)
            guest, _ = door.accept()
            if os.fork() == 0:
                door.close()
                return _keep(guest)
            guest.close()


def _keep(guest: socket.socket) -> list[str]:
    """Fork what was asked for and stay beside it, to pass on signals and to say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, _, _ = socket.recv_fds(guest, 1 << 20, 3)
    asked = json.loads(message)
    asker = _asker(guest)
    priority, of_session = os.getpriority(os.PRIO_PROCESS, asker), _session_priority(asker)
    doors = _other_namespaces(asked.get("beside") or asker)
    if "pid" in doors:
        _enter(doors.pop("pid"))  # which is where children are
    forked = os.fork()
    if forked == 0:
        guest.close()
        for door in doors.values():
            _enter(door)
        _become(asked, files)
        os.setpriority(os.PRIO_PROCESS, 0, priority)  # a leg that steps back does so with all that it starts
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(of_session)
        return asked["words"]
    guest.send(str(forked).encode())
    ended = os.pidfd_open(forked)
    while True:
        ready, _, _ = select.select([guest, ended], [], [])
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
            with suppress(BrokenPipeError):  # whoever asked for it was killed, and it was killed for that
                guest.send(str(code).encode())
            os._exit(0)
        os.kill(forked, int(guest.recv(100) or signal.SIGKILL))  # without a word: nobody is there any more


def _asker(guest: socket.socket) -> int:
    """The process at the other end, as this one sees it, whatever namespace that is in."""
    process, _, _ = struct.unpack("3i", guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return process


def _session_priority(process: int) -> str:
    """Where Linux shares the cores among sessions first."""
    with suppress(OSError):
        return Path(f"/proc/{process}/autogroup").read_text().rpartition(" nice ")[2]
    return "0"


def _other_namespaces(process: int) -> dict[str, int]:
    """Those of a process that are not this one's, each as an open file."""
    pairs = {name: (f"/proc/{process}/ns/{name}", f"/proc/self/ns/{name}") for name in _NAMESPACES}
    return {
        name: os.open(there, os.O_RDONLY)
        for name, (there, here) in pairs.items()
        if os.readlink(there) != os.readlink(here)
    }


def _enter(namespace: int) -> None:
    """setns(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


def _become(asked: dict[str, Any], files: list[int]) -> None:
    os.setsid()
    if len(files) < 3:
        files = [os.open(os.devnull, os.O_RDONLY), *files]
    for stream, file in enumerate(files):
        os.dup2(file, stream)
        os.close(file)
    if asked["user"]:
        user = pwd.getpwnam(asked["user"])
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    random.seed()


def _run(words: list[str]) -> None:
    sys.argv = words
    if threads := os.environ.get("OMP_NUM_THREADS"):  # which torch reads when it is loaded
        sys.modules["torch"].set_num_threads(int(threads))
    if words[0] == "-m" and words[1] == "recur_tune.cli.main":
        sys.argv = words = [COMMAND, *words[2:]]
    if words[0] == COMMAND:
        globals()["__package__"] = ""  # or `--help` called it after this file
        sys.modules["recur_tune.cli.main"].main()
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[:2] == ["-u", "-c"]:  # as execnet starts the processes that pytest hands tests to
        exec(words[2], {"__name__": "__main__"})
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    for module in _PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # or a collection in a forked process would write to, and so copy, all of it
    _run(serve(Path(sys.argv[1])))
