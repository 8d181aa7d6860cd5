"""Labels as a reader sees them: none leaves its figure, covers a mark or another label, however wide the window is."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from recur_tune.report.compare import comparison
from recur_tune.report.front_files import front_page
from recur_tune.report.page import report_page, report_panels
from recur_tune.report.search_view import SearchView, read_search
from tests.browser.test_report import Reader, window
from tests.report import confirmed, few, make, many

pytestmark = pytest.mark.browser

__all__ = ["window"]  # the fixture

WIDTHS = (480, 900, 1400)
FRONT = "document.querySelector('.plotly-graph-div')"  # on a page of its own
# What is wrong with a figure's labels, from where the browser has painted them: boxes, of which a pixel may touch.
FAULTS = """place => {
    const known = new Map(), box = part => {
        if (!known.has(part)) known.set(part, part.getBoundingClientRect());
        return known.get(part);
    };
    const parts = names => [...place.querySelectorAll(names)].filter(part => box(part).width > 0);
    const overlap = (one, other) => one.left < other.right - 1 && other.left < one.right - 1
        && one.top < other.bottom - 1 && other.top < one.bottom - 1;
    const whole = box(place), labels = parts("text").filter(one => one.textContent.trim()
        && !one.closest(".hoverlayer") && getComputedStyle(one).visibility !== "hidden"
        && !one.closest("[style*='opacity: 0;']") && one.getAttribute("fill") !== "white");
    const names = labels.filter(one => one.closest(".textpoint"));
    const marks = parts(".scatterlayer .point, .scatterlayer .errorbar path");
    const faults = [];
    for (const label of labels) {
        const own = box(label);
        if (own.left < whole.left - 1 || own.right > whole.right + 1 || own.top < whole.top - 1
            || own.bottom > whole.bottom + 1) faults.push(`${label.textContent} leaves the figure`);
    }
    labels.forEach((label, at) => labels.slice(0, at).forEach(other => {
        if (overlap(box(label), box(other))) faults.push(`${label.textContent} covers ${other.textContent}`);
    }));
    for (const name of names) for (const mark of marks)
        if (overlap(box(name), box(mark))) faults.push(`${name.textContent} covers a mark`);
    return {faults, names: names.map(name => name.textContent)};
}"""


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> SearchView:
    """Sixty trials, a confirmed front, and another search to compare with."""
    folder = tmp_path_factory.mktemp("labels")
    make(folder, "others", few())
    return read_search(make(folder, "books", confirmed(many(60))))


@pytest.fixture(scope="module")
def file(search: SearchView) -> Path:
    """A report with the comparison's figure at its end, and without the parallel lines: they keep their width, and to
    paint them takes seconds."""
    folder = search.directory.path
    panels = [panel for panel in report_panels(search) if panel.key != "parallel"]
    panels.append(comparison(folder.parent, ["books", "others"]).panel)
    (folder / "report.html").write_text(report_page(search, panels))
    return folder / "report.html"


def names_without_faults(page: Page, figures: list[str]) -> dict[str, list[str]]:
    """The names beside the marks of each figure."""
    found = {figure: page.locator(f"[id='{figure}']").evaluate(FAULTS) for figure in figures}
    assert {figure: one["faults"] for figure, one in found.items() if one["faults"]} == {}
    return {figure: one["names"] for figure, one in found.items()}


@pytest.mark.parametrize("width", WIDTHS)
def test_no_label_leaves_its_figure_or_covers_anything(
    window: BrowserContext, search: SearchView, file: Path, width: int
) -> None:
    reader = Reader.at(window.new_page())
    reader.page.set_viewport_size({"width": width, "height": 900})
    names = names_without_faults(reader.page, reader.read(file))
    best = [trial.name for trial in search.best]
    for figure, own in {"front": best, "confirmed": best[:6], "curves": best}.items():
        assert set(names[figure]) <= set(own) and len(names[figure]) > 0.8 * len(own), "only a crowd goes without"
    assert reader.complaints == []
    reader.page.close()


def test_names_are_placed_anew_where_the_window_changes(
    window: BrowserContext, search: SearchView, tmp_path: Path
) -> None:
    front_page(search.state, search.spec.objectives, tmp_path / "front.html", "books")
    page = window.new_page()
    page.set_viewport_size({"width": 480, "height": 900})
    page.goto((tmp_path / "front.html").as_uri())
    page.locator(".textpoint text").first.wait_for()
    seen = page.evaluate(f"{FRONT}.names_seen")
    names_without_faults(page, [page.evaluate(f"{FRONT}.id")])
    page.set_viewport_size({"width": 1400, "height": 900})
    page.wait_for_function(f"seen => {FRONT}.names_seen !== seen", arg=seen)
    names_without_faults(page, [page.evaluate(f"{FRONT}.id")])
    page.close()
