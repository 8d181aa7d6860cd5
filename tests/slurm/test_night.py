"""What a night on a cluster brings: time limits, lost nodes, scancel, preemption. No finished trial is lost."""

from __future__ import annotations

import pytest

from tests.searching.searches import assert_settled
from tests.slurm.mini_slurm import MiniSlurm
from tests.slurm.site import Site

pytestmark = pytest.mark.slurm


def test_two_searches_share_a_node_and_outlive_their_time_limits(site: Site, slurm: MiniSlurm) -> None:
    """One goes back to the queue; the other may not and submits its successor, which is cancelled, then resumed."""
    limits = {
        "directives": ["--nodelist=n1"],
        "time": "0:02:00",
        "warning": "45s",
    }  # a signal 45 to 75 s after the start
    longer, shorter = (site.space(budget__tokens=tokens, budget__rungs=3) for tokens in (150_000, 50_000))
    first = site.submit("requeued", site.profile(**limits), longer)
    second = site.submit("succeeded", site.profile(**limits, requeue=False), shorter)
    first.until(lambda: first.folder.head is not None and second.folder.head is not None, "two clusters on one node")
    assert first.head.node == second.head.node == "n1"
    second.until(lambda: bool(second.nodes_at_work()), "at work")
    # What SLURM does, sooner; on a slow machine it may have done so already, and the job is gone.
    slurm.run("scancel", "--batch", "--signal=USR1", str(second.job), check=False)
    second.until(lambda: len(second.folder.jobs("begun")) == 2, "its successor")
    successor = second.folder.jobs("begun")[-1]
    slurm.run("scancel", str(successor))
    second.until(lambda: not second.directory.is_running and not second.jobs_in_queue(), "scancel ended it")
    assert second.state.status != "finished"
    resumed = int(site.type("resume", "succeeded", "--slurm").stdout)
    for search in (first, second):
        search.until_finished()
        assert len(search.notes("begun")) > 1, "one allocation cannot have been enough"
        assert "SIGUSR1" in search.said
        assert_settled(search.directory)
    assert set(first.folder.jobs("begun")) == {first.job}
    assert second.folder.jobs("begun")[:3] == [second.job, successor, resumed]


def test_lost_nodes_and_preemption_lose_no_finished_trial(site: Site, slurm: MiniSlurm) -> None:
    space = site.space(budget__tokens=160_000, budget__trials=3, budget__rungs=4)
    search = site.submit("lossy", site.profile(nodes=3, cpus_per_node=2, partition="preempt"), space)
    search.until(lambda: "n3" in search.nodes_at_work().values(), "a trial on n3")
    trial = next(number for number, node in search.nodes_at_work().items() if node == "n3")
    slurm.kill_node("n3")
    elsewhere = ("n1", "n2")
    search.until(lambda: search.nodes_at_work().get(trial) in elsewhere, "that trial elsewhere")
    slurm.cut_off("n2")
    search.until(lambda: set(search.nodes_at_work().values()) == {"n1"}, "all trials on n1")
    slurm.reconnect("n2")
    slurm.revive_node("n3")
    slurm.run("sbatch", "--partition=urgent", "--nodelist=n1", "--exclusive", "--wrap=sleep 1")
    search.until_finished()
    assert [note["job"] for note in search.notes("begun")] == [search.job] * 2, "SLURM brought it back"
    assert "SLURM sent SIGTERM" in search.said
    assert_settled(search.directory)
    slurm.ready()
