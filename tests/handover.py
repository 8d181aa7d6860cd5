"""The client of the fork server that stands where its process would have stood.

    python tests/handover.py SOCKET FILE ARGUMENTS…      # as Python would run that file; or -m MODULE, or -u -c PROGRAM

Whoever starts a process waits for it, sends it signals and reads its exit code; so there has to be one.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import sys
from contextlib import suppress

SERVER = "RECUR_TUNE_TEST_FORKSERVER"  # the variable that names its socket

_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def hand_over(server: str, words: list[str], for_python: list[str]) -> int:
    """Have these words run by a forked process and return its exit code, or end by the signal that ended it.

    Signals are passed on, and where this process is killed, so is that one. Where the server is gone, because tests
    have ended before what they started, Python runs what it would have run.
    """
    asked = {
        "words": words, "env": {**os.environ}, "cwd": os.getcwd(),
        "user": pwd.getpwuid(os.getuid()).pw_name if os.getuid() else None,
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
        try:
            keeper.connect(server)
        except OSError:
            os.environ.pop(SERVER, None)  # or it would be handed over again
            os.execv(sys.executable, [sys.executable, *for_python])
        socket.send_fds(keeper, [json.dumps(asked).encode()], [0, 1, 2])
        keeper.recv(100)  # its process number

        def pass_on(number: int, _: object) -> None:
            with suppress(BrokenPipeError):  # it has ended, and its exit code is on the way
                keeper.send(str(number).encode())

        for number in _PASSED_ON:
            signal.signal(number, pass_on)
        code = int(keeper.recv(100) or -signal.SIGKILL)
    if code < 0:
        if -code in _PASSED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(hand_over(sys.argv[1], sys.argv[2:], sys.argv[2:]))
