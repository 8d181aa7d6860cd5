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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recur_tune.cluster.capacity import WAITING_CPU
from recur_tune.common.collective_timeout import collective_timeout
from recur_tune.common.files import storage_fault
from recur_tune.common.loading import load
from recur_tune.search.record.state import STORAGE
from recur_tune.search.run.messages import Message, ending

_TRIAL = "recur_tune.search.run.trainable"
_MOST_STARTS = 4  # of the workers for one trial
_SECONDS_BETWEEN_LOOKS = 2.0  # at whether the run is alive, and between workers' signs of life
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
        self._starts = 0
        self._errors: list[str] = []
        self._arrivals: dict[int, Arrivals] = {}
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._changed = asyncio.Condition()

    async def put(self, job: Message) -> None:
        """Give the workers another trial."""
        async with self._changed:
            self._job, self._number = job, self._number + 1
            self._starts, self._errors = 0, []
            self._messages = asyncio.Queue()
            self._changed.notify_all()

    async def take(self, rank: int, after: int) -> tuple[int, Message]:
        """For a worker: the trial behind the one that it has trained, as soon as there is one.

        After too many starts of the workers the trial is not given to them again.
        """
        async with self._changed:
            while True:
                await self._changed.wait_for(lambda: self._job is not None and self._number > after)
                assert self._job is not None
                if rank == 0:
                    self._starts, self._arrivals = self._starts + 1, {}
                if self._starts <= _MOST_STARTS:
                    return self._number, self._job
                self._end(ending("failed", _most_informative(self._errors), "error") | {"replace_actor": True})

    async def tell(self, number: int, message: Message) -> None:
        """From a worker: a message about the trial with this number; one about an earlier trial is dropped."""
        if number != self._number or self._job is None:
            return
        if "state" in message or "left" in message:
            self._end(message)
        else:
            self._messages.put_nowait(message)

    async def error(self, number: int, text: str) -> None:
        """From a worker: why it fails, before Ray Train restarts it."""
        if number == self._number:
            self._errors.append(text)

    async def arrived(self, rank: int, number: int, node: str, count: int) -> None:
        """From a worker: a sign of life, every few seconds."""
        before = self._arrivals.get(rank)
        if number == self._number and (before is None or before.count != count):
            self._arrivals[rank] = Arrivals(node, count)

    async def next(self) -> Message:
        """For the trial's actor: the next message."""
        return await self._messages.get()

    async def hang(self, seconds: float) -> str:
        """For the trial's actor: a sentence about a worker for which the others have waited so long; else empty."""
        return hang_of(self._arrivals, seconds)

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


def _most_informative(errors: list[str]) -> str:
    """Workers' own errors before those that only say that another one is gone."""
    ordered = sorted(errors, key=lambda text: any(word in text for word in _LOST_PEER))
    return ordered[0] if ordered else "a worker's process died again and again"


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
        from ray.train.torch import TorchConfig, TorchTrainer

        from recur_tune.cluster.ray_train_adaptations import TRAIN_SETTINGS, TrialPlacementGroup

        os.environ.update(TRAIN_SETTINGS)
        search = Path(job["folder"]).parent.parent
        return TorchTrainer(
            serve_trials,
            train_loop_config={"mailbox": self._mailbox},
            # Longer than ours, whose sentence names the worker.
            torch_config=TorchConfig(timeout_s=int(self._timeout) + 120),
            scaling_config=ScalingConfig(
                num_workers=job["workers"],
                use_gpu=job["gpus"] > 0,
                resources_per_worker={"CPU": job["cpus"] - WAITING_CPU, "GPU": job["gpus"]},
            ),
            run_config=RunConfig(
                name=f"{search.name}-{secrets.token_hex(3)}",
                storage_path=str(search / "ray"),
                failure_config=FailureConfig(max_failures=-1),  # the mailbox counts them by trial
                callbacks=[TrialPlacementGroup(ray.util.get_current_placement_group())],
            ),
        )

    def train(self, job: Message) -> Iterator[Message]:
        """Train a trial and yield its messages. Raises where its actor has to be replaced."""
        import ray

        ray.get(self._mailbox.put.remote(job))
        while not (message := self._next_message()).get("left"):
            yield message
            if message.get("moved") or message.get("replace_actor"):
                raise WorkersFailed(message.get("reason", "its node will leave"))
            if "state" in message:
                return

    def _next_message(self) -> Message:
        import ray

        told = self._mailbox.next.remote()
        while not ray.wait([told], timeout=_SECONDS_BETWEEN_LOOKS)[0]:
            if not self._fitting.is_alive():
                return _outcome_of(self._error)
            if sentence := ray.get(self._mailbox.hang.remote(self._timeout)):
                return ending("failed", sentence, "hang") | {"replace_actor": True}
        return dict(ray.get(told))


def _outcome_of(error: BaseException | None) -> Message:
    """What becomes of a trial where Ray Train itself has ended."""
    fault = storage_fault(error) if isinstance(error, Exception) else None
    outcome = ending("paused", str(fault), STORAGE) if fault else ending("failed", f"Ray Train: {error}", "error")
    return outcome | {"replace_actor": True}


def serve_trials(config: Message) -> None:
    """Ray Train's loop of each worker: train one trial after the other, for as long as the run lives."""
    import ray
    from ray.train import get_context

    mailbox, rank, number = config["mailbox"], get_context().get_world_rank(), 0
    trial = load(_TRIAL)
    while True:
        number, job = ray.get(mailbox.take.remote(rank, number))

        def report(message: Message, number: int = number) -> None:
            if rank == 0 or "state" in message:  # any worker may end the trial
                ray.get(mailbox.tell.remote(number, message))

        with _signs_of_life(mailbox, rank, number, trial):
            try:
                trial.use_cores(job["cpus"])
                trial.run_trial(job, report)
            except Exception as error:
                ray.get(mailbox.error.remote(number, f"{type(error).__name__}: {error}"))
                raise RuntimeError(f"{type(error).__name__}: {error}") from None  # Ray Train needs no class of ours
        report({"left": True})


@contextmanager
def _signs_of_life(mailbox: Any, rank: int, number: int, trial: Any) -> Iterator[None]:
    """Tell the mailbox from a thread, every few seconds, how many collectives this worker has arrived at."""
    from recur_tune.bptt.collectives import arrivals  # with torch, which only workers import

    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            mailbox.arrived.remote(rank, number, trial.node_name(), arrivals())

    thread = threading.Thread(target=tell, name="signs-of-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
