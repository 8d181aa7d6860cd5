"""A Ray Train run that serves many trials: its workers stay, so that a later trial costs no start.

The actor of a trial starts the run once, in a thread, and gives it one trial after the other through a mailbox. Each
worker takes a trial there, trains its part and takes the next. Ray Train starts the workers and connects them; when one
is lost or raises, it restarts all of them, since the others wait for it in the middle of a step. The new ones take the
same trial from the mailbox and continue from its checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recur_tune.cluster.capacity import WAITING_CPU
from recur_tune.cluster.connection import node_name
from recur_tune.common.collective_timeout import collective_timeout
from recur_tune.common.files import storage_fault
from recur_tune.common.loading import load
from recur_tune.search.record.directory import STOP
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.state import STORAGE
from recur_tune.search.run.messages import Message, ending

_TRIAL = "recur_tune.search.run.trainable"
_MOST_FAILURES = 3  # of the workers of one trial, as Ray Tune's own limit
_SECONDS_BETWEEN_LOOKS = 2.0  # at whether the run is alive, and between workers' signs of life
_SILENT = 5 * _SECONDS_BETWEEN_LOOKS  # so long without a sign of life, no worker has the trial
_AFTER_OURS = 120.0  # seconds that others wait longer for a worker that hangs, since our sentence names it
_LOST_PEER = ("peer", "NCCL", "Gloo")  # in an error that only says that another worker is gone


class WorkersFailed(Exception):
    """A trial's workers failed or moved, and its actor has to be replaced."""


@dataclass
class Arrivals:
    """A worker's sign of life: how many collectives it has arrived at, and since when."""

    node: str
    count: int
    since: float = field(default_factory=time.monotonic)


class Mailbox:
    """The trial that a run's workers train, and what they say of it. A Ray actor of its own."""

    def __init__(self) -> None:
        self._job: Message | None = None
        self._number = 0  # of the trial, counted from 1 in this run
        self._failures = 0
        self._takers: dict[int, str] = {}  # nodes of the workers that have taken the trial, by rank
        self._errors: dict[int, str] = {}  # what they failed with
        self._arrivals: dict[int, Arrivals] = {}
        self._heard = time.monotonic()  # when a worker last gave a sign of life
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._changed = asyncio.Condition()

    async def put(self, job: Message) -> None:
        """Give the workers another trial."""
        async with self._changed:
            self._job, self._number, self._failures = job, self._number + 1, 0
            self._begin_start()
            self._messages = asyncio.Queue()
            self._changed.notify_all()

    async def take(self, rank: int, node: str, after: int) -> tuple[int, Message]:
        """For a worker: the trial behind the one that it has trained, as soon as there is one.

        After too many failures the trial is not given to them again.
        """
        async with self._changed:
            while True:
                await self._changed.wait_for(lambda: self._job is not None and self._number > after)
                assert self._job is not None
                if rank in self._takers:  # before this start of the workers
                    self._start_again()
                    continue
                self._takers[rank], self._heard = node, time.monotonic()
                self._arrivals[rank] = Arrivals(node, 0)  # it may hang before its first sign of life
                return self._number, self._job

    def _start_again(self) -> None:
        assert self._job is not None
        why = why_started_again(self._takers, self._errors)
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            where = f" (see {self._job['folder']}/error.txt)" if self._errors else ""
            self._end(ending("failed", why + where, "error") | {"replace_actor": True})
        else:
            self._messages.put_nowait({"notice": f"its workers were started again: {why}."})
        self._begin_start()

    def _begin_start(self) -> None:
        self._takers, self._errors, self._arrivals = {}, {}, {}

    async def tell(self, number: int, message: Message) -> None:
        """From a worker: a message about the trial with this number; one about an earlier trial is dropped."""
        if number != self._number or self._job is None:
            return
        if "state" in message or "left" in message:
            self._end(message)
        else:
            self._messages.put_nowait(message)

    async def error(self, number: int, rank: int, text: str) -> None:
        """From a worker: why it fails, before Ray Train restarts it."""
        if number == self._number:
            self._errors[rank] = text

    async def arrived(self, rank: int, number: int, count: int) -> None:
        """From a worker: a sign of life, every few seconds."""
        self._heard = time.monotonic()
        before = self._arrivals.get(rank)
        if number == self._number and rank in self._takers and (before is None or before.count != count):
            self._arrivals[rank] = Arrivals(self._takers[rank], count)

    async def next(self) -> Message:
        """For the trial's actor: the next message."""
        return await self._messages.get()

    async def hang(self, seconds: float) -> str:
        """For the trial's actor: a sentence about a worker for which the others have waited so long; else empty."""
        return hang_of(self._arrivals, seconds)

    async def silence(self) -> float:
        """For the trial's actor: seconds without a sign of life, while Ray Train waits for a lost node, say."""
        return time.monotonic() - self._heard

    def _end(self, message: Message) -> None:
        """Pass on the last message about the trial, which no worker takes again."""
        self._job = None
        self._messages.put_nowait(message)


def hang_of(arrivals: dict[int, Arrivals], seconds: float) -> str:
    """A sentence about the worker that others wait for in a collective since so many seconds; empty where none does.

    Where all have arrived at equally many collectives, nobody waits: all of them work.
    """
    if not arrivals or len({one.count for one in arrivals.values()}) == 1:
        return ""
    rank = min(arrivals, key=lambda rank: arrivals[rank].count)
    waited = time.monotonic() - max(one.since for one in arrivals.values())
    if waited < seconds:
        return ""
    return (
        f"worker {rank} on {arrivals[rank].node} has not arrived at an all-reduce for which the others have waited "
        f"{waited:.0f} s; is its GPU or its node in order?"
    )


