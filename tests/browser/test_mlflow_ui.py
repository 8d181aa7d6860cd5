"""MLflow's own pages over a search that was delivered to them, as somebody who decides sees them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

from recur_tune.report.front_files import draw_front
from recur_tune.search.record.state import replay
from recur_tune.search.record.tracking_place import DELIVERED, Delivered
from recur_tune.tracking.mlflow.server import answering_server
from recur_tune.tracking.mlflow.tracker import Tracker
from recur_tune.tracking.mlflow.views import FRONT, SEARCHES, TRIALS, view_address
from tests.browser import desktop
from tests.database import empty_database
from tests.ports import FIRST
from tests.report import few, make

pytestmark = pytest.mark.browser

Keep = Callable[[Page, str], None]


@dataclass
class Visitor:
    """Someone whose network is MLflow's server and nothing else."""

    page: Page
    address: str
    delivered: Delivered
    asked: list[str] = field(default_factory=list)  # what a page wanted from anywhere else

    def open(self, place: str) -> Page:
        """Go to a place below MLflow's own address."""
        self.page.goto(f"{self.address}/{place}")
        return self.page

    def guard(self, route: Route) -> None:
        """Let only MLflow's server answer."""
        if route.request.url.startswith((f"{self.address}/", "data:", "blob:")):
            route.continue_()
        else:
            self.asked.append(route.request.url)
            route.abort()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Delivered]]:
    """A server over a finished search of six trials, three of them on the front."""
    results, now = tmp_path_factory.mktemp("results"), time.time() - 100
    empty_database(results / "mlflow.db")
    directory = make(results, "books", [event | {"time": event["time"] + now} for event in few()])
    tracker = Tracker(directory)
    tracker.deliver()
    tracker.log_files(draw_front(directory.name, directory.spec, directory.state(), directory.path))
    with answering_server(tracker.uri, FIRST, results / "log") as (_, port):
        yield f"http://127.0.0.1:{port}", Delivered.read(directory.path / DELIVERED, tracker.uri)


@pytest.fixture(scope="module")
def desk(browser: Browser) -> Iterator[BrowserContext]:
    """One browser profile for all visits, as people have: MLflow's scripts, which are large, are loaded once."""
    context = desktop(browser)
    yield context
    context.close()


@pytest.fixture
def visitor(desk: BrowserContext, served: tuple[str, Delivered]) -> Iterator[Visitor]:
    page = desk.new_page()
    visitor = Visitor(page, *served)
    page.route("**/*", visitor.guard)
    yield visitor
    page.evaluate("localStorage.clear()")  # where MLflow remembers what was unfolded
    for opened in desk.pages:
        opened.close()
    assert visitor.asked == [], "a page needs more than its server"


def names(page: Page) -> Locator:
    """The runs in the list."""
    return page.locator(".ag-row [col-id='attributes.`Run Name`'] a")


def cells(page: Page, column: str) -> Locator:
    """A column of the list."""
    return page.locator(f".ag-row [col-id='{column}']")


def unfold(page: Page) -> None:
    """Show a search's trials."""
    page.locator(".ag-row", has_text="books").get_by_role("button").first.click()


def test_the_run_list_has_the_search_with_its_trials_below(visitor: Visitor, keep: Keep) -> None:
    page = visitor.open(view_address(visitor.delivered, SEARCHES))
    expect(names(page)).to_have_text(["books"])
    expect(cells(page, "metrics.`hypervolume`")).to_have_text([re.compile(r"^0\.\d{1,5}$")])
    unfold(page)
    expect(names(page)).to_have_count(7)
    listed = dict(zip(names(page).all_inner_texts(), cells(page, "tags.`state`").all_inner_texts(), strict=True))
    assert listed == {"books": "-"} | {trial.name: trial.state for trial in replay(few()).trials.values()}
    keep(page, "mlflow-run-list")


