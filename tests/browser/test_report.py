"""The report and the comparison as a reader has them: a file on a disk, opened without a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from recur_tune.report.compare import compare_page, comparison
from recur_tune.report.page import report_page, report_panels
from recur_tune.report.search_view import SearchView, read_search
from recur_tune.search.record.state import Event
from tests.browser import PATIENCE, desktop
from tests.browser.pdf import sheets
from tests.report import begun, few, make, many, opening, params_of, validated
from tests.report.test_page import tracked

pytestmark = pytest.mark.browser

ALL = ["front", "windows", "volume", "curves", "importance", "parallel", "timeline"]
RUN = "http://mlflow.example:5000/#/experiments/3/runs/run0"
PHONE = {"width": 390, "height": 844}
A_MOMENT = 1000  # milliseconds, or two clicks were a double click
A4 = (595, 842)  # points
PAPER = 703  # CSS pixels between its margins
# What plotly draws for a trial; axes, words and bars of colours are none of them.
MARKS = ".scatterlayer .point, .scatterlayer .js-line, .barlayer .point path"
# How many pixels of the parallel lines are coloured: they are no elements, but painted.
LINES = """(() => {
    const painted = document.querySelector("#parallel .gl-canvas-focus");
    const copy = new OffscreenCanvas(painted.width, painted.height).getContext("2d");
    copy.drawImage(painted, 0, 0);
    const {data} = copy.getImageData(0, 0, painted.width, painted.height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, alpha] = data.subarray(at, at + 4);
        count += alpha > 0 && Math.max(red, green, blue) - Math.min(red, green, blue) > 30;
    }
    return count;
})()"""


@dataclass
class Reader:
    """Someone without a network who opens a file, and everything that the page tried to load or complained of."""

    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def at(cls, page: Page) -> Reader:
        reader = cls(page)
        page.context.set_offline(True)
        page.context.on("request", reader._on_request)
        page.on("console", reader._on_console)
        page.on("pageerror", lambda error: reader.complaints.append(str(error)))
        return reader

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.asked.append(request.url)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def open(self, file: Path) -> None:
        """Open a file at its beginning."""
        self.page.goto(file.as_uri())

    def read(self, file: Path) -> list[str]:
        """Open a file, read it to its end, and return the figures that there were."""
        self.open(file)
        figures: list[str] = self.page.evaluate("page.figures.map(figure => figure.key)")
        for figure in figures:
            self.show(figure)
        return figures

    def show(self, figure: str) -> None:
        """Scroll to a figure and wait for it."""
        self.page.locator(f"#{figure}").scroll_into_view_if_needed()
        self.page.locator(f"#{figure}[data-drawn]").wait_for()

    def data(self, figure: str) -> list[dict[str, Any]]:
        """The traces that plotly has drawn."""
        return self.page.evaluate(f"document.getElementById('{figure}').data")

    def place_of(self, figure: str, trial: int | str) -> tuple[float, float]:
        """Where a trial's mark is on the screen."""
        self.show(figure)
        box = self.page.evaluate(
            """([figure, trial]) => {
                const marks = [...document.querySelectorAll(`#${figure} .point`)];
                const mark = marks.findLast(mark => mark.__data__.data === trial);
                return mark.getBoundingClientRect().toJSON();
            }""",
            [figure, trial],
        )
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def not_blank(self, figures: list[str]) -> None:
        """Every figure has something of its trials in it."""
        for figure in figures:
            if figure == "parallel":
                self.page.wait_for_function(f"{LINES} > 100")
            else:
                marks = self.page.locator(f"#{figure}").locator(MARKS).all()
                assert any(mark.bounding_box() for mark in marks), f"{figure} is blank"


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[BrowserContext]:
    """One for all files that are opened: a window's own frame takes Chromium more than a second."""
    context = desktop(browser)
    yield context
    context.close()


