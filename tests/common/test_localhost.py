"""A server has come up when its own page is there: not another's on the port that it wanted."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading

import pytest

from recur_tune.common.errors import UserError
from recur_tune.common.localhost import free_ports_from, wait_until_up
from tests.ports import FIRST, free_port, taken_port


def test_a_page_of_somebody_else_does_not_count() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as slow:

        class SomebodyElse(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                assert slow.stdin is not None
                slow.stdin.close()  # ours ends once the other has answered in its place

            def log_message(self, *words: object) -> None: ...

        with http.server.HTTPServer(("127.0.0.1", free_port()), SomebodyElse) as other:
            threading.Thread(target=other.serve_forever, daemon=True).start()
            assert not wait_until_up(slow, other.server_port, "/")
            other.shutdown()


def test_the_page_of_a_child_counts() -> None:
    port = free_port()
    words = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    wrapper = f"import subprocess; subprocess.run({words!r})"
    with subprocess.Popen([sys.executable, "-c", wrapper], stderr=subprocess.DEVNULL, process_group=0) as server:
        try:
            assert wait_until_up(server, port, "/")
        finally:
            subprocess.run(["kill", "--", f"-{server.pid}"], check=True)


def test_taken_ports_are_left_out() -> None:
    with taken_port() as first, taken_port() as second:
        assert second > first >= FIRST
        assert {first, second}.isdisjoint({port for port, _ in zip(free_ports_from(first), range(5), strict=False)})


def test_the_last_port_has_none_after_it() -> None:
    with pytest.raises(UserError, match="no port from 65535 to 65535 is free"):
        list(free_ports_from(65535))
