"""Searches in a real SLURM of three nodes, from submission to front, through what a cluster does to them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from recur_tune.searching.front import front_rows
from tests.searching.searches import assert_settled
from tests.slurm.mini_slurm import NODES, MiniSlurm
from tests.slurm.site import Site, Submitted

pytestmark = pytest.mark.slurm

_ATTACK = Path(__file__).parent / "attack.py"


def test_from_submission_to_front_and_nobody_else_gets_in(site: Site, slurm: MiniSlurm) -> None:
    space = site.space(budget__tokens=40_000, tracking=f"sqlite:///{site.shared}/alice.db", resources__gpus=0)
    profile = site.profile(nodes=3, gpus_per_node=1, mlflow=True)
    search = site.submit("a", profile, space, user="alice")
    search.until(lambda: bool(search.nodes_at_work()), "a first report")

    status = site.type("status", "a", user="alice").stdout
    assert f"job {search.job} runs on n[1-3]" in status
    head = search.head
    assert head.address.startswith("10.77.0.1:"), "its own name resolves to 127.0.1.1"
    tunnel = site.type("tunnel", "a", user="alice").stdout
    assert f"-L 8265:localhost:{head.dashboard} -L 5000:localhost:{head.mlflow}" in tunnel
    assert "alice@n1" in tunnel

    secret = search.folder.token.read_text()
    assert search.folder.token.stat().st_mode & 0o777 == 0o600
    ways = {
        "dashboard": f"127.0.0.1:{head.dashboard}", "job": f"127.0.0.1:{head.dashboard}",
        "store": head.address, "client": f"10.77.0.1:{head.client}",
    }  # fmt: skip
    tries = {
        way: slurm.popen(sys.executable, _ATTACK, way, place, user="bob", node="n1", stdout=-1, stderr=-1)
        for way, place in ways.items()
    }
    said = {way: attack.communicate(timeout=120)[0] for way, attack in tries.items()}
    assert all(answer.startswith("refused") for answer in said.values()), said
    assert "401" in said["dashboard"]
    assert "401" in said["job"]
    for way, answer in said.items():
        assert not any(
            word in answer.lower() for word in ("timeout", "deadline", "unavailable", "refused by connection")
        ), (way, answer)
    beyond = slurm.on_node("n2", sys.executable, _ATTACK, "dashboard", f"10.77.0.1:{head.dashboard}", user="bob")
    assert "Connection refused" in beyond.stdout, "the dashboard listens on localhost alone"
    assert slurm.on_node("n1", "cat", search.folder.token, user="bob", check=False).returncode != 0
    for node in NODES:
        assert secret not in slurm.on_node(node, "ps", "-ewwo", "args").stdout

    # What Ray has is what SLURM granted: a core of four, a GPU of two on each node.
    look = f"import ray; ray.init('{head.address}', log_to_driver=False); print(ray.cluster_resources())"
    env = search.folder.environment()
    assert "'CPU': 3.0" in (seen := slurm.on_node("n1", sys.executable, "-c", look, user="alice", env=env).stdout)
    assert "'GPU': 3.0" in seen

    search.until_finished()
    assert site.type("logs", "a", user="alice").stdout.count("complete") >= 1
    assert json.loads(site.type("front", "a", "--json").stdout)["front"] == front_rows(
        search.state, search.directory.spec.objectives
    )
    assert_no_trace(search, slurm)
    for file in search.directory.path.rglob("*"):
        if file.is_file() and file != search.folder.token:
            assert secret not in file.read_text(errors="replace"), file


def assert_no_trace(search: Submitted, slurm: MiniSlurm) -> None:
    """Nothing of a search runs, or lies, on any node; what Ray said there is kept with the search."""
    for node in NODES:
        assert "recur_tune" not in slurm.on_node(node, "ps", "-ewwo", "args").stdout
        assert "raylet" not in slurm.on_node(node, "ps", "-ewwo", "args").stdout
        assert not [name for name in slurm.on_node(node, "ls", "/tmp").stdout.split() if name.startswith("rt")]
    for begun in search.notes("begun"):
        for node in begun["nodes"]:
            assert (search.folder.ray_logs(begun["job"], node) / "raylet.out").exists()


def test_two_searches_share_a_node_and_outlive_their_time_limits(site: Site, slurm: MiniSlurm) -> None:
    """One goes back to the queue, the other may not and submits its successor."""
    space = site.space(budget__tokens=150_000, budget__trials=2, budget__rungs=3)
    limits = {"directives": ["--nodelist=n1"], "time": "0:02:00", "warning": "60s"}
    first = site.submit("requeued", site.profile(**limits), space)
    second = site.submit("succeeded", site.profile(**limits, requeue=False), space)
    first.until(lambda: bool(first.nodes_at_work() and second.nodes_at_work()), "both at work on one node")
    assert first.head.node == second.head.node == "n1"
    assert site.type("status", "requeued").stdout.count("runs on n1") == 1
    for search in (first, second):
        search.until_finished()
        assert len(search.notes("begun")) > 1, "one allocation cannot have been enough"
        assert "SIGUSR1" in search.said
        assert_settled(search.directory)
    assert {note["job"] for note in first.notes("begun")} == {first.job}
    assert len({note["job"] for note in second.notes("begun")}) == len(second.notes("begun"))


def test_lost_nodes_take_only_their_trials_and_scancel_nothing_at_all(site: Site, slurm: MiniSlurm) -> None:
    space = site.space(budget__tokens=200_000, budget__trials=3, budget__rungs=4)
    search = site.submit("lossy", site.profile(nodes=3, cpus_per_node=2, directives=["--nodelist=n[1-3]"]), space)
    search.until(lambda: "n3" in search.nodes_at_work().values(), "a trial on n3")
    trial = next(number for number, node in search.nodes_at_work().items() if node == "n3")
    slurm.kill_node("n3")
    search.until(
        lambda: search.nodes_at_work().get(trial) in ("n1", "n2") or search.state.trials[trial].state == "complete",
        "its trial elsewhere",
    )
    slurm.cut_off("n2")
    search.until(lambda: bool(search.nodes_at_work()) and set(search.nodes_at_work().values()) == {"n1"}, "all on n1")
    site.slurm.run("scancel", str(search.job))
    search.until(lambda: not search.directory.is_running and not search.jobs_in_queue(), "scancel ended it")
    assert search.state.status != "finished"
    ended = {trial.number for trial in search.state.in_state("complete")}
    slurm.reconnect("n2")
    slurm.revive_node("n3")

    again = site.type("resume", "lossy", "--slurm", "--nodes", "1").stdout
    assert int(again) != search.job
    search.until_finished()
    assert_settled(search.directory)
    assert ended <= {trial.number for trial in search.state.in_state("complete")}
    slurm.ready(60)


def test_a_grown_allocation_helps_and_drains(site: Site, slurm: MiniSlurm) -> None:
    space = site.space(budget__tokens=150_000, budget__trials=3, budget__rungs=3)
    search = site.submit("growing", site.profile(directives=["--exclude=n3"]), space)
    search.until(lambda: bool(search.nodes_at_work()), "at work")
    with site.occupied("--nodelist=n1", "--cpus-per-task=3"):  # so that the guest gets n2
        guest = site.type("grow", "growing", "--nodes", "1", "--time", "0:05:00").stdout.strip()
        search.until(lambda: "n2" in search.nodes_at_work().values(), "a trial on the guest")
        slurm.run("scancel", "--batch", "--signal=USR1", guest)  # as SLURM does before the time is up
        search.until(lambda: bool(search.events("moved")), "a trial that leaves the guest")
        search.until_finished()
    assert_settled(search.directory)
    moved = search.events("moved")[0]
    reports = [event for event in search.events("report") if event["trial"] == moved["trial"]]
    before = max(event["tokens"] for event in reports if event["time"] <= moved["time"])
    after = [event for event in reports if event["time"] > moved["time"]]
    assert {event["worker"].partition(":")[0] for event in after} == {"n1"}
    assert after[0]["tokens"] >= before, "it went on where it was"


def test_an_allocation_held_already_trains_with_ddp_across_its_nodes(site: Site, slurm: MiniSlurm) -> None:
    space = site.space(budget__trials=1, budget__tokens=6_000, resources__workers=2)
    words = ["search", space, "--name", "held", "--slurm", "here"]
    env = {
        "RECUR_TUNE_RESULTS": str(site.results),
        "RECUR_TUNE_CACHE": str(site.shared / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    slurm.run("salloc", "--nodes=2", "--cpus-per-task=1", "recur-tune", *words, env=env, timeout=200)
    search = Submitted(site, "held", 0)
    assert search.state.status == "finished"
    assert [trial.state for trial in search.state.trials.values()] == ["complete"]
    assert_settled(search.directory)
    [begun] = search.notes("begun")
    assert len(begun["nodes"]) == 2, "with a core of each, two workers can only be on two nodes"


def test_a_preempted_search_comes_back_by_itself(site: Site, slurm: MiniSlurm) -> None:
    space = site.space(budget__tokens=80_000, budget__trials=2)
    search = site.submit("preempted", site.profile(partition="preempt", directives=["--nodelist=n1"]), space)
    search.until(lambda: bool(search.nodes_at_work()), "at work")
    slurm.run("sbatch", "--partition=urgent", "--nodelist=n1", "--exclusive", "--wrap=sleep 1")
    search.until_finished()
    assert_settled(search.directory)
    assert len(search.notes("begun")) == 2


def test_stop_takes_a_search_out_of_the_queue(site: Site, slurm: MiniSlurm) -> None:
    with site.occupied("--nodelist=n1", "--exclusive"):
        search = site.submit("waiting", site.profile(directives=["--nodelist=n1"]), site.space())
        assert "waits in the queue" in site.type("status", "waiting").stdout
        assert site.type("resume", "waiting", "--slurm", code=2).stderr.count("waits in the queue") == 1
        site.type("stop", "waiting")
        assert not search.jobs_in_queue()
        site.type("stop", "waiting", code=2)


def test_a_site_is_checked_in_a_job(site: Site, slurm: MiniSlurm) -> None:
    said = site.type("cluster", "check", "--slurm", site.profile(nodes=3, cpus_per_node=2)).stdout
    for node in NODES:
        assert f"ok      {node}" in said
    assert "FAILED" not in said
    private = site.profile(nodes=2, storage="/tmp")
    unshared = site.type("cluster", "check", "--slurm", private, "--results", "/tmp/private", code=2).stderr
    assert "do the nodes share that folder?" in unshared
    assert not list(site.results.glob(".check*"))