@pytest.fixture
def reader(window: BrowserContext) -> Iterator[Reader]:
    """Whatever a test does, the page asks nobody for anything and has nothing to complain of."""
    reader = Reader.at(window.new_page())
    yield reader
    reader.page.close()
    assert reader.asked == [] and reader.complaints == []


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchView, Path]:
    """A search of six trials, two of which have a page in MLflow, and its report."""
    return reported(read_search(tracked(tmp_path_factory.mktemp("books"))))


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchView, Path]:
    """A search of two hundred."""
    return reported(read_search(make(tmp_path_factory.mktemp("big"), events=many(200))))


@pytest.fixture(scope="module")
def read(window: BrowserContext, big: tuple[SearchView, Path]) -> Iterator[Reader]:
    """Somebody who has read that report to its end, which takes seconds; several tests look at what they see."""
    reader = Reader.at(window.new_page())
    assert reader.read(big[1]) == ALL
    yield reader
    assert reader.asked == [] and reader.complaints == []


def reported(search: SearchView) -> tuple[SearchView, Path]:
    file = search.directory.path / "report.html"
    file.write_text(report_page(search))
    return search, file


def test_two_hundred_trials_are_all_there(
    read: Reader, big: tuple[SearchView, Path], keep: Callable[[Page, str], None]
) -> None:
    search, _ = big
    read.not_blank(ALL)
    expect(read.page.locator("#front .scatterlayer .point")).to_have_count(len(search.known))
    expect(read.page.locator("#timeline .barlayer .point")).to_have_count(len(search.spans))
    keep(read.page, "report-of-200")


def test_every_figure_is_drawn_offline_with_hover_texts(
    reader: Reader, books: tuple[SearchView, Path], keep: Callable[[Page, str], None]
) -> None:
    assert reader.read(books[1]) == ALL
    reader.not_blank(ALL)
    keep(reader.page, "report")
    title = reader.page.locator("#front .xtitle").bounding_box()
    number = reader.page.locator("#front .xtick text").first.bounding_box()
    assert title and number and title["y"] >= number["y"] + number["height"], "an axis's title stands below its numbers"
    for figure in ("front", "windows", "curves"):
        reader.page.mouse.move(*reader.place_of(figure, 1))
        label = reader.page.locator(f"#{figure} .hoverlayer .hovertext")
        for said in (
            "T1 complete (paper)",
            "perplexity per word: 50",
            "peak memory: 64 MiB",
            "l_ins = 2",
            "window = 64",
        ):
            expect(label).to_contain_text(said)
    reader.page.mouse.move(*reader.place_of("front", 1))
    expect(reader.page.locator("#front .hoverlayer .hovertext")).to_be_visible()
    keep(reader.page, "report-hover")


def test_a_click_opens_the_trial_s_run_where_it_has_one(page: Page, books: tuple[SearchView, Path]) -> None:
    reader = Reader.at(page)
    page.clock.install()
    reader.open(books[1])
    page.context.route("http://mlflow.example:5000/**", lambda route: route.fulfill(body="a run"))
    page.mouse.click(*reader.place_of("front", 2))  # has none: whatever it opened would come before the next
    page.clock.fast_forward(A_MOMENT)
    with page.context.expect_page() as run:
        page.mouse.click(*reader.place_of("front", 0))
    run.value.wait_for_url(RUN)
    assert page.context.pages == [page, run.value] and run.value.evaluate("window.opener") is None
    assert reader.complaints == []


def test_dragging_along_an_axis_keeps_the_trials_that_pass_there(
    read: Reader, keep: Callable[[Page, str], None]
) -> None:
    read.show("parallel")
    names = [dimension["label"] for dimension in read.data("parallel")[0]["dimensions"]]
    at = names.index("perplexity per word")
    everything = read.page.wait_for_function(LINES).json_value()
    box = read.page.locator("#parallel .axis-brush .background").nth(at).bounding_box()
    assert box is not None
    middle, bottom = box["x"] + box["width"] / 2, box["y"] + box["height"]
    read.page.mouse.move(middle, bottom - 0.1 * box["height"])
    read.page.mouse.down()
    read.page.mouse.move(middle, bottom - 0.3 * box["height"], steps=5)
    read.page.mouse.up()
    kept = f"document.getElementById('parallel').data[0].dimensions[{at}].constraintrange"
    low, high = read.page.wait_for_function(kept).json_value()
    ends = read.data("parallel")[0]["dimensions"][at]["range"]
    shares = [(value - ends[0]) / (ends[1] - ends[0]) for value in (low, high)]
    assert shares == pytest.approx([0.1, 0.3], abs=0.05)
    read.page.wait_for_function(f"{LINES} < 0.7 * {everything}")  # the others fade
    keep(read.page, "report-brushed")
    read.page.mouse.click(middle, bottom - 0.8 * box["height"])
    read.page.wait_for_function(f"!{kept}")


