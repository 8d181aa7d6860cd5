"""A Ray cluster to run on: one of our own in this machine, or one that is there already."""

from __future__ import annotations

import logging
import math
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder
from recur_tune.common.throttle import Every
from recur_tune.search.record.spec import Resources
from recur_tune.sites.ray.gpu_packing import PARTS, Card, smallest_card
from recur_tune.sites.ray.internals import print_no_messages
from recur_tune.sites.ray.liveness import ClusterLost, while_connecting
from recur_tune.sites.ray.ray_tune_adaptations import TUNE_SETTINGS
from recur_tune.sites.ray.sigterm import own_sigterm

NODE_NAME = "RECUR_TUNE_NODE"  # a variable: what the node is called by whoever started Ray on it
DASHBOARD = "RECUR_TUNE_DASHBOARD"  # a variable: off where a cluster of our own is to have none

# Read when Ray is imported or started.
_SETTINGS = TUNE_SETTINGS | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}

# Seconds that Ray gives its own processes to come up; its defaults are outrun on a busy node.
START_UP = {
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    "RAY_worker_register_timeout_seconds": "300",
}
# What it says where it cannot be told: a raylet has half a minute. Another try finds everything in the node's memory.
TOO_SLOW = "timed out during startup"
START_UPS = 3


_HOST_PORT = r"([A-Za-z0-9._-]+):(\d+)"


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to."""

    dashboard: str | None
    nodes: list[dict[str, float]]
    name: str = "the cluster"

    @property
    def cpus(self) -> float:
        """Cores of all nodes."""
        return sum(node.get("CPU", 0.0) for node in self.nodes)

    @property
    def gpus(self) -> float:
        """GPUs of all nodes."""
        return sum(node.get("GPU", 0.0) for node in self.nodes)


@contextmanager
def connected(
    address: str | None, about: Mapping[str, str] = {}, last_words: Callable[[ClusterLost], None] = lambda loss: None
) -> Iterator[Cluster]:
    """Start a cluster of our own, or join the one at `address`; at the end only our own is stopped.

    The dashboard's page of this job shows what it is `about`. Where the cluster is lost while we wait for it in Ray,
    `last_words` are called from a thread and should end the process.
    """
    for name, value in (_SETTINGS | START_UP).items():
        os.environ.setdefault(name, value)
    os.environ["RECUR_TUNE_CACHE"] = str(cache_folder().absolute())  # workers have folders of their own
    if address is not None:
        check_reachable(address)
        _check_speaks_grpc(address)
    import ray

    already = ray.is_initialized()
    with while_connecting(address, last_words):
        url = None if already else _init(address, about)
        nodes = _living_nodes()
    for name in ("ray", "ray.tune", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the search's own log says why a trial failed
    lost = False
    try:
        yield Cluster(f"http://{url}" if url else None, nodes)
    except ClusterLost:  # nor would Ray come back from saying goodbye to it
        lost = True
        raise
    finally:
        if not already and not lost:
            with own_sigterm():
                ray.shutdown()


def _init(address: str | None, about: Mapping[str, str]) -> str | None:
    """Ray's own start; where its dashboard is. One that was too slow is made again."""
    import ray
    from ray.job_config import JobConfig

    print_no_messages()
    for attempt in range(1, START_UPS + 1):
        try:
            with own_sigterm():
                return ray.init(
                    address=address or "local",
                    include_dashboard=os.environ.get(DASHBOARD) != "off" if address is None else None,
                    dashboard_host="127.0.0.1",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    # A cluster of our own inherits them.
                    runtime_env={"env_vars": {name: os.environ[name] for name in _SETTINGS}} if address else None,
                    job_config=JobConfig(metadata=dict(about)),
                ).dashboard_url
        except Exception as error:  # Ray raises just that where a node is too slow
            too_slow = TOO_SLOW in str(error)
            if not too_slow and not isinstance(error, (ConnectionError, RuntimeError, ValueError)):
                raise
            if not too_slow or attempt == START_UPS:
                reason = " ".join(str(error).split())[:200]
                raise UserError(f"address: {address or 'local'} gives no Ray cluster ({reason}).") from error
            ray.shutdown()
    raise AssertionError("unreachable")


