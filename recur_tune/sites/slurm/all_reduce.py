"""An all-reduce between the nodes of an allocation, as a trial's workers would make it: its time, and its network.

Runs as a step of the check's job, one a node:

    python -m recur_tune.sites.slurm.all_reduce FOLDER NODE RANK NODES HOST:PORT
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from recur_tune.common.files import write_text
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.units import format_size
from recur_tune.sites.slurm.allocation import own_address
from recur_tune.sites.slurm.fabric import carriers, network_between_workers, sent_bytes, wrong_network
from recur_tune.sites.slurm.finding import Finding, as_json
from recur_tune.sites.slurm.profile import Profile

_BYTES = 64 * 2**20
_TIMES = 5


def main() -> None:
    """On one node: take part, and write the finding."""
    folder, node, rank, nodes, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    try:
        finding = all_reduce(parse(Profile, read_yaml(folder / "profile.yaml")), node, rank, nodes, first)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        finding = Finding(node, "sums", False, f"an all-reduce with {nodes - 1} other nodes failed ({reason})")
    write_text(folder / f"{node}-sums.json", as_json([finding]))
    sys.stdout.flush()
    os._exit(0)  # NCCL and Gloo may wait for a node that has failed


def all_reduce(profile: Profile, node: str, rank: int, nodes: int, first: str) -> Finding:
    """Sum a buffer over the nodes; what is asked of every node at once."""
    address = own_address(profile.interface, first.rpartition(":")[0])
    for name, value in network_between_workers(profile, address).items():
        os.environ.setdefault(name, value)
    import torch
    import torch.distributed as dist

    on_gpu = profile.gpus_per_node > 0 and torch.cuda.is_available()
    backend, device = ("nccl", "cuda") if on_gpu else ("gloo", "cpu")
    patience = timedelta(seconds=60)
    dist.init_process_group(backend, init_method=f"tcp://{first}", rank=rank, world_size=nodes, timeout=patience)
    buffer, one = torch.zeros(_BYTES // 4, device=device), torch.zeros(1, device=device)

    def reduce(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)
        tensor[0].item()  # a GPU works behind our back

    reduce(buffer)  # the first makes the connections
    before = sent_bytes()
    seconds, latency = _median_seconds(lambda: reduce(buffer)), _median_seconds(lambda: reduce(one))
    share = 2 * (nodes - 1) / nodes * _BYTES  # which each node has to send
    used = carriers(before, sent_bytes(), expected=int(share * _TIMES))
    dist.barrier()
    speed = f"{format_size(_BYTES)} in {seconds * 1000:.0f} ms, {share * 8 / seconds / 1e9:.2g} Gb/s; a number in "
    seen = f"{backend} over {', '.join(used) or 'an unknown network'}: {speed}{latency * 1000:.2g} ms"
    wanted = wrong_network(profile, address, used)
    return Finding(node, "sums", not wanted, f"{seen}; the profile means {wanted}" if wanted else seen)


def _median_seconds(call: Callable[[], None]) -> float:
    taken = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
