"""The network between a trial's workers: the variables that choose it, and the traffic that shows which one it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil

from recur_tune.sites.slurm.allocation import interface_of
from recur_tune.sites.slurm.profile import Profile

NO_FABRIC = "none"  # a profile's `fabric` where NCCL shall use the interface

_ADAPTERS = Path("/sys/class/infiniband")
_BYTES_OF_A_COUNT = 4  # InfiniBand counts words


def network_between_workers(profile: Profile, address: str) -> dict[str, str]:
    """Variables that put a trial's workers onto the network of this address; Gloo's default is that of the host name.

    NCCL takes InfiniBand where it finds some, and the interface to connect and where there is none.
    """
    interface = interface_of(address)
    variables = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
    if profile.fabric == NO_FABRIC:
        variables["NCCL_IB_DISABLE"] = "1"
    elif profile.fabric:
        variables["NCCL_IB_HCA"] = profile.fabric
    return variables


def sent_bytes(adapters: Path = _ADAPTERS) -> dict[str, int]:
    """Bytes that this node has sent over each interface, and over each adapter of InfiniBand."""
    sent = {name: counted.bytes_sent for name, counted in psutil.net_io_counters(pernic=True).items()}
    for counter in adapters.glob("*/ports/*/counters/port_xmit_data"):
        name = counter.relative_to(adapters).parts[0]
        sent[name] = sent.get(name, 0) + int(counter.read_text()) * _BYTES_OF_A_COUNT
    return sent


def carriers(before: Mapping[str, int], after: Mapping[str, int], expected: int) -> list[str]:
    """The networks that have carried most of the expected bytes; several where they shared them."""
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    return sorted(name for name, count in grown.items() if count > expected / 4)


def wrong_network(profile: Profile, address: str, used: list[str], adapters: Path = _ADAPTERS) -> str:
    """The network that should have been used, where it was another; else empty.

    Where nothing was counted (memory of one node, a fabric without counters) nothing is known.
    """
    fabric = {path.name for path in adapters.glob("*")}
    named = (
        None if profile.fabric in (None, NO_FABRIC) else {one.partition(":")[0] for one in profile.fabric.split(",")}
    )
    allowed = {interface_of(address)} | (set() if profile.fabric == NO_FABRIC else named or fabric)
    if not used or set(used) & allowed:
        return ""
    return ", ".join(sorted(named or filter(None, allowed)))
