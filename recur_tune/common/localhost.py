"""This machine: a free port for a server, whether the server has started, and which other users could reach it."""

from __future__ import annotations

import http.client
import os
import pwd
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil

from recur_tune.common.errors import UserError

_MOST_PORTS = 50
_PATIENCE = 120.0  # seconds; a first start may have a database to make
_FIRST_PERSON = 1000  # user numbers below are services
_NOBODY = 65534


def free_ports_from(wanted: int) -> Iterator[int]:
    """The wanted port and those after it, as far as nobody listens on them when their turn comes."""
    last = min(wanted + _MOST_PORTS - 1, 65535)
    for port in range(wanted, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
    raise UserError(f"port: no port from {wanted} to {last} can be had; give another with --port.")


def wait_until_up(server: subprocess.Popen[bytes], place: int | Path, page: str) -> bool:
    """Wait until a server shows a page on its port or socket; False where it has ended or takes too long."""
    deadline = time.monotonic() + _PATIENCE
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, http.client.HTTPException):  # urllib's own errors are among them
            if isinstance(place, Path):
                if get_from_socket(place, page) == http.HTTPStatus.OK:
                    return True
            else:
                urllib.request.urlopen(f"http://127.0.0.1:{place}{page}", timeout=2).close()
                if _listens(server, place):  # and not somebody who was quicker
                    return True
        time.sleep(0.1)
    return False


def get_from_socket(place: Path, page: str) -> int:
    """The status of a page that a server shows on a unix socket."""
    connection = http.client.HTTPConnection("localhost", timeout=2)
    connection.sock = socket.socket(socket.AF_UNIX)
    with closing(connection):
        connection.sock.settimeout(2)
        connection.sock.connect(str(place))
        connection.request("GET", page)
        return connection.getresponse().status


def _listens(server: subprocess.Popen[bytes], port: int) -> bool:
    """Whether the port is the server's, or that of a process which it has started."""
    try:
        first = psutil.Process(server.pid)
        family = [first, *first.children(recursive=True)]
        connections = [connection for process in family for connection in process.net_connections("tcp")]
    except psutil.AccessDenied:  # a program with rights of its own, into which we cannot see
        return True
    except psutil.NoSuchProcess:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)


def port_was_taken(log: Path) -> bool:
    """Whether a server gave up for that reason: a port that was free can be another's before a server wants it."""
    return "address already in use" in log.read_text(errors="replace").lower()


def last_log_line(log: Path) -> str:
    """The end of what a server said before it gave up, and where the rest is."""
    said = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    return f"({said[-1][:200]}); all that it said is in {log}"


def other_users() -> list[str]:
    """Who else is on this machine now, by name: whoever is logged in, or has a process here. A system that shows
    nobody but oneself does so because of others."""
    found = {user.name for user in psutil.users()}
    if Path("/proc/self").exists() and not Path("/proc/1").exists():  # mounted with hidepid
        found.add("others")
    for process in psutil.process_iter():
        try:
            number = process.uids().real
        except psutil.Error:  # gone
            continue
        if number >= _FIRST_PERSON and number != _NOBODY:
            found.add(_name(number))
    return sorted(found - {_name(os.getuid())})


def _name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
