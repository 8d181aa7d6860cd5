"""Every picture of the README and of these pages, but for the results, made anew from one real search: the quickstart.

    python docs/make_pictures.py

It takes about five minutes on two cores, which should have nothing else to do, and needs Chromium (`make packages`).
The search lies in a temporary folder. Look at the pictures before you commit them.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from PIL import Image
from playwright.sync_api import Browser, Page, expect
from rich.console import Console

from recur_tune.cli import live_view
from recur_tune.cluster.connection import ray_token
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.progress import ended_trials
from tests.browser import MISSING, PATIENCE, find_chromium, running_chromium

DOCS = Path(__file__).parent
NAME = "quickstart"
MOST_BYTES = 300_000  # of a picture: they all stay in the repository's history
_LIMIT = 600  # seconds that nothing here should need
_TERMINAL = 124, 32  # columns and lines
_ENDED = 9  # trials, of the quickstart's 15, when the terminal is looked at
_WIDE, _HIGH = 1280, 860  # a browser's window


def until(happened: Callable[[], bool], search: subprocess.Popen[str], what: str) -> None:
    """Wait for something that a running search does."""
    deadline = time.monotonic() + _LIMIT
    while not happened():
        if search.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen while the search ran.")
        time.sleep(0.2)


@contextmanager
def recur_tune(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs beside us; it is asked to end with the block."""
    # Ray's dashboard shows how the driver was called: by its name alone, not where it lies. MLflow shows who ran it.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = subprocess.Popen(
        ["python3", "-m", "recur_tune.cli.main", *words], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PATH": path, "LOGNAME": "you"},
    )  # fmt: skip
    try:
        yield command
    finally:
        command.terminate()
        command.communicate()


@contextmanager
def window(browser: Browser, height: int = _HIGH) -> Iterator[Page]:
    """An empty page, for screens with many pixels."""
    context = browser.new_context(viewport={"width": _WIDE, "height": height}, device_scale_factor=1.5)
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


def keep(name: str, picture: bytes) -> None:
    """Write a picture with as many colours as a page needs, and as few bytes as the repository bears."""
    path = DOCS / "pictures" / f"{name}.png"
    path.parent.mkdir(exist_ok=True)
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes; {MOST_BYTES:,} are the most.")
    print(f"{path}  {path.stat().st_size:,} bytes")


def ray_cluster(browser: Browser, address: str) -> None:
    """Ray's page of the nodes, while two trials are trained."""
    with window(browser, 1000) as page:
        page.set_extra_http_headers({"Authorization": f"Bearer {ray_token().read_text().strip()}"})
        page.goto(f"{address}/#/cluster")
        expect(page.get_by_text(re.compile(rf"^ray::{NAME}-T\d+$")).first).to_be_visible(timeout=PATIENCE)
        keep("ray-cluster", page.screenshot(full_page=True))


def terminal(browser: Browser, watched: live_view.LiveView, console: Console) -> None:
    """What a terminal shows at this moment."""
    console.print(watched)
    with window(browser) as page:
        page.context.set_offline(True)  # the drawing names a font of the network's; any of our own will do
        page.set_content(f"<style>body {{ margin: 0 }} svg {{ width: {_WIDE}px }}</style>{_drawn(console)}")
        keep("terminal", page.locator("svg").screenshot())


def _drawn(console: Console) -> str:
    return console.export_svg(title=f"recur-tune search --name {NAME}")


def mlflow(browser: Browser, results: Path) -> None:
    """The search's page, and from there every trial."""
    with recur_tune("ui", NAME, "--results", str(results), "--no-browser") as server, window(browser) as page:
        assert server.stdout is not None
        page.goto(server.stdout.readline().strip())
        page.get_by_role("button", name="Close", exact=True).click()  # MLflow's assistant takes a quarter of the window
        page.get_by_text("Show more").click()
        expect(page.locator("img[src*='front-small.png']")).to_have_js_property("naturalWidth", 640, timeout=PATIENCE)
        page.mouse.move(_WIDE / 2, _HIGH / 2)
        page.mouse.wheel(0, -10 * _HIGH)  # what was clicked on may have moved, and the page with it
        expect(page.get_by_role("link", name="every trial")).to_be_in_viewport(timeout=PATIENCE)
        keep("mlflow-search", page.screenshot())
        with page.context.expect_page() as opened:
            page.get_by_role("link", name="every trial").click()
        trials = opened.value
        expect(trials.locator(".ag-row").first).to_be_visible(timeout=PATIENCE)
        keep("mlflow-trials", trials.screenshot())


def report(browser: Browser, results: Path) -> None:
    """The report's beginning."""
    with recur_tune("report", NAME, "--results", str(results)) as made, window(browser, 884) as page:
        assert made.stdout is not None
        page.goto(Path(made.stdout.readline().strip()).as_uri())
        page.locator("#front[data-drawn]").wait_for()
        keep("report", page.screenshot())


def main() -> None:
    """Search, and look at everything on the way."""
    executable = find_chromium()
    if executable is None:
        raise SystemExit(MISSING)
    live_view.stderr = console = Console(
        record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor", width=_TERMINAL[0],
        height=_TERMINAL[1], markup=False, emoji=False, highlight=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="recur-tune-") as folder, running_chromium(executable) as browser:
        results = Path(folder)
        directory = SearchDirectory(results / NAME)
        with recur_tune("search", "--name", NAME, "--results", folder) as search:
            until(directory.path.exists, search, "its beginning")
            watched = live_view.LiveView(directory)
            watched.searching()
            until(lambda: len(list(directory.state().in_state("running"))) >= 2, search, "the start of two trials")
            ray_cluster(browser, directory.state().links["dashboard"])
            until(lambda: ended_trials(directory.state()) >= _ENDED, search, f"the end of {_ENDED} trials")
            terminal(browser, watched, console)
            if search.wait(_LIMIT) != 0:
                raise SystemExit("the search failed.")
        with recur_tune("confirm", NAME, "--seeds", "3", "--results", folder) as confirmed:
            if confirmed.wait(_LIMIT) != 0:
                raise SystemExit("the front could not be confirmed.")
        shutil.copy(directory.path / "confirmed.png", DOCS / "quickstart-front.png")
        report(browser, results)
        mlflow(browser, results)


if __name__ == "__main__":
    main()
