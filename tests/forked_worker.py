"""Ray's workers out of the fork server: a trial then starts in a second, not in seven.

Ray itself has the two hooks that this takes: a driver's runtime environment can be changed on its way to the cluster,
and may name what starts a worker in place of Python.

    python tests/forked_worker.py SOCKET FILE ARGUMENTS…      # as Python would run that file
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import Any

HOOK = "RAY_RUNTIME_ENV_HOOK"
_SOCKET = "RECUR_TUNE_TEST_FORKSERVER"


def settings(server: Path) -> dict[str, str]:
    """The environment of a driver whose workers are to come from there; it has to find this file."""
    checkout = str(Path(__file__).parents[1])
    return {_SOCKET: str(server), HOOK: "tests.forked_worker.with_forked_workers", "PYTHONPATH": checkout}


def with_forked_workers(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Ray's hook: the runtime environment of a driver, changed."""
    python = [sys.executable, "-S", __file__, os.environ[_SOCKET]]  # without its packages it starts at once
    return {**(runtime_env or {}), "py_executable": shlex.join(python)}


def main() -> None:
    """Have the worker forked, and end as it does; where this process is killed, so is the worker."""
    _, server, *words = sys.argv
    asked = {
        "words": words, "env": {**os.environ}, "cwd": os.getcwd(),
        "user": pwd.getpwuid(os.getuid()).pw_name if os.getuid() else None,
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
        try:
            keeper.connect(server)
        except OSError:  # the tests have ended before what they started
            os.execv(sys.executable, [sys.executable, *words])
        socket.send_fds(keeper, [json.dumps(asked).encode()], [1, 2])
        keeper.recv(100)  # its process number
        code = int(keeper.recv(100) or -signal.SIGKILL)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
