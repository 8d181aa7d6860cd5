"""`recur-tune dashboards`: real Prometheus; Grafana by a stand-in, since no package of it can be installed here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from recur_tune.tracking.prometheus.dashboards import DASHBOARDS
from recur_tune.tracking.prometheus.files import write_files
from recur_tune.tracking.prometheus.metrics import METRICS
from recur_tune.tracking.prometheus.servers import DashboardServers
from tests.cli.run import run
from tests.ports import FIRST, taken_port

SHIPPED = Path(__file__).parents[3] / "dashboards"

# What a Grafana would do with what it is told: answer on its port, and know the boards that it was given.
_STAND_IN = """#!/usr/bin/env python3
import http.server, json, os, pathlib, re
provisioning = pathlib.Path(os.environ["GF_PATHS_PROVISIONING"])
place = re.search("path: (.*)", (provisioning / "dashboards" / "recur-tune.yml").read_text())[1]
titles = sorted(json.loads(file.read_text())["title"] for file in pathlib.Path(place).glob("*.json"))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(titles).encode())
    def log_message(self, *words):
        pass
address = os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])
http.server.HTTPServer(address, Answer).serve_forever()
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed")
    monkeypatch.setenv("RECUR_TUNE_RESULTS", str(tmp_path / "results"))
    yield tmp_path / "results"
    DashboardServers(tmp_path / "results").down()


@pytest.fixture
def grafana(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "grafana-server"
    program.parent.mkdir()
    program.write_text(_STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def get(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def test_up_and_down(results: Path, grafana: None) -> None:
    with taken_port() as port:
        first = run("dashboards", "up", "--port", port, "--grafana-port", port)
    assert first.code == 0 and f"port {port} is taken" in first.err
    addresses = dict(line.split() for line in first.out.splitlines())
    assert list(addresses) == ["prometheus", "grafana"]
    config = json.loads(get(f"{addresses['prometheus']}/api/v1/status/config"))["data"]["yaml"]
    assert f"{results}/.prometheus/*.json" in config
    assert json.loads(get(addresses["grafana"])) == sorted(board.title for board in DASHBOARDS)

    again = run("dashboards", "up", "--port", port, "--grafana-port", port)
    assert again.code == 0 and again.out == first.out and "prometheus runs already" in again.err

    ended = run("dashboards", "down")
    assert ended.code == 0 and "ended prometheus and grafana" in ended.err
    for address in addresses.values():
        with pytest.raises(OSError, match="refused"):
            get(address)
    assert "none was running" in run("dashboards", "down").err


def test_a_process_that_got_an_old_number_is_left_alone(results: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        folder = results / ".dashboards"
        folder.mkdir(parents=True)
        known = {"name": "prometheus", "pid": other.pid, "born": 1.0, "port": 9090}
        (folder / "servers.json").write_text(json.dumps([known]))
        assert "none was running" in run("dashboards", "down").err
        assert other.poll() is None
        other.kill()


def test_without_grafana_the_boards_are_named(results: Path) -> None:
    if shutil.which("grafana") or shutil.which("grafana-server"):
        pytest.skip("here is a Grafana")
    started = run("dashboards", "up", "--port", FIRST)
    assert started.code == 0 and str(results / ".dashboards" / "boards") in started.err.replace("\n", "")
    assert run("dashboards", "down").code == 0


def test_without_prometheus_a_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = run("dashboards", "up", "--results", tmp_path / "results")
    assert refused.code == 2 and "prometheus: it is not installed" in refused.err and refused.out == ""
    assert not (tmp_path / "results").exists()


def test_a_results_folder_that_cannot_be_written_is_a_sentence(results: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run("dashboards", "up", "--results", tmp_path / "file" / "results")
    assert refused.code == 2 and len(refused.err.strip().splitlines()) == 1 and "Traceback" not in refused.err


def test_the_shipped_files_are_those_that_the_code_writes(tmp_path: Path) -> None:
    write_files(tmp_path, "results", "http://127.0.0.1:9090", boards="/etc/grafana/recur-tune")
    written = {file.relative_to(tmp_path): file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    shipped = {file.relative_to(SHIPPED): file.read_text() for file in SHIPPED.rglob("*") if file.suffix != ".md"
               and file.is_file()}  # fmt: skip
    assert shipped == written


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("Prometheus is not installed")
    write_files(tmp_path, tmp_path / "results", "http://127.0.0.1:9090")
    subprocess.run(["promtool", "check", "config", str(tmp_path / "prometheus.yml")], check=True, capture_output=True)
    assert yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]


def test_the_documentation_lists_every_metric() -> None:
    text = (SHIPPED / "README.md").read_text()
    for measure in METRICS.values():
        assert f"| `{measure.name}` | {', '.join(f'`{label}`' for label in measure.by)} | {measure.text} |" in text
