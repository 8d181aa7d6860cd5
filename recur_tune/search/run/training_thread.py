"""The training thread of a process: all of its trials train there, one after the other.

Ray Tune starts a thread for every trial of an actor. That breaks CUDA: a process crashed when a later thread destroyed
a CUDA graph, and trials failed on a GPU, some as the third in their process. With one thread neither was seen again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from functools import cache
from queue import SimpleQueue
from typing import TypeVar

Message = TypeVar("Message")


def messages_of(work: Callable[[Callable[[Message], None]], None]) -> Generator[Message, None, None]:
    """Run `work` in the training thread and yield its reports. It waits at each report until the next is asked for, and
    ends there when the generator is closed. Its exceptions are raised here."""
    messages: SimpleQueue[tuple[Message] | None] = SimpleQueue()
    asked_to_go_on: SimpleQueue[bool] = SimpleQueue()

    def report(message: Message) -> None:
        messages.put((message,))
        if not asked_to_go_on.get():
            sys.exit()

    ended = _run_in_training_thread(lambda: work(report))
    ended.add_done_callback(lambda _: messages.put(None))
    try:
        while message := messages.get():
            yield message[0]
            asked_to_go_on.put(True)
        ended.result()
    finally:
        asked_to_go_on.put(False)
        wait([ended])  # the process's next trial finds the thread free and the memory released


def _run_in_training_thread(call: Callable[[], None]) -> Future[None]:
    ended: Future[None] = Future()
    _calls().put((call, ended))
    return ended


@cache
def _calls() -> SimpleQueue[tuple[Callable[[], None], Future[None]]]:
    """The thread's queue; the thread is started with the first call and does not keep a process alive."""
    calls: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()

    def work() -> None:
        while True:
            _run(*calls.get())

    threading.Thread(target=work, name="training", daemon=True).start()
    return calls


def _run(call: Callable[[], None], ended: Future[None]) -> None:
    try:
        call()
    except BaseException as error:
        ended.set_exception(error)
    else:
        ended.set_result(None)
