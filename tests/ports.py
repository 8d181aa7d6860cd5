"""Ports for tests that run beside others: of this process alone, and none that the kernel gives to who asks for any."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from recur_tune.common.localhost import free_ports_from

_OF_THIS_LEG = int(os.environ.get("RECUR_TUNE_TEST_PORTS", "61000"))  # Linux gives away what lies below
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST = _OF_THIS_LEG + 100 * _WORKER


def free_port() -> int:
    """One that nobody listens on."""
    return next(free_ports_from(FIRST))


@contextmanager
def taken_port() -> Iterator[int]:
    """One that somebody listens on."""
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        yield taken.getsockname()[1]
