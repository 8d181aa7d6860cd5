"""What the jobs of a search leave for each other, without a SLURM: how often it came back, whether it is over."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from recur_tune.common.parsing import parse
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.sites.slurm.folder import Head, SlurmFolder
from recur_tune.sites.slurm.profile import Profile
from recur_tune.sites.slurm.steps import EndedEarly, NodeMissing, Steps
from tests.search.run.searches import small_spec


@pytest.fixture
def folder(tmp_path: Path) -> SlurmFolder:
    made = SlurmFolder(SearchDirectory.create(tmp_path, "books", small_spec(tmp_path)))
    made.create(parse(Profile, {"join": 1}))
    return made


def test_allocations_count_from_when_somebody_last_asked(folder: SlurmFolder) -> None:
    assert folder.allocations_used == 0
    folder.note_submitted(1, nodes=2)
    for job in (1, 1):
        folder.note(job, "begun")
    folder.note(2, "search", by="job")  # a successor, which nobody asked for
    folder.note(2, "begun")
    assert folder.allocations_used == 3
    folder.note_submitted(3, nodes=2)
    assert folder.allocations_used == 0


def test_a_search_is_over_until_it_is_asked_for_again(folder: SlurmFolder) -> None:
    assert folder.is_over
    folder.note_submitted(1, nodes=1)
    folder.note(1, "begun")
    folder.note(2, "grow")
    assert not folder.is_over
    folder.note(1, "over")
    folder.note(3, "grow")
    assert folder.is_over
    folder.note_submitted(4, nodes=1)
    assert not folder.is_over


def test_every_search_has_a_token_of_its_own_that_only_its_owner_reads(folder: SlurmFolder) -> None:
    first = folder.token.read_text()
    assert len(first) == 64
    assert folder.token.stat().st_mode & 0o777 == 0o600
    folder.create(folder.profile)
    assert folder.token.read_text() != first
    assert first not in str(folder.environment())


def test_rays_logs_are_kept_but_not_where_a_search_has_been_moved_away(folder: SlurmFolder, tmp_path: Path) -> None:
    logs = tmp_path / "session" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("said")
    folder.keep_ray_logs(7, "n1", logs)
    assert (folder.ray_logs(7, "n1") / "raylet.out").read_text() == "said"
    folder.search.path.rename(tmp_path / "elsewhere")
    folder.keep_ray_logs(7, "n1", logs)
    assert not folder.search.path.exists()


def test_the_cluster_is_where_it_was_published_until_it_is_gone(folder: SlurmFolder) -> None:
    assert folder.head is None
    head = Head(7, "n1", "10.0.0.1:6379", client=10001, dashboard=8265)
    folder.publish(head)
    assert folder.head == head
    folder.withdraw()
    assert folder.head is None


class Silent(Steps):
    """Nodes that come up and never join."""

    def start(self, node: str, place: str) -> None:
        log = self.folder.ray_logs(self.job, node) / "node.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("the last word")
        self.running[node] = subprocess.Popen(["cat"], stdin=subprocess.PIPE)


@pytest.fixture
def silent(folder: SlurmFolder) -> Iterator[Silent]:
    with Silent(folder, 7, lambda: folder.search.stop_requested) as steps:
        yield steps
    assert not steps.any_left, "they see that their input was closed"


def test_a_node_that_does_not_join_in_time_is_named_with_its_last_words(silent: Silent) -> None:
    silent.start("n1", "head")
    with pytest.raises(NodeMissing, match=r"node n1 did not join within 1 s \(join\)(.|\n)*the last word"):
        silent.wait_for_head()


def test_a_job_that_has_to_end_waits_for_no_node(silent: Silent) -> None:
    silent.start("n1", "head")
    silent.folder.search.request_stop()
    with pytest.raises(EndedEarly):
        silent.wait_for_head()
