"""A command of ours in a process of its own, out of the fork server."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

from tests.forkserver import COMMAND
from tests.handover import SERVER
from tests.waiting import PATIENCE, until

CHECKOUT = Path(__file__).parents[1]


class Command:
    """`recur-tune WORDS`, started; as a with block, it is killed at the end if it still runs."""

    def __init__(
        self, *words: object, server: Path | None = None, env: Mapping[str, str] | None = None,
        cwd: Path | None = None, user: str | None = None, beside: int | None = None,
    ) -> None:  # fmt: skip
        self.words = [*map(str, words)]
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        asked = {
            "words": [COMMAND, *self.words], "env": {**(os.environ if env is None else env)},
            "cwd": str(cwd or Path.cwd()), "user": user, "beside": beside,
        }  # fmt: skip
        self._keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._keeper.connect(str(server or own_server()))
        socket.send_fds(self._keeper, [json.dumps(asked).encode()], [self._out.fileno(), self._err.fileno()])
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


@cache
def own_server() -> Path:
    """That of all legs, where there are several; or one of this process, which ends with it."""
    if shared := os.environ.get(SERVER):
        place = Path(shared)
        until(place.exists, "the fork server")
    else:
        place = Path(tempfile.mkdtemp(prefix="recur-tune-forkserver-")) / "socket"
        process = start_server(place)
        until(place.exists, "the fork server", hopeless=lambda: process.poll() is not None)
    return place


def start_server(place: Path) -> subprocess.Popen[bytes]:
    """A fork server that will listen there, as soon as it has loaded everything and until this process ends."""
    words = [sys.executable, "-m", "tests.forkserver", str(place)]
    env = os.environ | {"PYTHONPATH": str(CHECKOUT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    env |= {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}  # as in conftest.py, for what is loaded here
    # Nobody ever writes to it: it ends when the pipe does, which is with this process, however that ends.
    process = subprocess.Popen(words, stdin=subprocess.PIPE, cwd=CHECKOUT, env=env, start_new_session=True)
    _KEPT.append(process)
    return process


_KEPT: list[subprocess.Popen[bytes]] = []  # for the pipes to them
