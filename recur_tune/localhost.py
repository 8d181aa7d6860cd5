"""Servers of others on this machine: a port for one, and whether it has come up."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from recur_tune.errors import UserError

_MOST_PORTS = 50
_PATIENCE = 120.0  # seconds; a first start may have a database to make


def free_port_from(wanted: int) -> int:
    """The wanted port or, where somebody listens on it, the next free one."""
    for port in range(wanted, min(wanted + _MOST_PORTS, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UserError(f"port: {wanted} and the {_MOST_PORTS - 1} after it are taken; give another with --port.")


def comes_up(server: subprocess.Popen[bytes], page: str) -> bool:
    """Wait until a server shows a page; False where it has ended or takes too long."""
    deadline = time.monotonic() + _PATIENCE
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):  # urllib's own errors are some
            urllib.request.urlopen(page, timeout=2).close()
            return True
        time.sleep(0.1)
    return False


def last_words(log: Path) -> str:
    """The end of what a server said before it gave up, and where the rest is."""
    said = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    return f"({said[-1][:200]}); all that it said is in {log}"
