"""An allocation's nodes, and what SLURM granted on them: other jobs use the rest of a node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import psutil

from recur_tune.common.errors import UserError
from recur_tune.sites.slurm import queue

_PORTS = range(20_000, 32_768)  # between the ports of Ray's workers and Linux's ephemeral ports
_PORTS_OF_A_JOB = 16  # nine on the first node, fewer on others


@dataclass(frozen=True)
class Allocation:
    """The job that this process is part of."""

    job: int
    nodes: tuple[str, ...]

    @classmethod
    def current(cls) -> Allocation:
        """From SLURM's environment variables."""
        job, nodes = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NODELIST")
        if not job or not nodes:
            raise UserError("slurm: this is not inside an allocation; get one with salloc, or name a profile.")
        return cls(int(job), tuple(queue.host_names(nodes)))

    @property
    def first(self) -> str:
        """The node of the head and of the search itself."""
        return self.nodes[0]


@dataclass(frozen=True)
class Grant:
    """This node's share of an allocation."""

    cpus: int
    gpus: int
    memory: int | None  # bytes

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Grant:
        """From the environment of a step on this node."""
        cpus = int(variables.get("SLURM_CPUS_ON_NODE") or variables.get("SLURM_CPUS_PER_TASK") or 1)
        megabytes = int(variables.get("SLURM_MEM_PER_NODE") or 0)
        if not megabytes and variables.get("SLURM_MEM_PER_CPU"):
            megabytes = int(variables["SLURM_MEM_PER_CPU"]) * cpus
        return cls(cpus, _gpus(variables), megabytes * 2**20 or None)


def _gpus(variables: Mapping[str, str]) -> int:
    """How many devices are visible; they may be numbers, UUIDs or slices of a GPU."""
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL"):
        listed = variables.get(name)
        if listed is not None and listed != "NoDevFiles":
            return len([device for device in listed.split(",") if device.strip()])
    return int(variables.get("SLURM_GPUS_ON_NODE") or 0)


def own_address(interface: str | None, towards: str | None) -> str:
    """This node's address as its peers reach it.

    On the interface that the profile names; else on the way to `towards`, which is the head, or SLURM's controller.
    The node's own name is not asked: on many systems it resolves to 127.0.1.1.
    """
    if interface is not None:
        addresses = [a.address for a in psutil.net_if_addrs().get(interface, []) if a.family == socket.AF_INET]
        if not addresses:
            known = ", ".join(sorted(psutil.net_if_addrs()))
            raise UserError(f"interface: {socket.gethostname()} has no address on {interface!r}; it has {known}.")
        return addresses[0]
    routed = _address_towards(towards) if towards else None
    if routed and not routed.startswith("127."):
        return routed
    up = [name for name, stats in psutil.net_if_stats().items() if stats.isup]
    others = [
        a.address for name in up for a in psutil.net_if_addrs().get(name, [])
        if a.family == socket.AF_INET and not a.address.startswith("127.")
    ]  # fmt: skip
    return others[0] if others else "127.0.0.1"


def interface_of(address: str) -> str | None:
    """The interface that has this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == address for a in addresses):
            return name
    return None


def _address_towards(host: str) -> str | None:
    """The source address that the kernel would use; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def free_ports(count: int, job: int) -> list[int]:
    """Free ports of this node; each is held while the next is found, so that they differ.

    Seconds pass before they are used, in which Ray asks the kernel for further ports and another job may start here. So
    they are no ephemeral ports, and every job starts at another number.
    """
    with ExitStack() as held:
        ports: list[int] = []
        for offset in range(len(_PORTS)):
            port = _PORTS[(job * _PORTS_OF_A_JOB + offset) % len(_PORTS)]
            one = held.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise UserError(f"ports: this node has no {count} free ones from {_PORTS[0]} to {_PORTS[-1]}.")