def test_a_filter_leaves_exactly_the_front(visitor: Visitor, keep: Keep) -> None:
    page = visitor.open(visitor.delivered.run_list)
    expect(names(page)).to_have_text(["books"])
    expect(
        page.locator("[col-id='attributes.`Dataset`'] a, [col-id='attributes.`Dataset`'] button").first
    ).to_contain_text("stdlib")
    box = page.get_by_placeholder("metrics.rmse")
    box.fill("tags.pareto = 'true'")
    box.press("Enter")
    expect(page.get_by_text("matching runs")).to_have_text("4 matching runs")  # their search is one of them
    unfold(page)
    expect(names(page)).to_have_count(4)
    assert {*names(page).all_inner_texts()} == {"books", "T0", "T1", "T2"}
    keep(page, "mlflow-filter")


@pytest.mark.parametrize(
    "view, expected", [(TRIALS, ["T1", "T3", "T0", "T2", "T4", "T5"]), (FRONT, ["T1", "T0", "T2"])]
)
def test_a_view_shows_what_matters_first(visitor: Visitor, keep: Keep, view: str, expected: list[str]) -> None:
    page = visitor.open(view_address(visitor.delivered, view))
    expect(names(page)).to_have_text(expected)
    columns = page.locator(".ag-header-cell").evaluate_all(
        """cells => cells.map(cell => [cell.getBoundingClientRect().x, cell.getAttribute("col-id")])"""
    )
    assert [column for _, column in sorted(columns)][1:8] == [
        "attributes.`Run Name`", "runDateAndNestInfo", "duration", "tags.`state`", "metrics.`perplexity`",
        "metrics.`MFLOPs_per_token`", "metrics.`peak_memory_MiB`",
    ]  # fmt: skip
    expect(cells(page, "metrics.`peak_memory_MiB`").first).to_have_text("64")
    expect(cells(page, "tags.`state`").first).to_have_text("complete")
    keep(page, f"mlflow-view-{view}")


def test_the_searchs_page_describes_it_with_the_fronts_picture_and_table(visitor: Visitor, keep: Keep) -> None:
    page = visitor.open(visitor.delivered.page(visitor.delivered.parent))
    expect(page.get_by_text("Finished: 6 of 500 trials")).to_be_visible()
    page.get_by_text("Show more").click()
    picture = page.locator("img[src*='front-small.png']")
    expect(picture).to_be_visible()
    expect(picture).to_have_js_property("naturalWidth", 640)
    rows = page.locator("table", has_text="FLOPs/token").locator("tbody tr")
    expect(rows).to_have_text([re.compile(rf"^\s*{name}\b") for name in ("T1", "T0", "T2")])
    expect(rows.first).to_contain_text("64 MiB")
    expect(page.get_by_text("stdlib (", exact=False).first).to_be_visible()
    keep(page, "mlflow-search")

    with page.context.expect_page() as opened:
        rows.first.get_by_role("link").click()
    trial = opened.value
    expect(trial.get_by_role("heading", name="T1")).to_be_visible()
    expect(trial.get_by_text("on the front")).to_be_visible()
    trial.get_by_text("Show more").click()
    expect(trial.get_by_text("recur-tune train --base tiny --width 100 --window 64")).to_be_visible()
    keep(trial, "mlflow-trial")


def test_the_fronts_runs_are_compared_by_one_click(visitor: Visitor, keep: Keep) -> None:
    page = visitor.open(visitor.delivered.page(visitor.delivered.parent))
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="side by side").click()
    compared = opened.value
    expect(compared.get_by_text("Comparing 3 Runs from 1 Experiment")).to_be_visible()
    expect(compared.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    keep(compared, "mlflow-compare")


def test_the_figure_works_inside_of_mlflow(visitor: Visitor, keep: Keep) -> None:
    page = visitor.open(visitor.delivered.artifact("front.html"))
    figure = page.frame_locator("iframe.mlflow-html-iframe")
    expect(figure.locator(".scatterlayer .point")).to_have_count(5)
    expect(figure.get_by_text("T1", exact=True)).to_be_visible()
    figure.locator(".scatterlayer .point").last.hover(force=True)
    expect(figure.locator(".hoverlayer")).to_contain_text("perplexity per word")
    keep(page, "mlflow-figure")
