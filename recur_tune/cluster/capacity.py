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
    """What a trial gets on this cluster, and how many trials fit at a time (at most, where they share a GPU)."""

    workers: int
    cpus: float
    gpus: float
    at_once: int
    card: Card | None = None


def trial_resources(resources: Resources, cluster: Cluster, card: Card | None = None) -> TrialResources:
    """What each trial gets. Refuses what the cluster will never have, for which Ray would wait for ever. With a `card`,
    trials share it."""
    gpus = resources.gpus
    if gpus == "auto":
        gpus = 1.0 if cluster.gpus else 0.0
    slots = sum(_slots(node, resources.cpus, gpus) for node in cluster.nodes)
    if slots < resources.workers:
        each = f"{counted(resources.cpus, 'CPU')} and {counted(gpus, 'GPU')}"
        need = f"{resources.workers} workers with {each} each" if resources.workers > 1 else each
        have = f"{counted(cluster.cpus, 'CPU')} and {counted(cluster.gpus, 'GPU')}"
        spread = f" on {len(cluster.nodes)} nodes" if len(cluster.nodes) > 1 else ""
        raise UserError(f"resources: a trial needs {need}, which {cluster.name} with {have}{spread} will never have.")
    if card is not None:
        slots = sum(_slots(node, resources.cpus, gpus / PARTS) for node in cluster.nodes)
    return TrialResources(resources.workers, resources.cpus, gpus, slots // resources.workers, card)


def shared_card(resources: Resources, cluster: Cluster) -> tuple[Card | None, str]:
    """The GPU that trials share by predicted memory, or None; and a line that explains it.

    Only `gpus: auto` shares. Workers of one trial have a GPU each, which NCCL requires.
    """
    if resources.gpus != "auto" or not cluster.gpus:
        return None, ""
    if resources.workers > 1:
        return None, "gpus auto: each worker has a GPU to itself, since a trial has several."
    import ray

    card = smallest_card(ray.nodes())
    if card is None:
        return None, "gpus auto: a trial has a GPU to itself, since nvidia-smi does not tell a whole GPU's memory."
    at_most = math.ceil(trial_resources(resources, cluster, card).at_once / cluster.gpus)
    return card, card.why(at_most)


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
