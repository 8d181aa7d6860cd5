"""Capacity of a cluster: what a trial gets there, and how many trials run at a time."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass

from recur_tune.cluster.connection import Cluster, living_nodes
from recur_tune.cluster.gpu_packing import PARTS, Card, smallest_card
from recur_tune.common.errors import UserError
from recur_tune.common.throttle import Every
from recur_tune.common.units import counted
from recur_tune.config.resources import Resources

# CPU of the actor that waits for a trial's workers. Each worker takes that much less of a core: otherwise the last
# would never start on a machine whose cores are all in use.
WAITING_CPU = 0.01


@dataclass(frozen=True)
class TrialResources:
    """What each worker of a trial gets on this cluster, and how many trials fit at a time (at most, where they share a
    GPU or have different numbers of workers).

    Attributes:
        card: The GPU that trials share by predicted memory, where they do.
        memory: Bytes for a worker's tensors; None where that is not known.
    """

    cpus: float
    gpus: float
    at_once: int
    card: Card | None = None
    memory: int | None = None


def trial_resources(resources: Resources, cluster: Cluster, card: Card | None = None) -> TrialResources:
    """What a trial gets. Refuses what the cluster will never have, for which Ray would wait for ever. `card` is the
    cluster's smallest GPU, where it is known."""
    gpus = resources.gpus
    if gpus == "auto":
        gpus = 1.0 if cluster.gpus else 0.0
    counts = resources.worker_counts
    slots = sum(_slots(node, resources.cpus, gpus) for node in cluster.nodes)
    if slots < counts[-1]:
        each = f"{counted(resources.cpus, 'CPU')} and {counted(gpus, 'GPU')}"
        need = f"{counts[-1]} workers with {each} each" if counts[-1] > 1 else each
        have = f"{counted(cluster.cpus, 'CPU')} and {counted(cluster.gpus, 'GPU')}"
        spread = f" on {len(cluster.nodes)} nodes" if len(cluster.nodes) > 1 else ""
        raise UserError(f"resources: a trial needs {need}, which {cluster.name} with {have}{spread} will never have.")
    if gpus and counts[-1] > 1:
        _check_group_of_gpus(cluster, counts[-1], gpus)
    memory = _worker_memory(resources, cluster, gpus, card)
    if not (card and counts[0] == 1 and resources.gpus == "auto"):
        return TrialResources(resources.cpus, gpus, slots // counts[0], None, memory)
    slots = sum(_slots(node, resources.cpus, gpus / PARTS) for node in cluster.nodes)
    return TrialResources(resources.cpus, gpus, slots, card, memory)


_KIND = "accelerator_type:"  # in Ray's resources of a node, before the name of its GPUs


def _check_group_of_gpus(cluster: Cluster, workers: int, gpus: float) -> None:
    if gpus < 1:
        raise UserError(
            f"resources: gpus {gpus:g} is too little, since NCCL requires that each of {workers} workers has a GPU to "
            "itself; give gpus 1, or workers 1."
        )
    kinds = sorted({kind for node in cluster.nodes if node.get("GPU") for kind in node if kind.startswith(_KIND)})
    if len(kinds) > 1:
        named = " and ".join(kind.removeprefix(_KIND) for kind in kinds)
        raise UserError(
            f"resources: {cluster.name} has {named}, and of {workers} workers on both the faster would wait for the "
            "slower; give workers 1, or nodes with one kind of GPU."
        )


def _worker_memory(resources: Resources, cluster: Cluster, gpus: float, card: Card | None) -> int | None:
    """Bytes for a worker's tensors: of its GPU, or as much of its node's memory as it has of the cores. The latter
    only chooses between numbers of workers: what a node has free is not known."""
    if gpus:
        return card.worker_memory(gpus) if card else None
    if len(resources.worker_counts) == 1:
        return None
    shares = [
        node["memory"] * resources.cpus / node["CPU"]
        for node in cluster.nodes
        if node.get("memory") and node.get("CPU")
    ]
    return int(min(shares)) if shares else None


def known_card(resources: Resources, cluster: Cluster) -> Card | None:
    """The smallest GPU of the cluster, where a trial has to know its memory."""
    if not cluster.gpus or (resources.gpus != "auto" and (resources.gpus == 0 or len(resources.worker_counts) == 1)):
        return None
    import ray

    return smallest_card(ray.nodes())


def sharing_notice(resources: Resources, cluster: Cluster, allotment: TrialResources) -> str:
    """A line that says how trials get their GPUs, or why not by their predicted memory; else empty.

    Only `gpus: auto` shares, between trials with one worker. Workers of one trial have a GPU each, which NCCL requires.
    """
    counts = resources.worker_counts
    if len(counts) > 1 and allotment.memory is None:
        return f"workers {list(counts)}: every trial gets {counts[0]}, since the memory of a worker is not known."
    if resources.gpus != "auto" or not cluster.gpus:
        return ""
    if counts[0] > 1:
        return "gpus auto: each worker has a GPU to itself, since a trial has several."
    if allotment.card is None:
        return "gpus auto: a trial has a GPU to itself, since nvidia-smi does not tell a whole GPU's memory."
    return allotment.card.why(math.ceil(allotment.at_once / cluster.gpus))


class Capacity:
    """How many trials fit on the cluster now: nodes come and go."""

    def __init__(self, resources: Resources, card: Card | None = None, seconds_between_looks: float = 2.0) -> None:
        self.resources, self.card = resources, card
        self.slots, self.gpus, self.due = 1, 1, Every(seconds_between_looks)

    def __call__(self) -> int:
        """At least one, since lost nodes may come back; and one more, which is proposed and priced in advance."""
        if self.due():
            cluster = Cluster(None, living_nodes())
            with suppress(UserError):
                self.slots = trial_resources(self.resources, cluster, self.card).at_once
                self.gpus = int(cluster.gpus)
        return self.slots + 1


def check_this_machine(resources: Resources) -> None:
    """Refuse what a local cluster on this machine would never have."""
    import torch

    cpus, gpus = float(os.cpu_count() or 1), float(torch.cuda.device_count())
    trial_resources(resources, Cluster(None, [{"CPU": cpus, "GPU": gpus}], "this machine"))


def _slots(node: dict[str, float], cpus: float, gpus: float) -> int:
    """Workers that fit on a node; a fraction of a GPU never spans two GPUs."""
    by_cpu = int(node.get("CPU", 0.0) / cpus + 1e-9)
    if gpus == 0:
        return by_cpu
    have = node.get("GPU", 0.0)
    by_gpu = int(have / gpus + 1e-9) if gpus >= 1 else int(have) * int(1 / gpus + 1e-9)
    return min(by_cpu, by_gpu)
