"""Prometheus and Grafana on localhost as background processes: start and stop, only our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_text, writing
from recur_tune.common.localhost import free_ports_from, last_log_line, port_was_taken, wait_until_up
from recur_tune.tracking.prometheus.files import PROMETHEUS, PROVISIONING, write_files

_GRAFANA_HOMES = ("/usr/share/grafana", "/opt/grafana", "/opt/homebrew/opt/grafana/share/grafana")


@dataclass(frozen=True)
class Server:
    """A server that was started here."""

    name: str
    pid: int
    born: float  # a pid is reused, but not with the same start time
    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> psutil.Process | None:
        """Its process, if it runs."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if process.create_time() == self.born and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


class Command(NamedTuple):
    """Command line and environment of a server."""

    words: list[str]
    environment: dict[str, str] = {}


class DashboardServers:
    """The two servers of a results folder; their files lie in a hidden folder of it."""

    def __init__(self, results: Path) -> None:
        self.results, self.folder = results, results / ".dashboards"

    def running(self) -> dict[str, Server]:
        """The running servers, by name."""
        try:
            known = [Server(**fields) for fields in json.loads((self.folder / "servers.json").read_text())]
        except (OSError, ValueError, TypeError):
            return {}
        return {server.name: server for server in known if server.process}

    def up(self, prometheus_port: int, grafana_port: int) -> dict[str, Server]:
        """Start what is not running yet; Grafana only where it is installed."""
        if shutil.which("prometheus") is None:
            raise UserError(
                "prometheus: it is not installed on this machine; get it from your distribution "
                "(`apt-get install prometheus`) or prometheus.io, and have it on PATH."
            )
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        servers = self.running()
        if "prometheus" not in servers:
            servers["prometheus"] = self._start("prometheus", self._prometheus, prometheus_port, "/-/ready")
            self._remember(servers)
        if "grafana" not in servers and (program := grafana_program()):
            servers["grafana"] = self._start("grafana", partial(self._grafana, program), grafana_port, "/api/health")
            self._remember(servers)
        return servers

    def _remember(self, servers: Mapping[str, Server]) -> None:
        write_text(self.folder / "servers.json", json.dumps([asdict(server) for server in servers.values()]) + "\n")

    def down(self) -> list[Server]:
        """Stop our servers and return those that were running; Prometheus's data stays."""
        servers = list(self.running().values())
        processes = [process for server in servers if (process := server.process)]
        for process in processes:
            process.terminate()
        for process in psutil.wait_procs(processes, timeout=15)[1]:
            process.kill()
        (self.folder / "servers.json").unlink(missing_ok=True)
        return servers

    def _prometheus(self, port: int) -> Command:
        write_files(self.folder, self.results, f"http://127.0.0.1:{port}")  # Grafana has to know where it is
        options = {
            "config.file": self.folder / PROMETHEUS,
            "storage.tsdb.path": self.folder / "prometheus",
            "storage.tsdb.retention.time": "60d",
            "web.listen-address": f"127.0.0.1:{port}",
        }
        return Command(["prometheus", *(f"--{name}={value}" for name, value in options.items())])

    def _grafana(self, program: list[str], port: int) -> Command:
        """Read-only for all users of localhost; nothing is fetched from the network."""
        settings = {
            "GF_SERVER_HTTP_ADDR": "127.0.0.1",
            "GF_SERVER_HTTP_PORT": str(port),
            "GF_PATHS_DATA": str(self.folder / "grafana"),
            "GF_PATHS_LOGS": str(self.folder / "grafana"),
            "GF_PATHS_PROVISIONING": str(self.folder / PROVISIONING),
            "GF_AUTH_ANONYMOUS_ENABLED": "true",
            "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
            "GF_AUTH_DISABLE_LOGIN_FORM": "true",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
            "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
            "GF_NEWS_NEWS_FEED_ENABLED": "false",
        }
        return Command(program, settings)

    def _start(self, name: str, command: Callable[[int], Command], wanted: int, ready: str) -> Server:
        log = self.folder / f"{name}.log"
        for port in free_ports_from(wanted):
            words, environment = command(port)
            with log.open("wb") as output:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    env=os.environ | environment, start_new_session=True,  # it stays when this command ends
                )  # fmt: skip
            server = Server(name, process.pid, psutil.Process(process.pid).create_time(), port)
            if wait_until_up(process, port, ready):
                return server
            process.kill()
            if not port_was_taken(log):
                break
        raise UserError(f"{name}: it did not start {last_log_line(log)}.")


def grafana_program() -> list[str] | None:
    """How Grafana is started here, None where it is not installed."""
    home = next((place for place in _GRAFANA_HOMES if Path(place).is_dir()), None)
    words = [f"--homepath={home}"] if home else []
    if shutil.which("grafana"):
        return ["grafana", "server", *words]
    return ["grafana-server", *words] if shutil.which("grafana-server") else None
