"""What is done at most every so many seconds, against a clock that stands still until it is moved."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from recur_tune.common import throttle
from recur_tune.common.throttle import Every, Throttled


class Clock:
    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(throttle, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.mark.parametrize(("at_once", "expected"), [(True, [0, 10, 20]), (False, [10, 20])])
def test_it_is_time_again_after_so_many_seconds(clock: Clock, at_once: bool, expected: list[int]) -> None:
    due, yes = Every(10, at_once), []
    for second in range(25):
        clock.now = 100.0 + second
        if due():
            yes.append(second)
    assert yes == expected


def test_seconds_count_from_the_last_yes(clock: Clock) -> None:
    due = Every(10)
    assert due()
    clock.now += 17
    assert due()
    clock.now += 9
    assert not due()


def test_a_question_is_asked_only_when_it_is_time(clock: Clock) -> None:
    asked = []
    question = Throttled(lambda: not asked.append(clock.now), 5)
    assert question() and not question()
    clock.now += 5
    assert question() and asked == [100.0, 105.0]
    assert not Throttled(lambda: False, 5)()
