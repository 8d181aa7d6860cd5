"""Reading a log costs what is new in it, and leads where reading all of it does."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from recur_tune.cli.display import stderr
from recur_tune.cli.live_view import LiveView
from recur_tune.search.record.directory import EVENTS, SNAPSHOT, SearchDirectory
from recur_tune.search.record.event_log import drop_half_a_line
from recur_tune.search.record.log_follower import save_snapshot
from recur_tune.search.record.state import SearchState, replay
from tests.cli.books import make_books, record_report, record_trial
from tests.search.record import search


def whole(directory: SearchDirectory) -> SearchState:
    return replay(event for event, _ in directory.events())


@pytest.fixture
def books(tmp_path: Path) -> SearchDirectory:
    make_books(tmp_path)
    return SearchDirectory.open(tmp_path, "books")


@pytest.fixture
def long(tmp_path: Path) -> SearchDirectory:
    """A search whose log is so long that its writer has kept a snapshot of it."""
    directory = SearchDirectory.create(tmp_path, "long", search())
    log = directory.open_log()
    log.record("search", status="started")
    log.record("reference", values={"perplexity": 100.0, "flops_per_token": 1e8, "peak_memory": 2.0**26})
    number = 0
    while not (directory.path / SNAPSHOT).exists():
        log.record("trial", trial=number, params={"window": 16}, costs={"flops_per_token": 1e6, "peak_memory": 1e6})
        log.record("running", trial=number)
        for tokens in range(1000, 30_000, 1000):
            log.record("report", trial=number, tokens=tokens, loss=2.5, validation={"perplexity": 90 - number % 50})
        log.record("end", trial=number, state="complete")
        number += 1
    return directory


def make_unreadable(directory: SearchDirectory) -> None:
    """What stands in the log up to the snapshot's place can no more be read."""
    offset = json.loads((directory.path / SNAPSHOT).read_bytes())["offset"]
    with (directory.path / EVENTS).open("rb+") as file:
        file.write(b"?" * (offset - 1000))


def test_who_asks_for_the_state_reads_what_came_after_the_snapshot(long: SearchDirectory) -> None:
    before = whole(long)
    make_unreadable(long)
    assert long.state() == before
    record_trial(long, 9999, window=32)
    state = long.state()
    assert set(state.trials) - set(before.trials) == {9999}


def test_a_live_table_reads_no_line_twice(long: SearchDirectory) -> None:
    watch, ended = LiveView(long), len(long.state().trials)
    make_unreadable(long)
    long.record("trial", trial=9999, params={"window": 32}, costs={"flops_per_token": 1e5, "peak_memory": 1e5})
    record_report(long, 9999, 30_000, 20.0, "complete")
    watch.catch_up()
    with stderr.capture() as shown:
        stderr.print(watch)
    assert f"{ended + 1} trials ended" in shown.get() or f"{ended + 1} of" in shown.get()
    assert "█, " in shown.get() or "█\n" in shown.get(), "the last one is the best"


@hypothesis.given(data=st.data())
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=25)
def test_a_snapshot_and_the_rest_lead_where_the_whole_log_does(books: SearchDirectory, data: st.DataObject) -> None:
    places = [after for _, after in books.events()]
    place, until = data.draw(st.sampled_from(places)), data.draw(st.sampled_from(places))
    at = replay(event for event, after in books.events() if after <= place)
    save_snapshot(books.path / SNAPSHOT, books.path / EVENTS, at, place)
    assert books.state() == whole(books)
    assert books.follow(until).state == replay(event for event, after in books.events() if after <= until)


def garbage(content: dict[str, Any]) -> str:
    return "{"


def of_another_version(content: dict[str, Any]) -> str:
    return json.dumps(content | {"reader": [0]})


def of_another_log(content: dict[str, Any]) -> str:
    return json.dumps(content | {"before": "0" * 64})


def of_a_longer_log(content: dict[str, Any]) -> str:
    return json.dumps(content | {"offset": 10**9})


@pytest.mark.parametrize("spoil", [garbage, of_another_version, of_another_log, of_a_longer_log])
def test_a_snapshot_that_does_not_fit_is_as_good_as_none(
    books: SearchDirectory, spoil: Callable[[dict[str, Any]], str]
) -> None:
    wrong = SearchState(status="wrong")
    save_snapshot(books.path / SNAPSHOT, books.path / EVENTS, wrong, (books.path / EVENTS).stat().st_size)
    assert books.state().status == "wrong", "as it is, it is taken"
    file = books.path / SNAPSHOT
    file.write_text(spoil(json.loads(file.read_text())))
    assert books.state() == whole(books)


@hypothesis.given(
    lines=st.lists(st.binary(max_size=40).map(lambda text: text.replace(b"\n", b"")), max_size=5),
    long_line=st.integers(0, 200_000), half=st.binary(max_size=20).map(lambda text: text.replace(b"\n", b"")),
)  # fmt: skip
def test_half_a_line_goes_and_all_whole_ones_stay(lines: list[bytes], long_line: int, half: bytes) -> None:
    content = b"".join(line + b"\n" for line in [*lines, b"x" * long_line])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log"
        file.write_bytes(content + half)
        drop_half_a_line(file)
        assert file.read_bytes() == content
        file.write_bytes(half * 5000)
        drop_half_a_line(file)
        assert file.read_bytes() == b""
