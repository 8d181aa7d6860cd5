"""Ports for tests that run beside others: of this process alone, and none that the kernel gives to who asks for any."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from recur_tune.localhost import free_ports_from

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST = 20_000 + 200 * _WORKER  # above Ray's workers' (to 19,999), below the kernel's (from 32,768)


def free_port() -> int:
    """One that nobody listens on."""
    return next(free_ports_from(FIRST))


@contextmanager
def taken_port() -> Iterator[int]:
    """One that somebody listens on."""
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        yield taken.getsockname()[1]
