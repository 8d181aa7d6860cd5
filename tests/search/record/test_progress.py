"""How far a search is, and what it is expected to bring."""

from __future__ import annotations

import pytest

from recur_tune.search.record.progress import expected_gains, next_hour
from tests.search.record.test_state import end, log, made, running


def test_the_next_hour_is_worth_the_last_gain_for_every_trial() -> None:
    begun = {"kind": "search", "status": "started"}
    trials = [line for n in range(3) for line in (made(n, gain=0.3 / (n + 1)), running(n), end(n, "complete"))]
    state = log(begun, *trials, made(3, role="added"))
    assert expected_gains(state) == pytest.approx([0.3, 0.15, 0.1])
    # Three trials in the ten seconds that the log's lines are apart.
    assert next_hour(state) == pytest.approx((1080, 108))


def test_nothing_is_said_of_it_where_no_model_chose_or_too_few_have_ended() -> None:
    begun = {"kind": "search", "status": "started"}
    ended = [line for n in range(3) for line in (made(n), running(n), end(n, "complete"))]
    assert next_hour(log(begun, *ended)) is None
    assert next_hour(log(begun, made(0, gain=0.1), running(0), end(0, "complete"))) is None


def test_a_search_that_goes_on_looks_again_for_what_it_did_not_find() -> None:
    begun, notice = {"kind": "search", "status": "started"}, {"kind": "notice", "text": "no more", "exhausted": True}
    assert log(begun, notice).exhausted
    assert not log(begun, notice, begun).exhausted
    assert log(begun, notice, {**begun, "confirming": True}).exhausted
