"""A Ray cluster to run on: one of our own in this machine, or one that is there already."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder
from recur_tune.sites.ray.internals import print_no_messages
from recur_tune.sites.ray.liveness import ClusterLost, while_connecting
from recur_tune.sites.ray.sigterm import own_sigterm

NODE_NAME = "RECUR_TUNE_NODE"  # a variable: what the node is called by whoever started Ray on it
DASHBOARD = "RECUR_TUNE_DASHBOARD"  # a variable: off where a cluster of our own is to have none

# Read when Ray is imported or started. Ours are: the log of the search instead of Ray's result files, our own Ctrl-C.
_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "30",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}

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
    address: str | None, about: Mapping[str, str] = {}, on_stuck: Callable[[ClusterLost], None] = lambda loss: None
) -> Iterator[Cluster]:
    """Start a cluster of our own, or join the one at `address`; at the end only our own is stopped.

    The dashboard's page of this job shows what it is `about`. Where the cluster is lost while we wait for it in Ray,
    `on_stuck` are called from a thread and should end the process.
    """
    for name, value in (_SETTINGS | START_UP).items():
        os.environ.setdefault(name, value)
    os.environ["RECUR_TUNE_CACHE"] = str(cache_folder().absolute())  # workers have folders of their own
    if address is not None:
        check_reachable(address)
        _check_speaks_grpc(address)
    import ray

    already = ray.is_initialized()
    with while_connecting(address, on_stuck):
        url = None if already else _init(address, about)
        nodes = living_nodes()
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


CLIENT, JOBS = "ray://", ("http://", "https://")


def living_nodes() -> list[dict[str, float]]:
    """What every node that is up has, by resource."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


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
