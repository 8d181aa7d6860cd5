"""MLflow's pages of a search of hundreds of trials: seconds until each is shown.

    python benchmarks/mlflow_scale.py [--trials 500]

The trials are synthetic; their delivery, MLflow's server and the browser are real. Needs Chromium (`make packages`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, Page, expect

from recur_tune.report.front_files import draw_front
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.tracking_place import Delivered
from recur_tune.tracking.mlflow.server import answering_server
from recur_tune.tracking.mlflow.tracker import Tracker
from recur_tune.tracking.mlflow.views import FRONT, TRIALS, view_address
from tests.browser import MISSING, find_chromium, running_chromium
from tests.report import make, many

_PATIENCE = 300_000  # milliseconds
_RUNS = ".ag-row [col-id='attributes.`Run Name`'] a"


def made_up(folder: Path, trials: int) -> SearchDirectory:
    now = time.time()
    events = [event | {"time": event["time"] + now} for event in many(trials)]
    return make(folder, "many", [*events, {"time": events[-1]["time"], "kind": "search", "status": "finished"}])


def delivered(directory: SearchDirectory) -> tuple[Tracker, float, float]:
    """The tracker, and the seconds to deliver the log and the figures."""
    tracker = Tracker(directory)
    tracker._connect()  # makes the database, which takes as long for every search
    begun = time.perf_counter()
    tracker.deliver()
    middle = time.perf_counter()
    tracker.log_files(draw_front(directory.name, directory.spec, directory.state(), directory.path))
    return tracker, middle - begun, time.perf_counter() - middle


@contextmanager
def served(uri: str, folder: Path) -> Iterator[str]:
    with answering_server(uri, 23_000, folder / "log") as (_, port):
        yield f"http://127.0.0.1:{port}"


def looks(browser: Browser, address: str, known: Delivered, trials: int) -> Iterator[tuple[str, float]]:
    """What a user does, and the seconds until the page shows it; each in a browser with an empty cache."""
    best = len(known.front)

    def opened(place: str) -> Page:
        page = browser.new_context(viewport={"width": 1440, "height": 1000}).new_page()
        page.set_default_timeout(_PATIENCE)
        page.goto(f"{address}/{place}")
        return page

    begun = time.perf_counter()
    page = opened(known.run_list)
    page.locator(_RUNS, has_text="many").wait_for()
    yield "the run list shows the search", time.perf_counter() - begun

    begun = time.perf_counter()
    box = page.get_by_placeholder("metrics.rmse")
    box.fill("tags.pareto = 'true'")
    box.press("Enter")
    expect(page.get_by_text("matching runs")).to_have_text(f"{best + 1} matching runs")
    page.locator(".ag-row", has_text="many").get_by_role("button").first.click()
    page.locator(_RUNS).nth(1).wait_for()
    yield f"the filter `tags.pareto = 'true'` shows the front, {best} runs", time.perf_counter() - begun

    begun = time.perf_counter()
    page = opened(view_address(known, TRIALS))
    page.locator(_RUNS).nth(min(trials, 20) - 1).wait_for()
    yield f"the view of all {trials} trials shows its first rows", time.perf_counter() - begun

    begun = time.perf_counter()
    page = opened(view_address(known, FRONT))
    expect(page.get_by_text("matching runs")).to_have_text(f"{best} matching runs")
    page.locator(_RUNS).nth(min(best, 20) - 1).wait_for()
    yield "the view of the front shows its rows", time.perf_counter() - begun

    begun = time.perf_counter()
    page.locator(".ag-header-cell input[type=checkbox]").first.check()
    page.get_by_role("button", name="Compare").click()
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    page.get_by_text("Run details").wait_for()
    yield f"the comparison of the front's {best} runs is drawn", time.perf_counter() - begun

    begun = time.perf_counter()
    page = opened(known.page(known.parent))
    page.get_by_text("Show more").click()
    expect(page.locator("img[src*='front-small.png']")).to_have_js_property("naturalWidth", 640)
    yield "the search's page shows its front's picture and table", time.perf_counter() - begun

    begun = time.perf_counter()
    page = opened(known.artifact("front.html"))
    page.frame_locator("iframe.mlflow-html-iframe").locator(".scatterlayer .point").first.wait_for()
    yield "the figure to explore is drawn", time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    trials = parser.parse_args().trials
    executable = find_chromium()
    if executable is None:
        sys.exit(MISSING)
    expect.set_options(timeout=_PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        directory = made_up(Path(folder), trials)
        events = sum(1 for _ in directory.events())
        tracker, log, figures = delivered(directory)
        print(f"| {trials} trials, {events:,} events | seconds |\n|---|---|")
        print(f"| all delivered at once, to SQLite | {log:.1f} |")
        print(f"| its figures drawn and delivered | {figures:.1f} |")
        with served(tracker.uri, Path(folder)) as address, running_chromium(executable) as browser:
            for what, seconds in looks(browser, address, tracker._delivered, trials):
                print(f"| {what} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
