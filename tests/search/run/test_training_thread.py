"""Work in the training thread, and what it says on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from recur_tune.search.run.training_thread import messages_of

Report = Callable[[int], None]


def test_every_message_arrives_in_order() -> None:
    def count(report: Report) -> None:
        for number in range(5):
            report(number)

    assert list(messages_of(count)) == [0, 1, 2, 3, 4]


def test_work_waits_at_a_report_until_the_next_is_asked_for() -> None:
    begun: list[int] = []

    def count(report: Report) -> None:
        for number in range(3):
            begun.append(number)
            report(number)

    with closing(messages_of(count)) as messages:
        for number in messages:
            assert begun == list(range(number + 1))


def test_all_work_is_done_in_one_thread_that_is_not_the_callers() -> None:
    threads: list[threading.Thread] = []

    def look(report: Report) -> None:
        threads.append(threading.current_thread())

    def ask() -> None:
        assert list(messages_of(look)) == []

    for caller in (threading.Thread(target=ask), threading.Thread(target=ask)):
        caller.start()
        caller.join()
    first, second = threads
    assert first is second is not threading.current_thread()


def test_closing_ends_the_work_at_its_report_and_waits_for_it() -> None:
    ended = threading.Event()

    def count(report: Report) -> None:
        try:
            report(0)
            report(1)
        finally:
            ended.set()

    messages = messages_of(count)
    assert next(messages) == 0
    messages.close()
    assert ended.is_set()
    assert list(messages_of(lambda report: report(7))) == [7], "and the thread is free for more"


def test_what_is_raised_there_is_raised_here() -> None:
    def fail(report: Report) -> None:
        report(1)
        raise KeyError("x")

    messages = messages_of(fail)
    assert next(messages) == 1
    with pytest.raises(KeyError, match="x"):
        next(messages)
