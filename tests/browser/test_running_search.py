"""A search while it runs: what Prometheus records of it, and how Ray's dashboard shows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import Page, expect

from recur_tune.cluster.connection import ray_token
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.progress import seconds_left
from recur_tune.search.record.state import SearchState
from recur_tune.tracking.prometheus.dashboards import DASHBOARDS, metric, queries
from recur_tune.tracking.prometheus.servers import DashboardServers, Server
from tests.command import CHECKOUT
from tests.ports import FIRST
from tests.search.run.searches import ALIKE, ONE_AT_A_TIME, make_world, small_spec, write_space
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.ray, pytest.mark.browser]

# What a search has only in SLURM, in trouble, if told, or while it is prepared.
_ONLY_SOMETIMES = ("allocation", "failures", "memory_limit", "base_")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def prometheus(results: Path) -> Iterator[Server]:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed")
    servers = DashboardServers(results)
    try:
        yield servers.up(prometheus_port=FIRST, grafana_port=FIRST)["prometheus"]
    finally:
        servers.down()


@pytest.fixture(scope="module")
def running(results: Path, prometheus: Server) -> Iterator[SearchDirectory]:
    """A search that knows how long it will take, with a trial that is held after a validation for who looks at it."""
    make_world(results / "world")
    budget = {"budget__tokens": 10_000, "budget__trials": 400, "budget__rungs": 3, "resources__cpus": ONE_AT_A_TIME}
    spec = small_spec(results / "world", **budget, **ALIKE)
    words = ["search", str(write_space(results / "space.yaml", spec)), "--name", "watched", "--results", str(results)]
    said, directory = results / "said", SearchDirectory(results / "watched")
    with said.open("w") as file:
        process = subprocess.Popen(  # not forked: Ray's dashboard shows the words that a process was started with
            [sys.executable, "-m", "recur_tune.cli.main", *words],
            stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)},
        )  # fmt: skip

    def held() -> psutil.Process | None:
        state = directory.state() if directory.path.exists() else SearchState()
        for trial in state.in_state("running"):
            if trial.validations and seconds_left(state, spec.budget) is not None:
                worker = psutil.Process(int(trial.worker.partition(":")[2]))
                worker.suspend()
                if f"ray::watched-{trial.name}" in " ".join(worker.cmdline()):
                    return worker
                worker.resume()  # Ray has just called it by another name
        return None

    try:
        worker = until(held, "a trial to hold", said.read_text, hopeless=lambda: process.poll() is not None)
        yield directory
        worker.resume()
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    finally:
        process.kill()  # its cluster ends with it


def ask(server: Server, query: str) -> list[dict[str, Any]]:
    """What Prometheus answers; a query that it does not understand is an error of HTTP."""
    words = urllib.parse.urlencode({"query": query.replace("$search", "watched")})
    with urllib.request.urlopen(f"{server.url}/api/v1/query?{words}") as answer:
        return json.load(answer)["data"]["result"]


def test_every_panel_has_something_to_show(running: SearchDirectory, prometheus: Server) -> None:
    asked = {query for board in DASHBOARDS for query in queries(board)}
    silent: set[str] = set()

    def all_answered() -> bool:
        silent.clear()
        silent.update(query for query in asked if not ask(prometheus, query))
        return all(any(word in query for word in _ONLY_SOMETIMES) for query in silent)

    until(all_answered, "an answer to every query", lambda: f"none to {silent}", pause=1.0)


def test_the_numbers_are_the_searchs_own(running: SearchDirectory, prometheus: Server) -> None:
    def told() -> bool:
        by_state = {one["metric"]["state"]: float(one["value"][1]) for one in ask(prometheus, metric("trials"))}
        counted = running.state()
        return by_state.get("running") == sum(1 for _ in counted.in_state("running")) >= 1

    until(told, "the count of running trials")
    measured = {one["metric"]["trial"]: float(one["value"][1]) for one in ask(prometheus, metric("quality"))}
    seen = {trial.name: [v.metrics["token_perplexity"] for v in trial.validations]
            for trial in running.state().trials.values()}  # fmt: skip
    assert measured and all(
        any(abs(value - one) < 1e-6 * one for one in seen[name]) for name, value in measured.items()
    )


def test_rays_dashboard_names_the_search_and_its_trials(
    running: SearchDirectory, page: Page, keep: Callable[[Page, str], None]
) -> None:
    page.set_extra_http_headers({"Authorization": f"Bearer {ray_token().read_text().strip()}"})
    address = running.state().links["dashboard"]
    page.goto(f"{address}/#/jobs")
    expect(page.get_by_role("cell", name="watched", exact=True)).to_be_visible()
    page.get_by_role("link", name=re.compile("^0")).first.click()
    expect(page.get_by_text("--name watched").first).to_be_visible()
    keep(page, "ray-job")
    page.goto(f"{address}/#/actors")
    expect(page.get_by_text("watched-trial").first).to_be_visible()
    page.goto(f"{address}/#/cluster")
    expect(page.get_by_text(re.compile(r"^ray::watched-T\d+$")).first).to_be_visible()
    keep(page, "ray-cluster")
