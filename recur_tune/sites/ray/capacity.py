"""Capacity of a cluster: what a trial gets there, and how many trials run at a time."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass

from recur_tune.common.errors import UserError
from recur_tune.common.throttle import Every
from recur_tune.search.record.spec import Resources
from recur_tune.sites.ray.cluster import Cluster, living_nodes
from recur_tune.sites.ray.gpu_packing import PARTS, Card, smallest_card

# What the actor takes that waits for a trial's workers. They leave it that much of a core each: otherwise the last of
# them would never start on a machine whose cores are all given out.
WAITING_CPU = 0.01


@dataclass(frozen=True)
class TrialResources:
    """What a trial gets on this cluster, and how many fit at a time; at most, where trials share a card."""

    workers: int
    cpus: float
    gpus: float
    at_once: int
    card: Card | None = None


def trial_resources(resources: Resources, cluster: Cluster, card: Card | None = None) -> TrialResources:
    """Refuse at once what the cluster will never have; Ray would wait for ever. Trials share the `card` where one is
    given."""
    gpus = resources.gpus
    if gpus == "auto":
        gpus = 1.0 if cluster.gpus else 0.0
    slots = sum(_slots(node, resources.cpus, gpus) for node in cluster.nodes)
    if slots < resources.workers:
        each = f"{_count(resources.cpus, 'CPU')} and {_count(gpus, 'GPU')}"
        need = f"{resources.workers} workers with {each} each" if resources.workers > 1 else each
        have = f"{_count(cluster.cpus, 'CPU')} and {_count(cluster.gpus, 'GPU')}"
        spread = f" on {len(cluster.nodes)} nodes" if len(cluster.nodes) > 1 else ""
        raise UserError(f"resources: a trial needs {need}, which {cluster.name} with {have}{spread} will never have.")
    if card is not None:
        slots = sum(_slots(node, resources.cpus, gpus / PARTS) for node in cluster.nodes)
    return TrialResources(resources.workers, resources.cpus, gpus, slots // resources.workers, card)


def shared_card(resources: Resources, cluster: Cluster) -> tuple[Card | None, str]:
    """The card that trials share by prediction, and why they do or do not, in a line where there is something to say.

    Only `auto` leaves it to us. Workers of one trial have a GPU each, as NCCL wants it.
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
    """How many trials there is room for on the cluster as it is now: nodes come and go."""

    def __init__(self, resources: Resources, card: Card | None = None, seconds_between_looks: float = 2.0) -> None:
        self.resources, self.card = resources, card
        self.slots, self.gpus, self.due = 1, 1, Every(seconds_between_looks)

    def __call__(self) -> int:
        """As of a moment ago; one at least, since lost nodes may come back. And one more, which waits with its price
        known: no actor waits for it."""
        if self.due():
            cluster = Cluster(None, living_nodes())
            with suppress(UserError):
                self.slots = trial_resources(self.resources, cluster, self.card).at_once
                self.gpus = int(cluster.gpus)
        return self.slots + 1


def check_this_machine(resources: Resources) -> None:
    """The same without a cluster: what a cluster of our own would have here."""
    import torch

    cpus, gpus = float(os.cpu_count() or 1), float(torch.cuda.device_count())
    trial_resources(resources, Cluster(None, [{"CPU": cpus, "GPU": gpus}], "this machine"))


def _count(number: float, thing: str) -> str:
    return f"{number:g} {thing}{'' if number == 1 else 's'}"


def _slots(node: dict[str, float], cpus: float, gpus: float) -> int:
    """Workers that fit on a node; a fraction of a GPU never spans two."""
    by_cpu = int(node.get("CPU", 0.0) / cpus + 1e-9)
    if gpus == 0:
        return by_cpu
    have = node.get("GPU", 0.0)
    by_gpu = int(have / gpus + 1e-9) if gpus >= 1 else int(have) * int(1 / gpus + 1e-9)
    return min(by_cpu, by_gpu)
