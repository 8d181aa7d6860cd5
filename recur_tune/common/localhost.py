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
_NOBODY = 65534  # the user without rights


def free_ports_from(wanted: int) -> Iterator[int]:
    """Free ports from the wanted one on; each is checked when it is asked for."""
    last = min(wanted + _MOST_PORTS - 1, 65535)
    for port in range(wanted, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
    raise UserError(f"port: no port from {wanted} to {last} is free; give another with --port.")


def wait_until_up(server: subprocess.Popen[bytes], place: int | Path, page: str) -> bool:
    """Wait until a server answers on its port or socket; False where it has ended or takes too long."""
    deadline = time.monotonic() + _PATIENCE
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, http.client.HTTPException):  # urllib's own errors are among them
            if isinstance(place, Path):
                if get_from_socket(place, page) == http.HTTPStatus.OK:
                    return True
            else:
                urllib.request.urlopen(f"http://127.0.0.1:{place}{page}", timeout=2).close()
                if _listens(server, place):  # not another process that took the port first
                    return True
        time.sleep(0.1)
    return False


def get_from_socket(place: Path, page: str) -> int:
    """HTTP status of a page on a Unix socket."""
    connection = http.client.HTTPConnection("localhost", timeout=2)
    connection.sock = socket.socket(socket.AF_UNIX)
    with closing(connection):
        connection.sock.settimeout(2)
        connection.sock.connect(str(place))
        connection.request("GET", page)
        return connection.getresponse().status


def _listens(server: subprocess.Popen[bytes], port: int) -> bool:
    """Whether the server, or a child process of it, listens on the port."""
    try:
        first = psutil.Process(server.pid)
        family = [first, *first.children(recursive=True)]
        connections = [connection for process in family for connection in process.net_connections("tcp")]
    except psutil.AccessDenied:  # a program with other rights, whose connections are hidden
        return True
    except psutil.NoSuchProcess:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)


def port_was_taken(log: Path) -> bool:
    """Whether a server failed because its port was taken between the check and its start."""
    return "address already in use" in log.read_text(errors="replace").lower()


def last_log_line(log: Path) -> str:
    """The last line of a server's log, and where the rest is."""
    said = log.read_text(errors="replace").strip().splitlines() or ["its log is empty"]
    return f"({said[-1][:200]}); the whole log is {log}"


def other_users() -> list[str]:
    """Names of other users who are logged in or have a process here: they reach localhost too. A system that hides
    other users' processes (hidepid) is taken to have some."""
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
