"""Workers that train a trial together with DDP and stay for the next one: a new process has torch to load first.

They are Ray actors in the places that Ray Tune holds for a trial's actor, which starts them, listens to the first of
them and keeps them. When one is lost, or raises, all of them go: the others wait for it in the middle of a step.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from recur_tune.common.loading import load
from recur_tune.search.run.training_thread import messages_of
from recur_tune.sites.ray.cluster import WAITING_CPU

_SECONDS_TO_FOLLOW = 5.0  # for the others, when one has raised: the first to say so may only have lost its peer
_STEP = timedelta(minutes=30)  # the longest that workers wait for each other

Message = dict[str, Any]


class WorkersFailed(Exception):
    """What workers raised, in Python's own exceptions, what tells most first: a death tells less, and least that a peer
    was lost."""

    def __init__(self, errors: list[Exception]) -> None:
        causes: list[Exception] = [getattr(error, "cause", None) or error for error in errors]
        self.errors = sorted(causes, key=_by_information)
        super().__init__(str(self.errors[0]))


@dataclass(frozen=True)
class Place:
    """Where a worker runs."""

    node: str
    gpus: list[str]
    address: str


def visible_gpus(here: Place, places: list[Place]) -> tuple[list[str], int]:
    """The GPUs of all workers on a node, each once, and which of them is the own one's."""
    gpus = list(dict.fromkeys(gpu for place in places if place.node == here.node for gpu in place.gpus))
    return gpus, gpus.index(here.gpus[0]) if here.gpus else 0


class Worker:
    """One process of a group."""

    def place(self) -> Place:
        """Where it is, with a port at which the others could meet it."""
        import ray

        context = ray.get_runtime_context()
        gpus = [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]
        with socket.socket() as probe:  # who takes the port meanwhile costs the group another start
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return Place(context.get_node_id(), gpus, f"{ray.util.get_node_ip_address()}:{port}")

    def train(self, job: Message, rank: int, address: str, gpus: list[str], own: int) -> Iterator[Message]:
        """Its part of a trial; the first worker speaks for all. Of the `gpus` of this node, which pass gradients on
        directly where all are in sight, its `own` is the one at that place."""
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        trial = load("recur_tune.search.run.trainable")

        def train(report: Callable[[Message], None]) -> None:
            trial.use_cores(job["cpus"])
            with _process_group(rank, job["workers"], address, own):
                trial.run_trial(job, report)

        with closing(messages_of(train)) as messages:
            for message in messages:
                if rank == 0:
                    yield message


@contextmanager
def _process_group(rank: int, workers: int, address: str, gpu: int) -> Iterator[None]:
    """Torch's, for the time of a trial. After an error nobody leaves it in order: that would wait for the others."""
    import torch
    import torch.distributed as dist

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(gpu)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"tcp://{address}", rank=rank, world_size=workers, timeout=_STEP
    )
    yield
    dist.destroy_process_group()


class WorkerGroup:
    """The workers of this process, one in each place beside its own."""

    def __init__(self, job: Message) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        places = ray.util.get_current_placement_group()
        start = ray.remote(num_cpus=job["cpus"] - WAITING_CPU, num_gpus=job["gpus"], max_restarts=0)(Worker)
        self.workers = [
            start.options(scheduling_strategy=PlacementGroupSchedulingStrategy(places, number)).remote()
            for number in range(1, job["workers"] + 1)
        ]

    def train(self, job: Message) -> Iterator[Message]:
        """Train a trial; what is said on the way."""
        import ray

        places: list[Place] = _answers([worker.place.remote() for worker in self.workers])
        told = []
        for rank, (worker, here) in enumerate(zip(self.workers, places, strict=True)):
            told.append(worker.train.remote(job, rank, places[0].address, *visible_gpus(here, places)))
        while told:
            [ready], _ = ray.wait(told, num_returns=1)
            try:
                yield ray.get(next(ready))
            except StopIteration:
                told.remove(ready)
            except ray.exceptions.RayError as error:
                told.remove(ready)
                raise WorkersFailed([error, *_others(told)]) from None

    def end(self) -> None:
        """Kill all of them."""
        import ray

        for worker in self.workers:
            ray.kill(worker)


def _answers(asked: list[Any]) -> list[Any]:
    import ray

    try:
        return list(ray.get(asked))
    except ray.exceptions.RayError as error:
        raise WorkersFailed([error]) from None


def _others(told: list[Any]) -> Iterator[Exception]:
    """What the other workers raise soon after; who only waits is not waited for."""
    import ray

    ready, _ = ray.wait(told, num_returns=len(told), timeout=_SECONDS_TO_FOLLOW) if told else ([], [])
    for one in ready:
        try:
            with suppress(StopIteration):
                ray.get(next(one))
        except ray.exceptions.RayError as error:
            yield error


def _by_information(error: Exception) -> int:
    import ray

    return 1 if isinstance(error, ray.exceptions.RayError) else 2 if "peer" in str(error) else 0  # as Gloo says it