@pytest.fixture
def phone(browser: Browser) -> Iterator[BrowserContext]:
    """A small screen under a finger."""
    context = browser.new_context(viewport=PHONE, device_scale_factor=2, is_mobile=True, has_touch=True)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE)
    yield context
    context.close()


def test_a_phone_scrolls_down_only(
    phone: BrowserContext, big: tuple[SearchView, Path], keep: Callable[[Page, str], None]
) -> None:
    reader = Reader.at(phone.new_page())
    assert reader.read(big[1]) == ALL
    reader.not_blank(ALL)
    wide = reader.page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]")
    assert wide == [PHONE["width"]] * 3
    keep(reader.page, "report-phone")
    assert reader.asked == [] and reader.complaints == []


def test_a_finger_s_first_touch_shows_and_its_second_opens(
    phone: BrowserContext, books: tuple[SearchView, Path]
) -> None:
    reader = Reader.at(phone.new_page())
    reader.page.add_init_script("window.opened = []; window.open = address => { opened.push(address); };")
    reader.page.clock.install()
    reader.open(books[1])
    place = reader.place_of("front", 0)
    reader.page.touchscreen.tap(*place)
    expect(reader.page.locator("#front .hoverlayer .hovertext")).to_contain_text("T0 complete (baseline)")
    assert reader.page.evaluate("opened") == []
    reader.page.clock.fast_forward(A_MOMENT)
    reader.page.touchscreen.tap(*place)
    reader.page.wait_for_function("opened.length")
    assert reader.page.evaluate("opened") == [RUN]


def test_without_colours_a_plain_model_is_still_told_from_a_recurrent_one(
    read: Reader, big: tuple[SearchView, Path], keep: Callable[[Page, str], None]
) -> None:
    search, _ = big
    kinds = {number: search.kind(trial) for number, trial in search.state.trials.items()}
    for figure in ("front", "windows", "curves"):
        shapes: dict[str, set[str]] = {"none": set(), "pooled": set()}
        for trace in read.data(figure):
            if "customdata" in trace and trace["name"] != "pruned here":  # a cross: not what it was, how it ended
                symbols = trace["marker"]["symbol"]
                each = [symbols] * len(trace["customdata"]) if isinstance(symbols, str) else symbols
                for number, symbol in zip(trace["customdata"], each, strict=True):
                    shapes[kinds[number]].add(symbol.removesuffix("-open"))
        assert shapes == {"none": {"circle"}, "pooled": {"triangle-up"}}, figure
    lines = [trace for trace in read.data("front") if "dash" in trace.get("line", {})]
    drawn, told = ({one["line"]["dash"] for one in lines if (one["x"] == [None]) == entry} for entry in (False, True))
    assert drawn == told == {"dash", "solid"} and len(lines) == 4, "and the legend shows them as they are drawn"
    patterns = [trace["marker"]["pattern"]["shape"] for trace in read.data("timeline")]
    assert len(set(patterns)) == len(patterns) == 2, "how a trial ended"
    seeing = read.page.context.new_cdp_session(read.page)
    seeing.send("Emulation.setEmulatedVisionDeficiency", {"type": "achromatopsia"})
    keep(read.page, "report-without-colours")
    seeing.detach()


def alone(*last: float) -> list[Event]:
    """Trials that all reached their full budget, with these perplexities."""
    events = opening()
    for number, perplexity in enumerate(last):
        now = 100 + 10 * number
        events += begun(number, now, params_of(), 4e5, 2.0**25)
        events += [validated(number, now + 5, 1000, 80.0), validated(number, now + 10, 4000, perplexity, "complete")]
    return events


