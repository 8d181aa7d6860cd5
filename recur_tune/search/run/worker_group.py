"""Worker groups: processes that train a trial together with DDP, and are kept for the next one to save their start.

They are Ray actors in the placement group of a trial's own actor, which starts them and forwards the messages of the
first. When one is lost or raises, all are replaced: the others wait for it in the middle of a step.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from recur_tune.cluster.capacity import WAITING_CPU
from recur_tune.common.loading import load
from recur_tune.search.run.training_thread import messages_of

_SECONDS_TO_FOLLOW = 5.0  # to wait for the others' errors: the first one may only have lost its peer
_STEP = timedelta(minutes=30)  # the longest that workers wait for each other

Message = dict[str, Any]


class WorkersFailed(Exception):
    """The errors of workers as Python's exceptions, the most informative first: own errors, then deaths, then lost
    peers."""

    def __init__(self, errors: list[Exception]) -> None:
        causes: list[Exception] = [getattr(error, "cause", None) or error for error in errors]
        self.errors = sorted(causes, key=_by_information)
        super().__init__(str(self.errors[0]))


@dataclass(frozen=True)
class Place:
    """A worker's node, GPUs and address."""

    node: str
    gpus: list[str]
    address: str


def visible_gpus(here: Place, places: list[Place]) -> tuple[list[str], int]:
    """The GPUs of all workers on a node, each once, and the index of the worker's own."""
    gpus = list(dict.fromkeys(gpu for place in places if place.node == here.node for gpu in place.gpus))
    return gpus, gpus.index(here.gpus[0]) if here.gpus else 0


class Worker:
    """One process of a group."""

    def place(self) -> Place:
        """The worker's place, with a free port for the process group."""
        import ray

        context = ray.get_runtime_context()
        gpus = [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]
        with socket.socket() as probe:  # where the port is taken meanwhile, the group starts again
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return Place(context.get_node_id(), gpus, f"{ray.util.get_node_ip_address()}:{port}")

    def train(self, job: Message, rank: int, address: str, gpus: list[str], own: int) -> Iterator[Message]:
        """Train the worker's part of a trial; the first worker yields the messages. All `gpus` of the node are visible,
        so that NCCL can connect them directly; `own` is the index of this worker's."""
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
    """Torch's process group for one trial. After an error it is not destroyed: that would wait for the others."""
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
    """The workers of a trial's actor, one in each further bundle of its placement group."""

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
        """Train a trial and yield its messages."""
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
    """The errors that other workers raise within a few seconds."""
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
