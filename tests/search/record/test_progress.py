"""How far a search is, and what it is expected to bring."""

from __future__ import annotations

from typing import Any

import pytest

from recur_tune.common.parsing import parse
from recur_tune.search.record.progress import expected_gains, next_hour
from recur_tune.search.record.spec import Budget
from tests.search.record.test_state import end, log, made, report, running


def budget(**fields: Any) -> Budget:
    return parse(Budget, {"tokens": 100, "rungs": 2, **fields})


OUTLOOK = {"kind": "outlook", "trials": [1, 2, 4], "expected": [0.1, 0.2, 0.3], "low": [0.0, 0.1, 0.1],
            "high": [0.2, 0.3, 0.5]}  # fmt: skip


def test_an_outlook_is_read_at_the_pace_so_far() -> None:
    """Three trials have ended after 100, 100 and 40 tokens, in 12 seconds: a whole trial takes five."""
    begun = {"kind": "search", "status": "started"}
    tokens = (100, 100, 40)
    trials = [line for n in range(3) for line in (made(n), running(n), report(n, tokens[n]), end(n, "pruned"))]
    state = log(begun, *trials)
    assert next_hour(state, budget(trials=2000)) is None, "no outlook yet, and no gain of a chosen trial"
    state = log(begun, *trials[:-1], OUTLOOK, trials[-1])  # 13 seconds
    pace = 2.4 / 13
    for left, whole in ((2.6, 0.48), (13, 2.4)):
        found = next_hour(state, budget(wall_clock=f"{13 + left}s"))
        assert found is not None and found.is_rest
        assert (found.trials, found.seconds) == pytest.approx((whole, left)) and whole == pytest.approx(left * pace)
    assert found == pytest.approx((2.4, 0.22, True, 13, 0.1, 0.34))
    hour = next_hour(state, budget(trials=2000))
    assert hour == pytest.approx((4, 0.3, False, 4 / pace, 0.1, 0.5)), "no further than the outlook"
    assert log(begun, OUTLOOK, {**OUTLOOK, "expected": [1, 1, 1]}).outlook["expected"] == [1, 1, 1]


def test_without_an_outlook_the_next_hour_is_worth_the_last_gain_for_every_trial() -> None:
    begun = {"kind": "search", "status": "started"}
    trials = [line for n in range(3) for line in (made(n, gain=0.3 / (n + 1)), running(n), end(n, "complete"))]
    state = log(begun, *trials, made(3, role="added"))
    assert expected_gains(state) == pytest.approx([0.3, 0.15, 0.1])
    # Three trials in the ten seconds that the log's lines are apart.
    assert next_hour(state, budget(trials=2000)) == pytest.approx((1080, 108, False, 3600, None, None))


def test_no_more_is_expected_than_the_budget_has_left() -> None:
    begun = {"kind": "search", "status": "started"}
    trials = [line for n in range(3) for line in (made(n, gain=0.1), running(n), end(n, "complete"))]
    state = log(begun, *trials, made(3, gain=0.1))  # ten seconds
    assert next_hour(state, budget(trials=8)) == pytest.approx((5, 0.5, True, 50 / 3, None, None))
    assert next_hour(state, budget(wall_clock="1m")) == pytest.approx((15, 1.5, True, 50, None, None))
    assert next_hour(state, budget(trials=8, wall_clock="20s")) == pytest.approx((3, 0.3, True, 10, None, None))
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
