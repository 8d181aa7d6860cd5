"""Cost of a report by the number of trials: seconds to make it, its size, and seconds until a browser shows it.

    python benchmarks/report_scale.py [--trials 50 500 5000]

The logs are synthetic, and the same every time. If Chromium is installed, it opens each report as a file in a window of
1280 by 900 pixels. Times are from the navigation until every figure in view is drawn, and then from figure to figure
down to the last; the shortest of several runs counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from recur_tune.report.page import report_page
from recur_tune.report.search_view import read_search
from recur_tune.search.record.directory import SearchDirectory
from tests.browser import FLAGS, MISSING, find_chromium
from tests.report import few, make, many

_LONG_ENOUGH = 10.0  # seconds without a query, which would slow the page down
_PATIENCE = 120_000  # milliseconds
# Milliseconds from the navigation until the last of the figures at the top of the page was on the screen.
_IN_VIEW_AT = """() => {
    const figures = [...document.querySelectorAll(".scroll > div[id]")];
    const seen = figures.filter(figure => figure.getBoundingClientRect().top < innerHeight);
    return Math.max(...seen.map(figure => Number(figure.dataset.drawn)));
}"""


def making(directory: SearchDirectory) -> tuple[str, float, float]:
    """A report, and the seconds to read the search and to make the page."""
    begun = time.perf_counter()
    search = read_search(directory)
    read = time.perf_counter()
    text = report_page(search)
    return text, read - begun, time.perf_counter() - read


@contextmanager
def unwatched_chromium(executable: str, profile: Path) -> Iterator[str]:
    """The address of a Chromium that opens pages by itself, as a reader's does.

    Playwright watches a page's scripts from the start, and that alone makes loading plotly take nearly twice as long.
    Here the page notes when its figures were on the screen, and is only asked afterwards.
    """
    flags = [*FLAGS, "--headless", "--window-size=1280,900", f"--user-data-dir={profile}", "--remote-debugging-port=0"]
    with subprocess.Popen([executable, *flags, "about:blank"], stderr=subprocess.DEVNULL) as process:
        try:
            port = profile / "DevToolsActivePort"
            while process.poll() is None and not (port.exists() and "\n" in port.read_text()):
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port.read_text().splitlines()[0]}"
        finally:
            process.terminate()


def opening(chromium: str, file: Path) -> tuple[float, float]:
    """Seconds from the navigation until all in view is drawn, and then those to scroll through all the rest."""
    urlopen(Request(f"{chromium}/json/new?{file.as_uri()}", method="PUT")).close()
    time.sleep(_LONG_ENOUGH)
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(chromium)
        [page] = [page for page in browser.contexts[0].pages if page.url == file.as_uri()]
        in_view = page.evaluate(_IN_VIEW_AT) / 1000
        begun = time.perf_counter()
        for figure in page.locator(".scroll > div[id]").all():
            figure.scroll_into_view_if_needed()
            figure.and_(page.locator("[data-drawn]")).wait_for(timeout=_PATIENCE)
        scrolled = time.perf_counter() - begun
        page.close()
    return in_view, scrolled


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[50, 500, 5000])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows: dict[int, list[str]] = {}
    files: dict[int, Path] = {}
    with tempfile.TemporaryDirectory() as folder:
        making(make(Path(folder), "first", few()))  # imports
        for count in arguments.trials:
            directory = make(Path(folder), f"of-{count}", many(count))
            texts, reads, pages = zip(*(making(directory) for _ in range(arguments.repeats)), strict=True)
            files[count] = directory.path / "report.html"
            files[count].write_text(texts[0])
            size = files[count].stat().st_size / 1e6
            rows[count] = [f"{min(reads):.3f}", f"{min(pages):.3f}", f"{size:.1f}"]
        if chromium := find_chromium():
            with unwatched_chromium(chromium, Path(folder) / "profile") as address:
                for count, file in files.items():
                    opened = zip(*(opening(address, file) for _ in range(arguments.repeats)), strict=True)
                    rows[count] += [f"{min(times):.1f}" for times in opened]
        else:
            print(MISSING)
    print("\n| trials | reading the search | making the page | MB | in view after | scrolling through the rest |")
    print("|---|---|---|---|---|---|")
    for count, cells in rows.items():
        print(f"| {count:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
