"""How far a search is, and what it is expected to bring."""

from __future__ import annotations

from typing import Any

import pytest

from recur_tune.common.parsing import parse
from recur_tune.search.record.progress import expected_gains, next_hour
from recur_tune.search.record.spec import Budget
from tests.search.record.test_state import end, log, made, running


def budget(**fields: Any) -> Budget:
    return parse(Budget, {"tokens": 100, "rungs": 2, **fields})


def test_the_next_hour_is_worth_the_last_gain_for_every_trial() -> None:
    begun = {"kind": "search", "status": "started"}
    trials = [line for n in range(3) for line in (made(n, gain=0.3 / (n + 1)), running(n), end(n, "complete"))]
    state = log(begun, *trials, made(3, role="added"))
    assert expected_gains(state) == pytest.approx([0.3, 0.15, 0.1])
    # Three trials in the ten seconds that the log's lines are apart.
    assert next_hour(state, budget(trials=2000)) == pytest.approx((1080, 108, False))


def test_no_more_is_expected_than_the_budget_has_left() -> None:
    begun = {"kind": "search", "status": "started"}
    trials = [line for n in range(3) for line in (made(n, gain=0.1), running(n), end(n, "complete"))]
    state = log(begun, *trials, made(3, gain=0.1))  # ten seconds
    assert next_hour(state, budget(trials=8)) == pytest.approx((5, 0.5, True))
    assert next_hour(state, budget(wall_clock="1m")) == pytest.approx((15, 1.5, True))
    assert next_hour(state, budget(trials=8, wall_clock="20s")) == pytest.approx((3, 0.3, True))
    assert next_hour(state, budget(trials=3)) is None


def test_nothing_is_said_of_it_where_no_model_chose_or_too_few_have_ended() -> None:
    begun = {"kind": "search", "status": "started"}
    ended = [line for n in range(3) for line in (made(n), running(n), end(n, "complete"))]
    assert next_hour(log(begun, *ended), budget(trials=2000)) is None
    one = log(begun, made(0, gain=0.1), running(0), end(0, "complete"))
    assert next_hour(one, budget(trials=2000)) is None


def test_a_search_that_goes_on_looks_again_for_what_it_did_not_find() -> None:
    begun, notice = {"kind": "search", "status": "started"}, {"kind": "notice", "text": "no more", "exhausted": True}
    assert log(begun, notice).exhausted
    assert not log(begun, notice, begun).exhausted
    assert log(begun, notice, {**begun, "confirming": True}).exhausted
