"""What SLURM granted, whatever the site's way to say it; and times as SLURM writes them."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.sites.slurm.allocation import Grant, free_ports, own_address
from recur_tune.sites.slurm.profile import format_slurm_time, parse_slurm_time


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-4a8e,GPU-77b1,GPU-0c2d"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, 2),
        ({"SLURM_STEP_GPUS": "1,2"}, 2),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
    ],
)
def test_gpus_are_counted_however_they_are_named(variables: dict[str, str], gpus: int) -> None:
    assert Grant.from_environment(variables).gpus == gpus


def test_cores_and_memory_are_the_grants_and_not_the_nodes() -> None:
    assert Grant.from_environment({"SLURM_CPUS_ON_NODE": "3", "SLURM_MEM_PER_NODE": "100"}) == Grant(3, 0, 100 * 2**20)
    assert Grant.from_environment({"SLURM_CPUS_ON_NODE": "3", "SLURM_MEM_PER_CPU": "100"}) == Grant(3, 0, 300 * 2**20)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800), ("30:15", 1815), ("8:00:00", 28800), ("2-0", 172800), ("2-12:30", 217800), ("1-1:1:1", 90061),
        ("8h", 28800),
    ],
)  # fmt: skip
def test_times_are_read_as_slurm_reads_them(text: str, seconds: float) -> None:
    assert parse_slurm_time(text) == seconds


@given(st.integers(0, 10**7))
def test_times_come_back(seconds: int) -> None:
    assert parse_slurm_time(format_slurm_time(seconds)) == seconds


@given(st.integers(1, 10**8))
def test_jobs_that_start_together_on_a_node_take_different_ports(job: int) -> None:
    ports = [port for near in range(job, job + 4) for port in free_ports(9, near)]
    assert len(set(ports)) == 36
    assert min(ports) > 19_999, "Ray's workers listen there"
    assert max(ports) < 32_768, "Ray's other processes may be given those by Linux before ours are in use"


def test_a_taken_port_is_left_out() -> None:
    first, *_ = free_ports(9, job=7)
    with socket.create_server(("", first)):
        assert first not in free_ports(9, job=7)


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    assert own_address("lo", None) == "127.0.0.1"
    with pytest.raises(UserError, match=r"interface: .* has no address on 'ib7'; it has .*lo"):
        own_address("ib7", None)
