"""A command of ours in a process of its own, forked from one that has loaded torch, transformers and MLflow already.

Loading them takes seconds of a core, and tests start dozens of commands. Otherwise it is what a shell would start: it
has its own process number, session, signals, environment and files to print to.

    python -m tests.command SOCKET      # the process that is forked
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pwd
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import recur_tune.cli.main
from tests.waiting import PATIENCE, until

CHECKOUT = Path(__file__).parents[1]


class Command:
    """`recur-tune WORDS`, started; as a with block, it is killed at the end if it still runs."""

    def __init__(
        self, *words: object, server: Path | None = None, env: Mapping[str, str] | None = None,
        cwd: Path | None = None, user: str | None = None,
    ) -> None:  # fmt: skip
        self.words = [*map(str, words)]
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        asked = {"words": self.words, "env": {**(os.environ if env is None else env)}, "cwd": str(cwd or Path.cwd())}
        self._keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._keeper.connect(str(server or _own_server().place))
        request = json.dumps(asked | {"user": user}).encode()
        socket.send_fds(self._keeper, [request], [self._out.fileno(), self._err.fileno()])
        self.pid = int(self._keeper.recv(100))
        self.code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended since
                self._keeper.send(str(int(number)).encode())

    def poll(self) -> int | None:
        """The exit code, where there is one yet; a signal's number below nought."""
        return self._code_within(0.0)

    def wait(self) -> int:
        """The exit code, when it has ended."""
        code = self._code_within(PATIENCE)
        assert code is not None, f"not ended in {PATIENCE:.0f} s: {self._story()}"
        return code

    def until(self, happened: Callable[[], Any], what: str) -> None:
        """Wait for something that it does."""
        until(happened, what, self._story, hopeless=lambda: self.poll() is not None)

    @property
    def out(self) -> str:
        """What it has printed on stdout so far."""
        return _read(self._out.fileno())

    @property
    def err(self) -> str:
        """And on stderr."""
        return _read(self._err.fileno())

    def _story(self) -> str:
        return f"recur-tune {' '.join(self.words)} (exit code: {self.code})\n{self.out}{self.err}"

    def _code_within(self, seconds: float) -> int | None:
        if self.code is None and select.select([self._keeper], [], [], seconds)[0]:
            self.code = int(self._keeper.recv(100) or -signal.SIGKILL)  # without a word: its keeper was killed
            self._keeper.close()
        return self.code


def _read(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")


@dataclass(frozen=True)
class _Server:
    place: Path
    process: subprocess.Popen[bytes]


@cache
def _own_server() -> _Server:
    """The one of this process, which ends with it."""
    place = Path(tempfile.mkdtemp(prefix="recur-tune-commands-")) / "socket"
    words = [sys.executable, "-m", "tests.command", str(place)]
    # Nobody ever writes to it: it ends when the pipe does, which is with this process, however that ends.
    process = subprocess.Popen(words, stdin=subprocess.PIPE, cwd=CHECKOUT, start_new_session=True)
    wait_for_server(place, lambda: process.poll() is None)
    return _Server(place, process)


def wait_for_server(place: Path, alive: Callable[[], bool]) -> None:
    """Until commands can be forked there."""
    until(place.exists, "the process that commands are forked from", hopeless=lambda: not alive())


def _be_forked(place: Path) -> list[str]:
    """Fork for whoever asks; returns in the forked process alone, with the words of its command."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(f"{place}.new")
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
    """Fork the command and stay beside it, to pass on signals and to say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, _, _ = socket.recv_fds(guest, 1 << 20, 2)
    asked = json.loads(message)
    command = os.fork()
    if command == 0:
        guest.close()
        _become(asked, files)
        return asked["words"]
    guest.send(str(command).encode())
    ended = os.pidfd_open(command)
    while True:
        ready, _, _ = select.select([guest, ended], [], [])
        if ended in ready:
            guest.send(str(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])).encode())
            os._exit(0)
        os.kill(command, int(guest.recv(100) or signal.SIGKILL))  # without a word: nobody is there any more


def _become(asked: dict[str, Any], files: list[int]) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, file in zip((1, 2), files, strict=True):
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


# What commands load; not Ray, which reads its environment when it is loaded.
_PRELOADED = (
    "matplotlib.backends.backend_agg", "mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking", "moocore", "optuna",
    "pandas", "pyarrow", "sklearn.gaussian_process", "torch", "recur_tune.cost.memory", "recur_tune.tracking.plots",
    "recur_tune.trial.setup",
)  # fmt: skip

if __name__ == "__main__":
    for module in _PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # or a collection in a forked process would write to, and so copy, all of it
    sys.argv = ["recur-tune", *_be_forked(Path(sys.argv[1]))]
    if threads := os.environ.get("OMP_NUM_THREADS"):  # which torch reads when it is loaded
        sys.modules["torch"].set_num_threads(int(threads))
    __package__ = ""  # or `--help` called it after this file
    recur_tune.cli.main.main()
