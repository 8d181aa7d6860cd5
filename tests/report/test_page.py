"""The report as one file that needs nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from recur_tune.report.page import report_page
from recur_tune.report.search_view import read_search
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.tracking_place import DELIVERED
from tests.report import few, make, many

SERVER = "http://name:secret@mlflow.example:5000/"


class Outside(HTMLParser):
    """Collects every address that a page would load or lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [(tag, value or "") for name, value in attrs if name in ("src", "href", "action", "data")]


def addresses(page: str) -> list[tuple[str, str]]:
    reader = Outside()
    reader.feed(page)
    return reader.found


def data_of(page: str) -> dict:
    [found] = re.findall(r'<script type="application/json" id="page">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(found, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def tracked(tmp_path: Path) -> SearchDirectory:
    directory = make(tmp_path, events=few(), tracking=SERVER)
    delivered = {"uri": SERVER, "experiment": "3", "parent": "p", "offset": 0, "runs": {"0": "run0", "1": "run1"}}
    (directory.path / DELIVERED).write_text(json.dumps(delivered))
    return directory


def test_it_loads_nothing_and_sends_nothing(tmp_path: Path) -> None:
    page = report_page(read_search(make(tmp_path, events=few())))
    assert addresses(page) == [("link", "data:,")]
    assert page.count("* plotly.js v") == 1, "the library is inside, once"
    assert "showSendToCloud: false" in page


def test_five_hundred_trials_are_all_there_and_stay_small(tmp_path: Path) -> None:
    directory = make(tmp_path, events=many(500))
    page = report_page(read_search(directory))
    assert len(page.encode()) < 8_000_000
    data = data_of(page)
    assert len(data["trials"]) == 500
    marks = {
        number: (x, y)
        for trace in data["figures"][0]["data"]
        for number, x, y in zip(trace.get("customdata", ()), trace["x"], trace["y"], strict=False)
    }
    trials = directory.state().trials
    assert marks == {
        number: (trials[number].costs["flops_per_token"], trials[number].metrics["perplexity"]) for number in range(500)
    }
    assert [figure["key"] for figure in data["figures"]] == [
        "front", "windows", "volume", "curves", "importance", "parallel", "timeline",
    ]  # fmt: skip


def test_it_says_what_was_found(tmp_path: Path) -> None:
    search = read_search(make(tmp_path, events=few()))
    page = report_page(search)
    assert "<title>books: report</title>" in page and "<h1>books</h1>" in page and 'name="viewport"' in page
    words = re.sub(r"<[^>]+>", "\n", page.split("<div class=panels>")[0].split("<main>")[1])
    for said in ("6", "4 complete", "on the front", "best perplexity per word, plain", "60", "recurrent", "50", "30s"):
        assert said in words
    assert f"{search.hypervolume:.3f}" in words
    commands = re.findall(r"<code>(.*?)</code>", page)
    assert [re.sub("<[^>]+>", "", command) for command in commands] == [search.command(one) for one in search.best]


def test_a_trial_tells_all_about_itself_and_nothing_breaks_out(tmp_path: Path) -> None:
    page = report_page(read_search(make(tmp_path, events=few())))
    trials = data_of(page)["trials"]
    assert trials["1"]["text"].startswith("<b>T1</b> complete (paper), 4k tokens<br>perplexity per word: 50<br>")
    assert "its worker &lt;died&gt;" in trials["5"]["text"]
    assert "url" not in trials["1"], "a database on a disk has no pages"
    assert "<died>" not in page


def test_a_server_s_runs_are_linked_without_its_password(tmp_path: Path) -> None:
    page = report_page(read_search(tracked(tmp_path)))
    first = "http://mlflow.example:5000/#/experiments/3/runs/run0"
    assert data_of(page)["trials"]["0"]["url"] == first and "url" not in data_of(page)["trials"]["2"]
    assert ("a", first) in addresses(page) and "secret" not in page.split("* plotly.js v")[0]
