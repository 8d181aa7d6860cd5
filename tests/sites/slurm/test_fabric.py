"""The network of a trial's workers: what a profile makes of it, and an all-reduce that tells which one it took."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recur_tune.common.parsing import parse, write_yaml
from recur_tune.sites.slurm.allocation import interface_of
from recur_tune.sites.slurm.fabric import carriers, network_between_workers, sent_bytes, wrong_network
from recur_tune.sites.slurm.profile import Profile

HERE = "127.0.0.1"
LOOPBACK = str(interface_of(HERE))
MB = 10**6


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({}, {}),
        ({"fabric": "mlx5_0,mlx5_1:1"}, {"NCCL_IB_HCA": "mlx5_0,mlx5_1:1"}),
        ({"fabric": "none"}, {"NCCL_IB_DISABLE": "1"}),
    ],
)
def test_gloo_and_nccl_take_the_interface_of_the_address_and_nccl_the_fabric_of_the_profile(
    fields: dict[str, Any], more: dict[str, str]
) -> None:
    found = network_between_workers(parse(Profile, fields), HERE)
    assert found == {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK} | more


def test_what_carried_most_of_the_bytes_is_the_network() -> None:
    before = {"eth0": 5 * MB, "ib0": 0, "lo": 1}
    assert carriers(before, {"eth0": 6 * MB, "ib0": 100 * MB, "lo": 1}, expected=100 * MB) == ["ib0"]
    assert carriers(before, before | {"mlx5_0": 50 * MB, "mlx5_1": 50 * MB}, 100 * MB) == ["mlx5_0", "mlx5_1"]
    assert carriers(before, before, 100 * MB) == []


@pytest.mark.parametrize(
    ("fields", "used", "wrong"),
    [
        ({}, [LOOPBACK], ""),
        ({}, ["mlx5_0"], ""),  # what NCCL takes by itself
        ({}, ["eth7"], f"{LOOPBACK}, mlx5_0, mlx5_1"),
        ({"fabric": "mlx5_1:1"}, ["mlx5_1"], ""),
        ({"fabric": "mlx5_1:1"}, ["mlx5_0"], "mlx5_1"),
        ({"fabric": "none"}, ["mlx5_0"], LOOPBACK),
        ({"fabric": "none"}, [], ""),  # nothing was counted
    ],
)
def test_a_network_that_the_profile_does_not_mean_is_told(
    fields: dict[str, Any], used: list[str], wrong: str, tmp_path: Path
) -> None:
    for adapter in ("mlx5_0", "mlx5_1"):
        counters = tmp_path / adapter / "ports" / "1" / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").write_text("250\n")
    assert sent_bytes(tmp_path)["mlx5_0"] == 1000, "words of four bytes"
    assert wrong_network(parse(Profile, fields), HERE, used, tmp_path) == wrong


def test_an_all_reduce_of_two_processes_tells_its_time_and_its_network(tmp_path: Path) -> None:
    write_yaml(tmp_path / "profile.yaml", {"interface": LOOPBACK})
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        first = f"{HERE}:{probe.getsockname()[1]}"
    words = [sys.executable, "-m", "recur_tune.sites.slurm.all_reduce", str(tmp_path)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([*words, f"n{rank}", str(rank), "2", first], env=env) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]
    for node in ("n0", "n1"):
        [finding] = json.loads((tmp_path / f"{node}-sums.json").read_text())
        assert finding["good"], finding
        assert finding["seen"].startswith(f"gloo over {LOOPBACK}: 64 MiB in ") and "Gb/s" in finding["seen"]
