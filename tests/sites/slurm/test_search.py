"""Searches in a real SLURM of three nodes, from submission to front."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from recur_tune.search.record.directory import LEAVING
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.front import front_rows
from tests import forked
from tests.search.run.searches import assert_settled
from tests.sites.slurm.mini_slurm import NODES, MiniSlurm
from tests.sites.slurm.site import Site, Submitted
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slurm

_ATTACK = Path(__file__).parent / "attack.py"


def test_from_submission_to_front_with_a_guest_and_nobody_else(site: Site, slurm: MiniSlurm) -> None:
    tracking = f"sqlite:///{site.shared}/alice.db"
    space = site.space(budget__tokens=20_000, budget__trials=3, budget__rungs=1, tracking=tracking, resources__gpus=0)
    profile = site.profile(nodes=2, gpus_per_node=1, mlflow=True, dashboard="localhost")
    search = site.submit("a", profile, space, user="alice")
    with site.occupied("--nodelist=n[1-2]", "--nodes=2", "--cpus-per-task=3"):  # so that the guest gets n3
        guest = site.type("grow", "a", "--nodes", "1", "--time", "0:05:00", user="alice").out.strip()
        with search.held("n1", "n2"):  # so that the last trial is left to the guest, and nothing is over too soon
            with search.held("n3"):
                watched_from_the_login_node(search, site)
                slurm.run("scancel", "--batch", "--signal=USR1", guest)  # as SLURM does before the time is up
                search.until(
                    lambda: FlagFile(search.directory.path / LEAVING / "n3").is_set(),
                    "the guest's trial is asked to leave",
                )
            nobody_else_gets_in(search, slurm)
            has_what_was_granted(search, slurm)
        its_trial_goes_on_elsewhere(search)
        search.until_finished()
    assert site.type("logs", "a", user="alice").out.count("complete") >= 1
    assert json.loads(site.type("front", "a", "--json").out)["front"] == front_rows(
        search.state, search.directory.spec.objectives
    )
    leaves_no_trace(search, slurm)
    secret = search.folder.token.read_text()
    for file in search.directory.path.rglob("*"):
        if file.is_file() and file != search.folder.token:
            assert secret not in file.read_text(errors="replace"), file


def watched_from_the_login_node(search: Submitted, site: Site) -> None:
    status = site.type("status", "a", user="alice").out
    assert f"job {search.job} runs on n[1-2]" in status
    head = search.head
    assert head.address.startswith("10.77.0.1:"), "its own name resolves to 127.0.1.1"
    tunnel = site.type("tunnel", "a", user="alice").out
    assert f"-L 8265:localhost:{head.dashboard} -L 5000:{head.mlflow}" in tunnel
    assert "alice@n1" in tunnel


def nobody_else_gets_in(search: Submitted, slurm: MiniSlurm) -> None:
    """Another user on the same node tries every door of the cluster."""
    head, token = search.head, search.folder.token
    assert token.stat().st_mode & 0o777 == 0o600
    ways = {
        "dashboard": f"127.0.0.1:{head.dashboard}", "job": f"127.0.0.1:{head.dashboard}",
        "store": head.address, "client": f"10.77.0.1:{head.client}",
        "mlflow-read": head.mlflow, "mlflow-write": head.mlflow,
    }  # fmt: skip
    tries = {
        way: slurm.popen(sys.executable, _ATTACK, way, place, user="bob", node="n1", stdout=-1, stderr=-1)
        for way, place in ways.items()
    }
    said = {way: attack.communicate(timeout=PATIENCE)[0] for way, attack in tries.items()}
    assert said["dashboard"] == said["job"] == "refused with 401\n"
    for way in ("mlflow-read", "mlflow-write"):
        assert said[way].startswith("refused by PermissionError"), said
        mine = [sys.executable, _ATTACK, way, str(head.mlflow)]
        search.until(lambda mine=mine: slurm.on_node("n1", *mine, user="alice").stdout == "got in\n", f"{way} by alice")
    for way in ("store", "client"):
        assert said[way].startswith("refused"), said
        # By the cluster, which said why: not for want of an answer.
        assert not any(word in said[way].lower() for word in ("timeout", "deadline", "unavailable")), said
    beyond = slurm.on_node("n2", sys.executable, _ATTACK, "dashboard", f"10.77.0.1:{head.dashboard}", user="bob")
    assert "Connection refused" in beyond.stdout, "the dashboard listens on localhost alone"
    assert slurm.on_node("n1", "cat", token, user="bob", check=False).returncode != 0
    for node in NODES:
        assert token.read_text() not in slurm.on_node(node, "ps", "-ewwo", "args").stdout


def has_what_was_granted(search: Submitted, slurm: MiniSlurm) -> None:
    """Ray has a core of four and a GPU of two on each node; whoever has the token can ask."""
    look = (
        f"import ray; ray.init('{search.head.address}', log_to_driver=False)\n"
        "for node in ray.nodes():\n"
        "    has = node['Resources']\n"  # of a guest that has left: nothing
        "    print(node['NodeName'], has.get('CPU'), has.get('GPU'))"
    )
    seen = slurm.on_node("n1", sys.executable, "-c", look, user="alice", env=search.folder.environment()).stdout
    assert {"n1 1.0 1.0", "n2 1.0 1.0"} <= set(seen.splitlines())


def its_trial_goes_on_elsewhere(search: Submitted) -> None:
    """Warned of its end, a guest lets its trial save itself and leave."""
    search.until(lambda: bool(search.events("moved")), "a trial that leaves the guest")
    moved = search.events("moved")[0]

    def reports() -> list[dict[str, Any]]:
        return [event for event in search.events("report") if event["trial"] == moved["trial"]]

    search.until(lambda: reports()[-1]["time"] > moved["time"], "that trial elsewhere")
    before = max(event["tokens"] for event in reports() if event["time"] <= moved["time"])
    after = next(event for event in reports() if event["time"] > moved["time"])
    assert after["worker"].partition(":")[0] in ("n1", "n2")
    assert after["tokens"] >= before, "it went on where it was"


def leaves_no_trace(search: Submitted, slurm: MiniSlurm) -> None:
    """Nothing of a search runs, or lies, on any node; what Ray said there is kept with the search."""
    for node in NODES:
        running = slurm.on_node(node, "ps", "-ewwo", "args").stdout
        assert "recur_tune" not in running
        assert "raylet" not in running
        assert not slurm.on_node(node, "find", "/tmp", "-maxdepth", "1", "-name", "rt*", "-user", "alice").stdout
    for begun in search.notes("begun"):
        for node in begun["nodes"]:
            assert (search.folder.ray_logs(begun["job"], node) / "raylet.out").exists()


def test_an_allocation_held_already_trains_with_two_workers_on_each_of_its_nodes(site: Site, slurm: MiniSlurm) -> None:
    space = site.space(budget__trials=1, budget__tokens=6_000, resources__workers=4)
    words = ["search", space, "--name", "held", "--slurm", "here"]
    env = {
        "RECUR_TUNE_RESULTS": str(site.results),
        "RECUR_TUNE_CACHE": str(site.shared / "cache"),
        "OMP_NUM_THREADS": "1",
        **forked.settings(site.forkserver),
    }
    slurm.run("salloc", "--nodes=2", "--cpus-per-task=2", "recur-tune", *words, env=env, timeout=PATIENCE)
    search = Submitted(site, "held", 0)
    assert search.state.status == "finished"
    assert [trial.state for trial in search.state.trials.values()] == ["complete"]
    assert_settled(search.directory)
    [begun] = search.notes("begun")
    assert len(begun["nodes"]) == 2, "with two cores of each, four workers can only be on two nodes"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"interface": "ib7"}, "recur-tune: node n1: interface: n1 has no address on 'ib7'; it has eth0, lo."),
        ({"scratch": "/nowhere" * 6}, "is too long for Ray's sockets"),
        ({"setup": ["echo ready", "module load cuda"]}, "the set-up failed at: module load cuda"),
    ],
    ids=["interface", "scratch", "setup"],
)  # fmt: skip
def test_a_job_that_fails_says_why(
    site: Site, fields: dict[str, Any], words: str, request: pytest.FixtureRequest
) -> None:
    name = f"failing-{request.node.callspec.id}"
    search = site.submit(name, site.profile(directives=["--nodelist=n1"], **fields), site.space())
    search.until(lambda: not search.jobs_in_queue(), "its end")
    assert words in site.type("logs", name).out
    assert f"job {search.job} has ended as FAILED" in site.type("status", name).out


def test_storage_that_nodes_do_not_share_is_no_mystery(site: Site) -> None:
    """The profile claims that they do; the job cannot even begin."""
    profile, space = site.profile(storage="/tmp"), site.space()
    job = site.type("search", space, "--name", "lost", "--slurm", profile, "--results", "/tmp/mine").out.strip()
    anywhere = Submitted(site, "lost", int(job))
    anywhere.until(lambda: not anywhere.jobs_in_queue(), "its end")
    assert f"job {job} has ended as FAILED" in site.type("status", "lost", "--results", "/tmp/mine").out


def test_stop_takes_a_search_out_of_the_queue(site: Site, slurm: MiniSlurm) -> None:
    with site.occupied("--nodelist=n1", "--exclusive"):
        search = site.submit("waiting", site.profile(directives=["--nodelist=n1"]), site.space())
        assert "waits in the queue" in site.type("status", "waiting").out
        assert site.type("resume", "waiting", "--slurm", code=2).err.count("waits in the queue") == 1
        site.type("stop", "waiting")
        assert not search.jobs_in_queue()
        site.type("stop", "waiting", code=2)


def test_a_site_is_checked_in_a_job(site: Site, slurm: MiniSlurm) -> None:
    said = site.type("cluster", "check", "--slurm", site.profile(nodes=3, cpus_per_node=2)).out
    for node in NODES:
        assert f"ok      {node}" in said
        assert re.search(rf"ok      {node} +sums +gloo over eth0: 64 MiB in \d+ ms", said)
    assert "FAILED" not in said
    private = site.profile(nodes=2, storage="/tmp")
    unshared = site.type("cluster", "check", "--slurm", private, "--results", "/tmp/private", code=2).err
    assert "do the nodes share that folder?" in unshared
    assert not list(site.results.glob(".check*"))
