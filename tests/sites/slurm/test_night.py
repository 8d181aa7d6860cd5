"""What a night on a cluster brings: time limits, lost nodes, scancel, preemption. No finished trial is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.run.searches import assert_settled
from tests.sites.slurm.mini_slurm import MiniSlurm
from tests.sites.slurm.site import Site
from tests.waiting import until

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def warned_job(storage: Site, slurm: MiniSlurm) -> Path:
    """What a job says that has our script's directives and a time limit; SLURM takes a minute or two over it, in which
    the first test runs. It is bob's, whose jobs no test cancels."""
    # SLURM may warn up to a minute early: not before the shell has come to set its trap.
    profile = storage.profile(time="0:02:00", warning="30s", directives=["--nodelist=n2"])
    script = storage.type("search", storage.space(), "--name", "warned", "--slurm", profile, "--dry-run").out
    directives = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    file = slurm.shared / "warned.sh"
    file.write_text(
        "\n".join(["#!/bin/bash", *directives, "trap 'echo warned; exit' USR1; echo up; sleep 600 & wait", ""])
    )
    job = slurm.run("sbatch", "--parsable", file, user="bob").stdout.strip()
    return slurm.shared / f"job-{job}.log"


def test_two_searches_share_a_node_and_outlive_their_allocations(
    site: Site, slurm: MiniSlurm, warned_job: Path
) -> None:
    """One goes back to the queue; the other may not and submits its successor, which is cancelled, then resumed."""
    on_n1, space = {"directives": ["--nodelist=n1"]}, site.space(budget__trials=2)
    first = site.submit("requeued", site.profile(**on_n1), space)
    second = site.submit("succeeded", site.profile(**on_n1, requeue=False), space)
    first.until(lambda: first.folder.head is not None and second.folder.head is not None, "two clusters on one node")
    assert first.head.node == second.head.node == "n1"
    for search in (first, second):
        with search.held("n1"):
            slurm.run("scancel", "--batch", "--signal=USR1", str(search.job))  # as SLURM does before the time is up
            search.until(lambda search=search: search.directory.stop_requested, "asked to stop")  # type: ignore[misc]
    second.until(lambda: len(second.folder.jobs("begun")) == 2, "its successor")
    successor = second.folder.jobs("begun")[-1]
    slurm.run("scancel", str(successor))
    second.until(lambda: not second.directory.is_running and not second.jobs_in_queue(), "scancel ended it")
    assert second.state.status != "finished"
    resumed = int(site.type("resume", "succeeded", "--slurm").out)
    for search in (first, second):
        search.until_finished()
        assert "SIGUSR1" in search.said
        assert_settled(search.directory)
    assert [note["job"] for note in first.notes("begun")] == [first.job] * 2
    assert second.folder.jobs("begun") == [second.job, successor, resumed]


def test_slurm_itself_warns_a_job_before_its_time_is_up(warned_job: Path, slurm: MiniSlurm) -> None:
    """What SLURM does with our script's directives.

    Searches are sent the signal by the tests, as soon as they are where it is to meet them: nobody knows how far a slow
    machine is after a minute.
    """
    until(lambda: not slurm.run("squeue", "--noheader", "--user=bob").stdout, "its end", pause=0.5)
    # SLURM adds a line of its own where the shell is gone before it has signalled all of the job's processes.
    said = [line for line in warned_job.read_text().splitlines() if not line.startswith("slurmstepd")]
    assert said == ["up", "warned"]


def test_lost_nodes_and_preemption_lose_no_finished_trial(site: Site, slurm: MiniSlurm) -> None:
    space = site.space(budget__trials=3, budget__rungs=3)
    search = site.submit("lossy", site.profile(nodes=3, cpus_per_node=2, partition="preempt"), space)
    search.until(lambda: "n3" in search.nodes_at_work().values(), "a trial on n3")
    trial = next(number for number, node in search.nodes_at_work().items() if node == "n3")
    with search.held("n1", "n2"):  # so that there is something left to lose, and then to preempt
        slurm.kill_node("n3")
        search.until(lambda: search.nodes_at_work().get(trial) in ("n1", "n2"), "that trial elsewhere")
        slurm.cut_off("n2")
        search.until(lambda: set(search.nodes_at_work().values()) == {"n1"}, "all trials on n1")
        slurm.reconnect("n2")
        slurm.revive_node("n3")
        slurm.run("sbatch", "--partition=urgent", "--nodelist=n1", "--exclusive", "--wrap=sleep 1")
        search.until(lambda: "SLURM sent SIGTERM" in search.said, "its preemption")
    search.until_finished()
    assert [note["job"] for note in search.notes("begun")] == [search.job] * 2, "SLURM brought it back"
    assert_settled(search.directory)
    slurm.ready()


def test_a_job_that_loses_its_first_node_is_not_kept_for_nothing(site: Site, slurm: MiniSlurm) -> None:
    """SLURM keeps what is left of the job, as it was asked to; but its script is gone, and whoever ran the search."""
    search = site.submit("headless", site.profile(nodes=2), site.space(budget__trials=2))
    search.until(lambda: bool(search.nodes_at_work()), "at work")
    first = search.head.node
    with search.held(*search.nodes_at_work().values()):
        slurm.kill_node(first)
    search.until(lambda: len(search.notes("begun")) == 2, "another allocation")
    slurm.revive_node(first)
    search.until_finished()
    assert first not in search.notes("begun")[-1]["nodes"]
    assert search.folder.jobs("begun") == [search.job], "the job itself came back"
    assert_settled(search.directory)
    slurm.ready()


def test_workers_on_three_nodes_lose_one_and_two_of_them_go_on(site: Site, slurm: MiniSlurm) -> None:
    """Where a lost node leaves no room for a trial's workers, a stop is still heard, and a resume may have fewer."""
    space = site.space(budget__trials=1, budget__rungs=3, resources__workers=3, space__batch=6)
    search = site.submit("spread", site.profile(nodes=3), space)
    search.until(lambda: bool(search.events("report")), "at work")
    with search.held(*search.nodes_at_work().values()):
        slurm.kill_node("n3")
    site.type("stop", "spread")
    search.until(lambda: not search.jobs_in_queue(), "its end")
    [trial] = search.state.trials.values()
    assert (trial.state, trial.workers) == ("paused", 3) and trial.tokens > 0
    slurm.revive_node("n3")
    before = len(search.events("report"))
    site.type("resume", "spread", "--slurm", site.profile(nodes=2), "--set", "resources.workers=2")
    search.until_finished()
    [trial] = search.state.trials.values()
    assert (trial.state, trial.workers) == ("complete", 2)
    assert search.events("report")[before]["tokens"] > 0
    assert_settled(search.directory)
    slurm.ready()