def why_started_again(takers: dict[int, str], errors: dict[int, str]) -> str:
    """Why workers were started again: an error of their own, or the one that died without a word."""
    for text in errors.values():
        if not any(word in text for word in _LOST_PEER):
            return text
    silent = [rank for rank in takers if rank not in errors]
    return f"worker {silent[0]} on {takers[silent[0]]} died" if len(silent) == 1 else "one of them died"


class TrainRun:
    """Ray Train's run in the placement group of a trial's actor, with a worker in each further bundle.

    Ray Tune uses an actor again only for a trial with the same placement group, so all of its trials have as many
    workers.
    """

    def __init__(self, job: Message) -> None:
        import ray

        self._timeout = collective_timeout()
        self._mailbox: Any = ray.remote(num_cpus=0)(Mailbox).remote()
        self._error: BaseException | None = None
        self._fitting = threading.Thread(target=self._fit, args=(job,), name="ray-train", daemon=True)
        self._fitting.start()

    def _fit(self, job: Message) -> None:
        try:
            self._trainer(job).fit()
        except BaseException as error:  # told to the trial by its thread
            self._error = error

    def _trainer(self, job: Message) -> Any:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig

        from recur_tune.cluster.ray_train_adaptations import TrialTrainer, train_settings

        patience = self._timeout + _AFTER_OURS
        os.environ.update(train_settings(patience))
        search = Path(job["folder"]).parent.parent
        return TrialTrainer(
            serve_trials,
            train_loop_config={"mailbox": self._mailbox},
            torch_config=TorchConfig(timeout_s=int(patience)),
            scaling_config=ScalingConfig(
                num_workers=job["workers"],
                use_gpu=job["gpus"] > 0,
                resources_per_worker={"CPU": job["cpus"] - WAITING_CPU, "GPU": job["gpus"]},
            ),
            run_config=RunConfig(
                name=f"{search.name}-{secrets.token_hex(3)}",
                storage_path=str(search / "ray"),
                # The mailbox counts workers' failures by trial. Where they cannot start, Ray Tune looks for another
                # place.
                failure_config=FailureConfig(max_failures=-1, controller_failure_limit=1),
            ),
            group=ray.util.get_current_placement_group(),
        )

    def train(self, job: Message) -> Iterator[Message]:
        """Train a trial and yield its messages. Raises where its actor has to be replaced."""
        import ray

        stopped = FlagFile(Path(job["folder"]).parent.parent / STOP).is_set
        ray.get(self._mailbox.put.remote(job))
        while not (message := self._next_message(stopped)).get("left"):
            yield message
            if message.get("moved") or message.get("replace_actor"):
                raise WorkersFailed(message.get("reason", "its workers move"))
            if "state" in message:
                return

    def _next_message(self, stopped: Callable[[], bool]) -> Message:
        import ray

        told = self._mailbox.next.remote()
        while not ray.wait([told], timeout=_SECONDS_BETWEEN_LOOKS)[0]:
            if not self._fitting.is_alive():
                return _outcome_of(self._error)
            if stopped() and ray.get(self._mailbox.silence.remote()) > _SILENT:
                return ending("paused", "the search was asked to stop") | {"replace_actor": True}
            if sentence := ray.get(self._mailbox.hang.remote(self._timeout)):
                return ending("failed", sentence, "hang") | {"replace_actor": True}
        return dict(ray.get(told))


def _outcome_of(error: BaseException | None) -> Message:
    """The trial's message where Ray Train itself has ended, which is no fault of the trial."""
    from recur_tune.cluster.ray_train_adaptations import found_no_place

    if isinstance(error, Exception) and (fault := storage_fault(error)):
        return ending("paused", str(fault), STORAGE) | {"replace_actor": True}
    if found_no_place(error):  # a node was lost; Ray Tune starts the trial where there is room
        return {"moved": True}
    raise WorkersFailed(f"Ray Train has ended: {error}") from error


def serve_trials(config: Message) -> None:
    """Ray Train's loop of each worker: train one trial after the other, for as long as the run lives."""
    import ray
    from ray.train import get_context

    mailbox, rank, number = config["mailbox"], get_context().get_world_rank(), 0
    while True:
        number, job = ray.get(mailbox.take.remote(rank, node_name(), number))

        def report(message: Message, number: int = number) -> None:
            ray.get(mailbox.tell.remote(number, message))

        try:
            trial = load(_TRIAL)
            with _signs_of_life(mailbox, rank, number):
                trial.use_cores(job["cpus"])
                trial.run_trial(job, report)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            ray.get(mailbox.error.remote(number, rank, text))
            raise RuntimeError(text) from None  # Ray Train needs no class of ours
        if rank == 0:  # the others may be done before it has saved what they trained
            report({"left": True})


@contextmanager
def _signs_of_life(mailbox: Any, rank: int, number: int) -> Iterator[None]:
    """Tell the mailbox from a thread, every few seconds, how many collectives this worker has arrived at."""
    from recur_tune.bptt.collectives import arrivals  # with torch, which only workers import

    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            mailbox.arrived.remote(rank, number, arrivals())

    thread = threading.Thread(target=tell, name="signs-of-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