def ray_token() -> Path:
    """The file with the password of this user's clusters, which Ray makes for the first of them."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()


# What the actor takes that waits for a trial's workers. They leave it that much of a core each: otherwise the last of
# them would never start on a machine whose cores are all given out.
WAITING_CPU = 0.01


@dataclass(frozen=True)
class Allotment:
    """What a trial gets on this cluster, and how many fit at a time; at most, where trials share a card."""

    workers: int
    cpus: float
    gpus: float
    at_once: int
    card: Card | None = None


def allot(resources: Resources, cluster: Cluster, card: Card | None = None) -> Allotment:
    """Refuse at once what the cluster will never have; Ray would wait for ever. Trials share the `card` where one is
    given."""
    gpus = resources.gpus
    if gpus == "auto":
        gpus = 1.0 if cluster.gpus else 0.0
    places = sum(_places(node, resources.cpus, gpus) for node in cluster.nodes)
    if places < resources.workers:
        each = f"{_count(resources.cpus, 'CPU')} and {_count(gpus, 'GPU')}"
        need = f"{resources.workers} workers with {each} each" if resources.workers > 1 else each
        have = f"{_count(cluster.cpus, 'CPU')} and {_count(cluster.gpus, 'GPU')}"
        spread = f" on {len(cluster.nodes)} nodes" if len(cluster.nodes) > 1 else ""
        raise UserError(f"resources: a trial needs {need}, which {cluster.name} with {have}{spread} will never have.")
    if card is not None:
        places = sum(_places(node, resources.cpus, gpus / PARTS) for node in cluster.nodes)
    return Allotment(resources.workers, resources.cpus, gpus, places // resources.workers, card)


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
    at_most = math.ceil(allot(resources, cluster, card).at_once / cluster.gpus)
    return card, card.why(at_most)


class Room:
    """How many trials there is room for on the cluster as it is now: nodes come and go."""

    def __init__(self, resources: Resources, card: Card | None = None, seconds_between_looks: float = 2.0) -> None:
        self.resources, self.card = resources, card
        self.places, self.gpus, self.due = 1, 1, Every(seconds_between_looks)

    def __call__(self) -> int:
        """As of a moment ago; one at least, since lost nodes may come back. And one more, which waits with its price
        known: no actor waits for it."""
        if self.due():
            cluster = Cluster(None, _living_nodes())
            with suppress(UserError):
                self.places = allot(self.resources, cluster, self.card).at_once
                self.gpus = int(cluster.gpus)
        return self.places + 1


def _living_nodes() -> list[dict[str, float]]:
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def check_this_machine(resources: Resources) -> None:
    """The same without a cluster: what a cluster of our own would have here."""
    import torch

    cpus, gpus = float(os.cpu_count() or 1), float(torch.cuda.device_count())
    allot(resources, Cluster(None, [{"CPU": cpus, "GPU": gpus}], "this machine"))


def _count(number: float, thing: str) -> str:
    return f"{number:g} {thing}{'' if number == 1 else 's'}"


def _places(node: dict[str, float], cpus: float, gpus: float) -> int:
    """Workers that fit on a node; a fraction of a GPU never spans two."""
    by_cpu = int(node.get("CPU", 0.0) / cpus + 1e-9)
    if gpus == 0:
        return by_cpu
    have = node.get("GPU", 0.0)
    by_gpu = int(have / gpus + 1e-9) if gpus >= 1 else int(have) * int(1 / gpus + 1e-9)
    return min(by_cpu, by_gpu)


CLIENT, JOBS = "ray://", ("http://", "https://")


def runs_elsewhere(address: str) -> bool:
    """Whether somebody on the cluster runs the search for us, through Ray's client or as a job."""
    return address.startswith((CLIENT, *JOBS))


def _check_speaks_grpc(address: str) -> None:
    """Refuse a port behind which there is no Ray: Ray itself would ask it for minutes, and say so line by line."""
    if not re.fullmatch(_HOST_PORT, address):
        return  # 'auto': Ray knows where
    import grpc  # which comes with Ray's dashboard

    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=10)
        except grpc.FutureTimeoutError:
            raise UserError(
                f"address: what answers at {address} is no Ray cluster; its own port is 6379 as a rule."
            ) from None


def check_reachable(address: str) -> None:
    """A wrong address fails after minutes inside Ray; a socket knows in seconds."""
    match = re.fullmatch(rf"(?:ray://|https?://)?{_HOST_PORT}", address)
    if match:
        try:
            socket.create_connection((match[1], int(match[2])), timeout=5).close()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"address: nothing answers at {address} ({reason}); is the Ray cluster up?") from None
    elif address != "auto":
        raise UserError(f"address: {address!r} is none; give 'auto', HOST:PORT, ray://HOST:10001 or http://HOST:8265.")