@pytest.mark.parametrize(
    ("name", "events", "drawn"),
    [
        ("one-trial", alone(70.0), ["front", "volume", "curves", "importance", "timeline"]),
        ("no-number", alone(math.nan, math.nan), ["importance", "timeline"]),
        ("one-number", alone(70.0, math.nan, math.nan), ["front", "volume", "curves", "importance", "timeline"]),
        ("unfinished", alone(70.0)[:-1], ["importance", "timeline"]),
    ],
)
def test_where_little_is_known_stands_a_figure_or_a_sentence(
    reader: Reader, tmp_path: Path, keep: Callable[[Page, str], None], name: str, events: list[Event], drawn: list[str]
) -> None:
    _, file = reported(read_search(make(tmp_path, events=events)))
    assert reader.read(file) == drawn
    reader.not_blank(drawn)
    sentences = reader.page.locator("section:has(h2) > .words")
    assert sentences.count() == reader.page.locator("section").count() - len(drawn) - ("front" in drawn)  # its table
    assert all(words.endswith(".") for words in sentences.all_inner_texts())
    keep(reader.page, f"report-{name}")


def test_a_report_is_whole_on_paper_and_no_wider(
    reader: Reader, books: tuple[SearchView, Path], tmp_path: Path
) -> None:
    reader.open(books[1])
    expect(reader.page.locator("#timeline .main-svg")).to_have_count(0)  # too far down to be drawn yet
    reader.page.pdf(path=tmp_path / "printed.pdf", prefer_css_page_size=True)
    printed = sheets(tmp_path / "printed.pdf")
    assert {sheet.size for sheet in printed} == {A4} and len(printed) < 8
    for panel in report_panels(books[0]):
        if panel.key == "confirmed":  # nobody has, and a sentence says so
            continue
        [words] = [set(sheet.words) for sheet in printed if panel.title in sheet.words]
        assert panel.figure is not None
        assert words_of(panel.printed or panel.figure) <= words, f"{panel.key} is on the sheet with its title"
    expect(reader.page.locator(".printed svg")).to_have_count(0)  # the screen's are as they were

    reader.show("front")
    reader.page.emulate_media(media="print")
    reader.page.set_viewport_size({"width": PAPER, "height": 1000})
    reader.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(reader.page.locator(".printed .main-svg:visible")).not_to_have_count(0)
    ends = reader.page.locator("main *:visible").evaluate_all(
        "parts => parts.map(part => part.getBoundingClientRect()).map(box => [box.left, box.right])"
    )
    assert round(min(left for left, _ in ends)) >= 0 and round(max(right for _, right in ends)) <= PAPER


def words_of(figure: dict[str, Any]) -> set[str]:
    """What stands at the axes of a figure."""
    layout = figure["layout"]
    titles = [axis["title"]["text"] for name, axis in layout.items() if "axis" in name and "title" in axis]
    notes = [note["text"] for note in layout.get("annotations", ())]
    return {line for words in [*titles, *notes] for line in words.split("<br>") if line}


def test_a_comparison_opens_without_a_network(
    reader: Reader, tmp_path: Path, keep: Callable[[Page, str], None]
) -> None:
    make(tmp_path, "books", few())
    make(tmp_path, "others", many(40))
    file = tmp_path / "compare.html"
    file.write_text(compare_page(comparison(tmp_path, ["books", "others"])))
    assert reader.read(file) == ["fronts"]
    reader.not_blank(["fronts"])
    reader.page.mouse.move(*reader.place_of("fronts", "0:1"))
    expect(reader.page.locator("#fronts .hoverlayer .hovertext")).to_contain_text("books: T1 complete (paper)")
    symbols = {trace["name"]: trace["marker"]["symbol"] for trace in reader.data("fronts") if trace.get("text")}
    assert symbols == {"books": "circle", "others": "triangle-up"}
    keep(reader.page, "compare")
