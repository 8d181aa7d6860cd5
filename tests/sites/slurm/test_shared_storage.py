"""One search, two nodes, and storage on which the kernel's locks do not hold and lookups come from a cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recur_tune.search.record.directory import SearchDirectory
from tests.command import CHECKOUT
from tests.search.record import search
from tests.sites.slurm.mini_slurm import NODES, MiniSlurm
from tests.sites.slurm.site import Site
from tests.waiting import until

pytestmark = pytest.mark.slurm

_HURRIED = """
import sys, time
from pathlib import Path
from recur_tune.common.errors import UserError
from recur_tune.search.record import lease
from recur_tune.search.record.directory import SearchDirectory
lease.HEARTBEAT, lease.TERM, lease.WATCH = 0.2, float(sys.argv[2]), 2.0
directory = SearchDirectory(Path(sys.argv[1]))
"""
_RUN_UNTIL_STOPPED = (
    _HURRIED
    + """
with directory.hold_lease():
    while not directory.stop_requested:
        print("running", flush=True)
        time.sleep(0.05)
"""
)
_ASK = (
    _HURRIED
    + """
running = directory.is_running
try:
    with directory.hold_lease():
        print(running, "locked")
except UserError as error:
    print(running, error)
"""
)
_STOP = _HURRIED + "directory.request_stop()"


@pytest.fixture(scope="module")
def like_nfs(slurm: MiniSlurm) -> Path:
    """The library to preload."""
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    built = slurm.shared / "nfs.so"
    source = Path(__file__).with_name("nfs.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source], check=True)
    return built


class Nodes:
    """Programs about one search on nodes with such storage."""

    def __init__(self, slurm: MiniSlurm, library: Path, flock: str) -> None:
        self.slurm = slurm
        self.directory = SearchDirectory.create(slurm.shared, f"storage-{time.monotonic_ns()}", search())
        self.env = {"LD_PRELOAD": str(library), "NFS_FLOCK": flock, "PYTHONPATH": str(CHECKOUT)}

    def _words(self, program: str, term: float) -> list[str | Path]:
        return [sys.executable, "-c", program, self.directory.path, str(term)]

    def start(self, node: str, program: str, term: float = 900) -> subprocess.Popen[str]:
        """Start a program and wait for its first line."""
        process = self.slurm.popen(*self._words(program, term), node=node, env=self.env, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        return process

    def ask(self, node: str, program: str = _ASK, term: float = 900) -> str:
        return self.slurm.on_node(node, *self._words(program, term), env=self.env).stdout.strip()


@pytest.fixture(params=["missing", "own"])
def nodes(request: pytest.FixtureRequest, slurm: MiniSlurm, like_nfs: Path) -> Nodes:
    return Nodes(slurm, like_nfs, request.param)


def test_a_search_runs_once_and_hears_from_another_node_that_it_shall_stop(nodes: Nodes) -> None:
    with nodes.start("n1", _RUN_UNTIL_STOPPED) as holder:
        refused = nodes.ask("n2")
        assert refused.startswith(f"True name: {nodes.directory.name} is running already on n1, process ")
        assert nodes.directory.is_running, "seen from the login node too"
        nodes.ask("n2", _STOP)
        assert holder.stdout is not None
        holder.stdout.read()
        assert holder.wait() == 0
    assert nodes.ask("n2") == "False locked", "what was given back is free at once"


def test_a_search_whose_node_has_died_is_free_when_its_lease_has_run_out(slurm: MiniSlurm, like_nfs: Path) -> None:
    nodes = Nodes(slurm, like_nfs, "missing")
    with nodes.start("n1", _RUN_UNTIL_STOPPED) as holder:
        holder.kill()
    assert nodes.ask("n2").startswith("True"), "from another node nobody can know yet"
    until(lambda: nodes.ask("n2", term=1) == "False locked", "it has run out")


def test_a_check_of_the_site_tells_what_its_storage_is(site: Site, slurm: MiniSlurm, like_nfs: Path) -> None:
    setup = [f"export LD_PRELOAD='{like_nfs}' NFS_FLOCK=own"]
    said = site.type("cluster", "check", "--slurm", site.profile(nodes=2, setup=setup)).out
    kind = slurm.on_node("n1", "findmnt", "-no", "FSTYPE", "-T", site.results).stdout.split()[0]
    for node in NODES[:2]:
        [line] = [line for line in said.splitlines() if line.split()[1:3] == [node, "locks"]]
        holds = f"{kind}: a search's lease holds between nodes; the kernel's (flock) is each node's own"
        assert line.startswith("ok") and holds in line
