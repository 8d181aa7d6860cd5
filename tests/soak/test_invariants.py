"""The soak's own judge: silent on a search whose books agree, red on each way in which they can be wrong."""

from __future__ import annotations

from copy import deepcopy
from itertools import islice
from typing import Any

import pytest

from tests.soak.books import Books, Run, Told
from tests.soak.invariants import Witness
from tests.soak.plan import MINUTE, plan

_OBJECTIVES = ("token_perplexity", "flops_per_token")


def _trial(number: int, flops: float) -> dict[str, Any]:
    return {"kind": "trial", "trial": number, "params": {"window": number}, "costs": {"flops_per_token": flops}}


def _report(number: int, perplexity: float, **end: Any) -> dict[str, Any]:
    validation = {"token_perplexity": perplexity}
    return {"kind": "report", "trial": number, "tokens": 100, "validation": validation, **end}


@pytest.fixture
def books() -> Books:
    """Two trials that ended, one of them after a resume."""
    events: list[dict[str, Any]] = [
        {"kind": "search", "status": "started"},
        {"kind": "reference", "values": {"token_perplexity": 10.0, "flops_per_token": 100.0}},
        _trial(0, 50.0),
        {"kind": "running", "trial": 0},
        _report(0, 5.0, state="complete"),
        {"kind": "search", "status": "started"},
        _trial(1, 20.0),
        {"kind": "running", "trial": 1},
        _report(1, 8.0, state="complete"),
        {"kind": "search", "status": "finished"},
    ]
    study = {0: Told("COMPLETE", [5.0, 50.0]), 1: Told("COMPLETE", [8.0, 20.0])}
    runs = [
        Run(number, "FINISHED", {"token_perplexity": quality, "MFLOPs_per_token": cost * 1e-6})
        for number, (quality, cost) in enumerate([(5.0, 50.0), (8.0, 20.0)])
    ]
    timed = [{"time": float(moment), **event} for moment, event in enumerate(events)]
    return Books(_OBJECTIVES, timed, study, runs, ["FINISHED"])


def _found(books: Books, before: Books | None = None, settled: bool = True) -> str:
    witness = Witness()
    if before is not None:
        assert witness.check(before, settled=False) == []
    return "; ".join(witness.check(books, settled))


def test_books_that_agree_are_left_in_peace(books: Books) -> None:
    assert _found(books, before=books) == ""
    witness = Witness()
    witness.check(books, settled=True)
    # In units of the reference: 0.5 x 0.5, and what 0.2 x 0.8 adds to it on its side.
    assert witness.hypervolume == pytest.approx(0.25 + 0.2 * 0.3)


@pytest.mark.parametrize("again", [{"kind": "running", "trial": 0}, _report(0, 4.0, state="complete")])
def test_a_trial_that_is_trained_twice_is_seen(books: Books, again: dict[str, Any]) -> None:
    books.events.insert(6, {"time": 5.5, **again})
    assert "T0 went on after its end" in _found(books)


def test_a_trial_that_comes_back_under_another_number_is_seen(books: Books) -> None:
    books.events[6]["params"] = books.events[2]["params"]
    assert "2 trials are one and the same" in _found(books)


def test_a_lost_trial_is_seen(books: Books) -> None:
    before, known = deepcopy(books), [event for event in books.events if event.get("trial") != 0]
    books.events, books.study, books.runs = known, {1: books.study[1]}, books.runs[1:]
    assert "T0 was complete and is gone" in _found(books, before)


def test_a_result_that_changes_is_seen(books: Books) -> None:
    before = deepcopy(books)
    books.events[4]["validation"]["token_perplexity"] = 4.0
    assert "T0 ended at [5.0, 50.0] and now has [4.0, 50.0]" in _found(books, before)


def test_a_hypervolume_that_falls_is_seen_within_a_log_and_between_two_looks(books: Books) -> None:
    before = deepcopy(books)
    books.events.insert(9, {"time": 8.5, **_report(0, 9.0, state="complete")})
    assert "the hypervolume fell from 0.31 to 0.16 with T0" in _found(books)
    smaller = deepcopy(before)
    smaller.events[4]["validation"]["token_perplexity"] = 9.0
    assert "the hypervolume was 0.31 and is 0.16" in _found(smaller, before)


def test_a_trial_that_fails_or_stays_open_is_seen(books: Books) -> None:
    books.events[8]["state"], books.events[8]["reason"] = "failed", "its node died"
    assert "T1 failed: its node died" in _found(books)
    del books.events[8]["state"]
    assert "T1 is running at the end" in _found(books)


def test_a_study_that_differs_is_seen(books: Books) -> None:
    books.study[0] = Told("RUNNING")
    assert "Optuna calls T0 RUNNING, the log complete" in _found(books, settled=False), "it was due at the next start"
    books.study[0], books.study[1] = Told("COMPLETE", [4.0, 50.0]), Told("RUNNING")
    assert _found(books, settled=False) == "Optuna has [4.0, 50.0] for T0, the log [5.0, 50.0]", "T1 may be told later"
    assert "Optuna calls T1 RUNNING, the log complete" in _found(books)
    del books.study[0]
    assert "Optuna does not know T0" in _found(books)


def test_an_mlflow_that_differs_is_seen(books: Books) -> None:
    twice, late = deepcopy(books), deepcopy(books)
    twice.runs.append(twice.runs[0])
    assert "MLflow has 2 runs of T0" in _found(twice)
    late.runs = [Run(0, "RUNNING", {})]
    assert _found(late, settled=False) == "", "it may be late"
    assert _found(late) == "MLflow has no run of T1; MLflow calls T0 RUNNING, the log complete"
    books.runs[1].metrics["token_perplexity"] = 7.0
    assert "MLflow has token_perplexity 7.0 for T1, the log 8.0" in _found(books)
    del books.events[8]["state"]
    assert "MLflow calls T1 FINISHED, the log running" in _found(books, settled=False)


def test_a_plan_is_its_seed_and_has_a_fault_of_every_kind() -> None:
    kinds = ["driver", "node", "clock"]
    draws = list(islice(plan(7, kinds), 12))
    assert draws == list(islice(plan(7, kinds), 12)) != list(islice(plan(8, kinds), 12))
    for first in range(0, 12, 3):
        assert {draw.kind for draw in draws[first : first + 3]} == set(kinds)
    for draw in draws:
        assert MINUTE * (draw.minute - 1) <= draw.due < MINUTE * draw.minute
