"""A search on a cluster as KubeRay starts it from cluster/kuberay.yaml: head, worker and token, without Kubernetes.

KubeRay turns `rayStartParams` into `ray start --block`, fills in what stands below, and gives every container the
token as RAY_AUTH_TOKEN. Ports are others than its own here, where head and worker are on one machine. It is also the
search that somebody on the cluster runs for us, as a job that its dashboard is given.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import yaml

from recur_tune.common.localhost import free_ports_from
from recur_tune.common.shipped import KUBERAY
from recur_tune.search.record.directory import SearchDirectory
from tests.command import Command
from tests.ports import FIRST
from tests.search.run.searches import assert_settled, small_spec, write_space
from tests.search.run.test_addresses import wait_for
from tests.waiting import until

pytestmark = pytest.mark.ray

_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def containers(spec: dict, shared: Path, token: str, gcs: int) -> dict[str, str]:
    """The variables of a container."""
    template = spec["template"]["spec"]["containers"][0]
    said = {one["name"]: one["value"].replace("/shared", str(shared)) for one in template["env"]}
    return os.environ | said | {
        "PATH": _PATH, "RAY_CLUSTER_NAME": "recur-tune", "RAY_ADDRESS": f"127.0.0.1:{gcs}", "RAY_PORT": str(gcs),
        "RAY_USAGE_STATS_KUBERAY_IN_USE": "1", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token,
    }  # fmt: skip


def living_nodes(address: str, token: str) -> int:
    """As KubeRay would count them."""
    request = urllib.request.Request(f"{address}/api/v0/nodes", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            nodes = json.load(answer)["data"]["result"]["result"]
    except OSError:  # not yet
        return 0
    return sum(node["state"] == "ALIVE" for node in nodes)


def ended(started: list[subprocess.Popen[bytes]]) -> bool:
    return any(process.poll() is not None for process in started)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The dashboard's address and the token."""
    spec = yaml.safe_load(KUBERAY.read_text())["spec"]
    gcs, dashboard, client, *others = islice(free_ports_from(FIRST + 20), 9)
    token = secrets.token_hex(32)
    head = spec["headGroupSpec"]["rayStartParams"] | {
        "dashboard-host": "0.0.0.0", "port": gcs, "dashboard-port": dashboard, "ray-client-server-port": client,
        "metrics-export-port": others[0], "dashboard-agent-listen-port": others[1],
    }  # fmt: skip
    [workers] = spec["workerGroupSpecs"]
    worker = workers["rayStartParams"] | {
        "address": f"127.0.0.1:{gcs}", "num-cpus": 2, "metrics-export-port": others[2],
        "dashboard-agent-listen-port": others[3],
    }  # fmt: skip
    groups = ((["--head"], head, spec["headGroupSpec"]), ([], worker, workers))
    started = []
    try:
        for words, parameters, group in groups:
            command = ["ray", "start", *words, "--block", *(f"--{name}={value}" for name, value in parameters.items())]
            env = containers(group, tmp_path, token, gcs)
            started.append(subprocess.Popen(
                command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            ))  # fmt: skip
            wait_for(f"127.0.0.1:{gcs}")
        wait_for(f"127.0.0.1:{dashboard}")
        address = f"http://127.0.0.1:{dashboard}"
        until(lambda: living_nodes(address, token) == 2, "head and worker", hopeless=lambda: ended(started))
        yield address, token
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_search_runs_there_for_who_has_the_token(cluster: tuple[str, str], world: Path, tmp_path: Path) -> None:
    address, token = cluster
    space = write_space(tmp_path / "space.yaml", small_spec(world, budget__trials=2, resources__cpus=1.5))
    words = ["search", space, "--results", tmp_path / "results", "--address", address, "--name"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"PATH": _PATH}
    with Command(*words, "stranger", env=env | {"RAY_AUTH_MODE": "disabled"}) as refused:
        assert refused.wait() == 2
    assert "asks for the cluster's token; set RAY_AUTH_MODE=token" in " ".join(refused.err.split())
    assert not (tmp_path / "results" / "stranger").exists(), "nothing is made of a search that cannot run"
    with Command(*words, "there", env=env | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}) as search:
        assert search.wait() == 0, search.err
    directory = SearchDirectory.open(tmp_path / "results", "there")
    assert directory.state().status == "finished"
    assert_settled(directory)
