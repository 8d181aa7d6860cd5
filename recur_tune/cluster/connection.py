"""Connection to a Ray cluster: one started on this machine, or one that runs already."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recur_tune.cluster.internals import own_process_groups, print_no_messages
from recur_tune.cluster.liveness import ClusterLost, while_connecting
from recur_tune.cluster.ray_tune_adaptations import TUNE_SETTINGS
from recur_tune.cluster.sigterm import own_sigterm
from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder

NODE_NAME = "RECUR_TUNE_NODE"  # a variable: the node's name, set where Ray is started
DASHBOARD = "RECUR_TUNE_DASHBOARD"  # a variable: `off` starts a local cluster without a dashboard

# Read when Ray is imported or started.
_SETTINGS = TUNE_SETTINGS | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}

# Seconds that Ray gives its processes to start; its defaults are too short on a busy node.
START_UP = {
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    "RAY_worker_register_timeout_seconds": "300",
}
# Ray's message where the time is fixed: a raylet has half a minute. A second try finds its files in the page cache.
TOO_SLOW = "timed out during startup"
START_UPS = 3


def node_name() -> str:
    """The name of this process's node, in SLURM or as the system has it."""
    return os.environ.get(NODE_NAME) or socket.gethostname()


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
    address: str | None, about: Mapping[str, str] = {}, on_stuck: Callable[[ClusterLost], None] = lambda loss: None
) -> Iterator[Cluster]:
    """Start a local cluster, or connect to the one at `address`; at the end only a local one is stopped.

    `about` is metadata of the job in Ray's dashboard. Where the cluster is lost while Ray waits for it, `on_stuck` is
    called from a thread and should end the process.
    """
    for name, value in (_SETTINGS | START_UP).items():
        os.environ.setdefault(name, value)
    os.environ["RECUR_TUNE_CACHE"] = str(cache_folder().absolute())  # workers have other working directories
    if address is not None:
        check_reachable(address)
        _check_speaks_grpc(address)
    import ray

    already = ray.is_initialized()
    with while_connecting(address, on_stuck):
        url = None if already else _init(address, about)
        nodes = living_nodes()
    for name in ("ray", "ray.tune", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the search's log has the failures
    lost = False
    try:
        yield Cluster(f"http://{url}" if url else None, nodes)
    except ClusterLost:  # ray.shutdown() would hang too
        lost = True
        raise
    finally:
        if not already and not lost:
            with own_sigterm():
                ray.shutdown()


def _init(address: str | None, about: Mapping[str, str]) -> str | None:
    """Call ray.init and return the dashboard's address; a start that was too slow is tried again."""
    import ray
    from ray.job_config import JobConfig

    print_no_messages()
    for attempt in range(1, START_UPS + 1):
        try:
            with own_sigterm(), own_process_groups():
                return ray.init(
                    address=address or "local",
                    include_dashboard=os.environ.get(DASHBOARD) != "off" if address is None else None,
                    dashboard_host="127.0.0.1",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    # A local cluster inherits them.
                    runtime_env={"env_vars": {name: os.environ[name] for name in _SETTINGS}} if address else None,
                    job_config=JobConfig(metadata=dict(about)),
                ).dashboard_url
        except Exception as error:  # Ray raises a bare Exception where a node is too slow
            too_slow = TOO_SLOW in str(error)
            if not too_slow and not isinstance(error, (ConnectionError, RuntimeError, ValueError)):
                raise
            if not too_slow or attempt == START_UPS:
                reason = " ".join(str(error).split())[:200]
                raise UserError(f"address: {address or 'local'} gives no Ray cluster ({reason}).") from error
            ray.shutdown()
    raise AssertionError("unreachable")


def ray_token() -> Path:
    """The file with the token of this user's clusters, which Ray creates for the first."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()


CLIENT, JOBS = "ray://", ("http://", "https://")


def living_nodes() -> list[dict[str, float]]:
    """What every node that is up has, by resource."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def runs_elsewhere(address: str) -> bool:
    """Whether the search's driver runs on the cluster: through Ray's client, or as a job."""
    return address.startswith((CLIENT, *JOBS))


def _check_speaks_grpc(address: str) -> None:
    """Refuse a port without Ray behind it: Ray would retry for minutes, with a line each time."""
    if not re.fullmatch(_HOST_PORT, address):
        return  # 'auto' is resolved by Ray
    import grpc  # a dependency of Ray's dashboard

    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=10)
        except grpc.FutureTimeoutError:
            raise UserError(
                f"address: what answers at {address} is no Ray cluster; Ray's port is usually 6379."
            ) from None


def check_reachable(address: str) -> None:
    """Refuse an address that does not answer: Ray would take minutes, a socket takes seconds."""
    match = re.fullmatch(rf"(?:ray://|https?://)?{_HOST_PORT}", address)
    if match:
        try:
            socket.create_connection((match[1], int(match[2])), timeout=5).close()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"address: nothing answers at {address} ({reason}); is the Ray cluster up?") from None
    elif address != "auto":
        raise UserError(
            f"address: {address!r} is no address; give 'auto', HOST:PORT, ray://HOST:10001 or http://HOST:8265."
        )
