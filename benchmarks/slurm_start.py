"""Seconds from `sbatch` to the first trial's first report, stage by stage, on one, two and three nodes.

The nodes are those of the tests: a real SLURM, with each node in its own namespaces on this machine. Needs root and
SLURM's packages (`make packages`).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.sites.slurm.mini_slurm import MiniSlurm, available
from tests.sites.slurm.site import Site, Submitted

_STAGES = ("SLURM starts the job", "Ray is up on all nodes", "the search is connected", "a first report")


def stages(search: Submitted) -> list[float]:
    """When each of them was over, in seconds since the submission."""
    submitted = search.notes("search")[0]["time"]
    begun = search.notes("begun")[0]["time"]
    line = next(line for line in search.said.splitlines() if "Ray is up" in line)
    up = time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S"))
    connected = search.events("search")[0]["time"]
    return [moment - submitted for moment in (begun, up, connected, search.events("report")[0]["time"])]


def main() -> None:
    """Print the table."""
    if reason := available():
        sys.exit(reason)
    columns = {}
    with tempfile.TemporaryDirectory() as folder, MiniSlurm(Path(folder) / "shared") as slurm:
        site = Site(slurm)
        for nodes in (1, 2, 3):
            search = site.submit(f"on-{nodes}", site.profile(nodes=nodes, dashboard="localhost"), site.space())
            search.until_finished()
            columns[nodes] = stages(search)
            slurm.ready()
    print(f"| seconds after submission | {' | '.join(f'{nodes} nodes' for nodes in columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for number, stage in enumerate(_STAGES):
        print(f"| {stage} | {' | '.join(f'{moments[number]:.1f}' for moments in columns.values())} |")


if __name__ == "__main__":
    main()
