"""How a search came about, from its log: the hypervolume's growth and the workers' time."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest

from recur_tune.report.history import Span, Volume, spans, timeline_rows, volumes
from recur_tune.search.record.front import search_hypervolume
from recur_tune.search.record.state import replay
from tests.report import REFERENCE, begun, few, make, many, opening, params_of, validated
from tests.search.record import OBJECTIVES


def test_the_hypervolume_grows_to_what_the_search_says() -> None:
    for events in (few(), many(120)):
        found = volumes(events, OBJECTIVES, REFERENCE)
        assert found[-1].value == pytest.approx(search_hypervolume(replay(events), OBJECTIVES), rel=1e-12)
        assert all(before.value <= after.value for before, after in pairwise(found)), "a front never loses"


def test_it_has_a_step_for_every_trial_at_full_budget() -> None:
    found = volumes(few(), OBJECTIVES, REFERENCE)
    assert [(one.seconds, one.trial) for one in found] == [(0, None), (10, 0), (12, 1), (18, 2), (20, 3), (30, None)]
    box = (1 - 60 / 100) * (1 - 4e5 / 1e6) * (1 - 2**25 / 2**27)
    assert found[1].value == pytest.approx(box)
    assert found[4].value == found[3].value, "a beaten trial adds nothing"


def test_what_is_no_number_and_what_is_no_better_add_nothing() -> None:
    events = opening()
    for number, perplexity in enumerate([60.0, math.nan, 60.0, 70.0, 50.0, 40.0]):
        events += begun(number, 100, params_of(), 4e5, 2.0**25)
        events += [validated(number, 101 + number, 4000, perplexity, "complete")]
    events[-1]["validation"] = {}
    first, *rest = [one.value for one in volumes(events, OBJECTIVES, REFERENCE)][1:-1]
    better = pytest.approx(first * (1 - 50 / 100) / (1 - 60 / 100))
    assert rest == [first, first, first, better, better]


def test_without_a_reference_there_is_no_volume() -> None:
    assert volumes(few(), OBJECTIVES, {"perplexity": 1.0}) == []
    assert volumes(opening(), OBJECTIVES, REFERENCE) == [Volume(0.0, None, 0.0), Volume(0.0, None, 0.0)]


def test_spans_are_the_workers_time() -> None:
    assert spans(few()) == [
        Span(0, "n1:1", 0, 10, "complete"), Span(1, "n1:2", 0, 12, "complete"), Span(2, "n1:1", 10, 18, "complete"),
        Span(3, "n1:2", 12, 20, "complete"), Span(4, "n1:1", 18, 22, "pruned"), Span(5, "", 22, 24, "failed"),
    ]  # fmt: skip


def test_a_moved_or_interrupted_trial_has_a_span_on_each_worker() -> None:
    params = params_of()
    events = [
        *opening(), *begun(0, 100, params, 4e5, 2.0**25), validated(0, 105, 1000, 90.0, worker="n1:1"),
        {"time": 106.0, "kind": "moved", "trial": 0}, validated(0, 110, 2000, 80.0, worker="n2:7"),
        {"time": 111.0, "kind": "end", "trial": 0, "state": "paused"},
        {"time": 112.0, "kind": "search", "status": "paused"},
        {"time": 50_112.0, "kind": "search", "status": "started"},
        {"time": 50_113.0, "kind": "running", "trial": 0}, validated(0, 50_115, 3000, 80.0, worker="n2:9"),
        {"time": 90_000.0, "kind": "search", "status": "started"},
        {"time": 90_001.0, "kind": "running", "trial": 0}, validated(0, 90_004, 3000, 80.0, worker="n3:1"),
    ]  # fmt: skip
    assert spans(events) == [
        Span(0, "n1:1", 0, 6, "moved"), Span(0, "n2:7", 6, 11, "paused"), Span(0, "n2:9", 13, 15, "interrupted"),
        Span(0, "n3:1", 16, 19, "running"),
    ]  # fmt: skip


def test_many_processes_share_as_few_rows_as_their_host_needs() -> None:
    stretches = [Span(n, f"n1:{n}", n, n + 1, "complete") for n in range(30)]
    stretches += [Span(40 + n, f"n2:{n}", 0, 9, "complete") for n in range(2)]
    rows = timeline_rows(stretches, most=10)
    assert list(rows) == ["n1 #1", "n2:0", "n2:1"] and len(rows["n1 #1"]) == 30
    assert list(timeline_rows(stretches[:3], most=10)) == ["n1 #1"], "one after the other"
    together = [Span(n, f"n1:{n}", 0, 1, "complete") for n in range(3)]
    assert list(timeline_rows(together, most=10)) == ["n1:0", "n1:1", "n1:2"], "a worker each"
    lost = [Span(n, "", n, n + 2, "failed") for n in range(3)]
    assert list(timeline_rows(lost, most=10)) == ["unknown", "unknown #2"], "two at once, and the third after them"
    for row in timeline_rows(spans(many(200)), most=2).values():
        assert all(before.end <= after.start for before, after in pairwise(row)), "no two at once in a row"


def test_spans_of_a_search_add_up(tmp_path: Path) -> None:
    directory = make(tmp_path, events=many(50))
    state = directory.state()
    found = spans(event for event, _ in directory.events())
    assert {span.trial for span in found} == set(state.trials)
    for span in found:
        trial = state.trials[span.trial]
        assert trial.started is not None and trial.ended is not None
        assert span.seconds == pytest.approx(trial.ended - trial.started), trial.name
