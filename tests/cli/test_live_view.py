"""The live view of a search: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from recur_tune.cli import display, live_view
from recur_tune.cli.live_view import LiveView
from recur_tune.report.history import Volume, volumes
from recur_tune.search.record.directory import EVENTS, SearchDirectory
from recur_tune.training.interrupt import stop_requests
from tests.cli.books import lines_of, record_report, record_trial


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Console]:
    """Puts a console of our own where the live table is shown."""

    def put(**settings: Any) -> Console:
        console = Console(file=io.StringIO(), markup=False, **settings)
        monkeypatch.setattr(display, "stderr", console)
        monkeypatch.setattr(live_view, "stderr", console)
        return console

    return put


def test_the_live_table_ends_with_marks_roles_and_what_did_not_fit(results: Path) -> None:
    directory = SearchDirectory.open(results, "books")
    record_trial(directory, 7, "first 1", recurrence="none", window=32, overlap=0, learning_rate=1e-3)
    view = LiveView(directory)
    view.catch_up()
    console = Console(width=56, file=io.StringIO(), markup=False)
    console.print(view.table(8, 56))
    told = " ".join(console.file.getvalue().split())
    roles = "roles: T1 paper, T0 baseline, T7 first 1 of the space"
    assert f"● on the front; {roles}; no room for the fields " in told


def test_off_a_terminal_every_event_is_a_line(results: Path, screen: Callable[..., Console]) -> None:
    console = screen(width=60)
    log = results / "books" / EVENTS
    SearchDirectory.open(results, "books").record("running", trial=4, after="The actor died")
    written = log.read_text()
    log.write_text("")
    with LiveView(SearchDirectory.open(results, "books")) as shown:
        shown.stage("starting Ray …")
        log.write_text(written)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = lines_of(text)
    assert lines[0] == "starting Ray …"
    assert "  T0 starts: baseline: none window 32 overlap 0 learning_rate 0.00123" in lines
    [ended] = [line for line in lines if line.startswith("  T1 complete")]
    assert "perplexity per word 40, FLOPs/token 32M, peak memory 11 MiB" in ended and "of 7 trials ended" in ended
    assert any("T6 failed (its worker [rank 0] died)" in line for line in lines)
    assert "  T4 goes on again, after: The actor died" in lines
    assert any("T5 infeasible (peak_memory 80 MiB is over the limit of 64 MiB)" in line for line in lines)
    assert "  note: MLflow has not got everything" in lines
    assert "\x1b" not in text


def test_on_a_terminal_there_is_a_table_with_states_and_front(results: Path, screen: Callable[..., Console]) -> None:
    console = screen(force_terminal=True, width=80, height=40, color_system=None)
    directory = SearchDirectory.open(results, "books")
    with LiveView(directory) as shown:
        shown.searching()
        console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("books", "searching …", "5 of 7 trials ended", "2 on the front", "hypervolume 0.", "of 80k"):
        assert words in text, words
    assert "Ray dashboard http://127.0.0.1:8265" in text and "note: MLflow has not got everything" in text
    assert "T6 failed: its worker [rank 0] died" in text
    assert display.sparkline([volume.value for volume in hypervolumes(directory)]) in text
    rows = [line.split() for line in text.splitlines() if " T" in line]
    assert ["●", "T1", "complete"] in [row[:3] for row in rows]
    assert ["T4", "running", "20k", "60"] in [row[:4] for row in rows]
    assert ["T5", "infeasible", "0", "-"] in [row[:4] for row in rows], "nothing is known of its quality"


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_says_at_once_that_the_search_pauses_and_what_a_second_one_costs(
    results: Path, screen: Callable[..., Console], terminal: bool
) -> None:
    console = screen(force_terminal=terminal, width=300, height=40, color_system=None)
    with LiveView(SearchDirectory.open(results, "books")) as shown, stop_requests(shown.pausing) as asked:
        shown.searching()
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        if terminal:
            console.print(shown)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "pausing: each trial saves a checkpoint" in text
    assert "Ctrl-C again ends the search at once" in text and "since its last validation" in text


def hypervolumes(directory: SearchDirectory) -> list[Volume]:
    events = (event for event, _ in directory.events())
    return volumes(events, directory.spec.objectives, directory.state().reference)[1:-1]


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([3.0], ""), ([2.0, 2.0], ""), ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"), ([5, 0, 5], "█▁█")],
)
def test_a_sparkline_goes_from_the_smallest_to_the_largest(values: list[float], bars: str) -> None:
    assert display.sparkline(values) == bars
    assert display.sparkline([9.0, *values], width=len(values)) == bars


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        ({"trials": 7}, "about 40s left"),  # five have ended after 100 s
        ({"trials": 7, "wall_clock": 130}, "about 30s left"),
        ({"trials": 5}, ""),
    ],
)
def test_the_time_left_is_the_nearer_of_both_budgets(results: Path, budget: dict[str, float], left: str) -> None:
    shown = LiveView(SearchDirectory.open(results, "books"))
    shown.state.active_seconds = 100.0
    shown.spec = shown.spec.model_copy(update={"budget": shown.spec.budget.model_copy(update=budget)})
    assert shown.time_left() == left


def test_a_small_screen_shows_what_matters_most(results: Path) -> None:
    shown = LiveView(SearchDirectory.open(results, "books"))
    console = Console(file=io.StringIO(), width=80)
    console.print(shown.table(rows=3, width=80))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert [name for name in ("T4", "T1", "T0", "T6") if f"{name} " in text] == ["T4", "T1", "T0"]
    assert "4 more trials" in text


def test_a_watch_sees_what_is_written_later(results: Path) -> None:
    directory = SearchDirectory.open(results, "books")
    shown = LiveView(directory)
    assert shown.headline().startswith("5 of 7 trials ended, 2 on the front, hypervolume")
    record_report(directory, 4, 80_000, 20.0, "complete")
    assert [event["trial"] for event in shown.news()] == [4]
    assert shown.headline().startswith("6 of 7 trials ended, 3 on the front") and list(shown.news()) == []
