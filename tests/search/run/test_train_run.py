"""The mailbox between a trial's actor and its workers: who takes which trial, how often, and what it becomes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

from recur_tune.search.run.messages import ending
from recur_tune.search.run.train_run import Arrivals, Mailbox, hang_of, why_started_again

T = TypeVar("T")
FIRST, SECOND = {"number": 7, "folder": "s/trials/7"}, {"number": 8, "folder": "s/trials/8"}
LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"


def soon(answer: Awaitable[T]) -> T:
    """An answer that has to be there at once."""

    async def within() -> T:
        return await asyncio.wait_for(answer, 1.0)

    return asyncio.run(within())


def test_each_worker_takes_each_trial_once_and_waits_for_the_next() -> None:
    async def story() -> list[Any]:
        mailbox, seen = Mailbox(), []
        await mailbox.put(FIRST)
        seen.append([await mailbox.take(rank, "n1", 0) for rank in (0, 1)])
        early = asyncio.create_task(mailbox.take(1, "n1", 1))  # has left already, while the first still saves the model
        await mailbox.tell(1, {"state": "complete"})
        seen.append(await mailbox.next())
        await asyncio.sleep(0)
        assert not early.done()
        await mailbox.put(SECOND)
        seen.append([await mailbox.take(0, "n1", 1), await early])
        return seen

    assert soon(story()) == [[(1, FIRST), (1, FIRST)], {"state": "complete"}, [(2, SECOND), (2, SECOND)]]


def test_workers_that_were_started_again_take_the_same_trial_until_they_failed_too_often() -> None:
    async def story() -> list[dict[str, Any]]:
        mailbox = Mailbox()
        await mailbox.put(FIRST)
        for _ in range(4):
            assert [await mailbox.take(rank, "n1", 0) for rank in (1, 0)] == [(1, FIRST)] * 2
            await mailbox.error(1, 0, LOST)
            await mailbox.error(1, 1, "ValueError: no such layer")
        waiting = [asyncio.create_task(mailbox.take(rank, "n1", 0)) for rank in (0, 1)]
        heard = [await mailbox.next() for _ in range(4)]
        assert not any(task.done() for task in waiting), "they live, and wait for another trial"
        await mailbox.put(SECOND)
        assert [await task for task in waiting] == [(2, SECOND)] * 2
        return heard

    *notices, outcome = soon(story())
    assert notices == [{"notice": "its workers were started again: ValueError: no such layer."}] * 3
    reason = "ValueError: no such layer (see s/trials/7/error.txt)"
    assert outcome == ending("failed", reason, "error") | {"replace_actor": True}


@pytest.mark.parametrize(
    ("errors", "why"),
    [
        ({0: LOST}, "worker 1 on n2 died"),
        ({0: LOST, 1: "OSError: no such file"}, "OSError: no such file"),
        ({0: LOST, 1: LOST}, "one of them died"),
        ({}, "one of them died"),  # and the other was killed before it had noticed
    ],
)
def test_a_worker_that_dies_without_a_word_is_named(errors: dict[int, str], why: str) -> None:
    assert why_started_again({0: "n1", 1: "n2"}, errors) == why


def test_the_first_end_counts_and_late_words_are_dropped() -> None:
    async def story() -> list[Any]:
        mailbox = Mailbox()
        await mailbox.put(FIRST)
        await mailbox.tell(1, {"loss": 2.0})
        await mailbox.tell(1, ending("paused", "the disk is full", "storage"))
        await mailbox.tell(1, {"left": True})
        heard = [await mailbox.next(), await mailbox.next()]
        await mailbox.put(SECOND)
        await mailbox.tell(1, {"loss": 1.0})  # of the trial before
        await mailbox.tell(2, {"left": True})
        return [*heard, await mailbox.next()]

    assert soon(story()) == [{"loss": 2.0}, ending("paused", "the disk is full", "storage"), {"left": True}]


def test_a_worker_for_which_the_others_wait_is_named() -> None:
    long_ago = time.monotonic() - 100
    behind = {0: Arrivals("n1", 12, long_ago), 1: Arrivals("n2", 11, long_ago - 5), 2: Arrivals("n3", 12, long_ago)}
    assert hang_of(behind, 60).startswith("worker 1 on n2 has not arrived")
    assert hang_of(behind, 200) == "", "not yet"
    assert hang_of(behind | {2: Arrivals("n3", 12)}, 60) == "", "one has just arrived there"
    level = {rank: Arrivals("n1", 12, long_ago) for rank in range(3)}
    assert hang_of(level, 60) == "", "all of them work, on a long validation"
    assert hang_of({}, 60) == ""


def test_a_worker_that_hangs_before_its_first_sign_of_life_is_named_too() -> None:
    async def story() -> str:
        mailbox = Mailbox()
        await mailbox.put(FIRST)
        for rank in (0, 1):
            await mailbox.take(rank, f"n{rank + 1}", 0)
        await mailbox.arrived(0, 1, 12)
        return await mailbox.hang(0)

    assert soon(story()).startswith("worker 1 on n2 has not arrived")
