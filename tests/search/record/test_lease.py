"""The lease of a search between processes and machines: who gets it, who keeps it, and when it may be taken over."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from recur_tune.common.errors import UserError
from recur_tune.search.record import lease
from recur_tune.search.record.directory import EVENTS, LEASE, FolderGone, SearchDirectory
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.process_identity import ProcessIdentity
from tests.search.record import search
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("real_fsync")


@contextmanager
def child(work: Callable[[], object]) -> Iterator[int]:
    """A process of its own, which ends with the block; its exit code says whether its work went well."""
    number = os.fork()
    if number == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    try:
        yield number
    finally:
        if number in _children():
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)


def _children() -> list[int]:
    return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def ended_well(number: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 0


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that run out in two seconds."""
    for name, seconds in {"HEARTBEAT": 0.05, "TERM": 2.0, "WATCH": 0.5}.items():
        monkeypatch.setattr(lease, name, seconds)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process is on another machine."""
    there = replace(ProcessIdentity.current(), host="far", machine="another", boot="another")
    monkeypatch.setattr(ProcessIdentity, "current", classmethod(lambda cls: there))


def hold_until_lost(directory: SearchDirectory) -> None:
    with directory.hold_lease():
        directory.record("notice", text="mine")
        while True:
            time.sleep(0.02)
            try:
                directory.record("notice", text="still mine")
            except UserError as error:
                assert "another process has taken over this search" in str(error)
                return


def test_of_many_who_try_one_at_a_time_gets_it(tmp_path: Path) -> None:
    folder, total = tmp_path / "lease", tmp_path / "total"
    total.write_text("0")

    def count() -> None:
        done = 0
        while done < 25:
            try:
                with lease.held(folder):
                    total.write_text(str(int(total.read_text()) + 1))
                    done += 1
            except lease.AlreadyHeld:
                time.sleep(0.001)

    with child(count) as one, child(count) as two, child(count) as three:
        assert all(map(ended_well, (one, two, three)))
    assert total.read_text() == "75"
    assert len(list(folder.iterdir())) <= 4, "those that are over are cleared away"


@pytest.mark.parametrize(
    ("changes", "alive"),
    [
        ({}, True),
        ({"born": "1"}, False),
        ({"born": "1", "user": 12345}, None),
        ({"process": 2**22 + 1}, False),
        ({"processes": "pid:[1]"}, None),
        ({"boot": "before", "machine": "m", "host": "h"}, None),
        ({"boot": "before", "machine": "this"}, False),
        ({"boot": "before", "machine": ""}, None),
        ({"boot": "x", "job": "7", "restarts": 0}, False),
        ({"boot": "x", "job": "7", "restarts": 1}, None),
        ({"boot": "x", "job": "8", "restarts": 0}, None),
    ],
)  # fmt: skip
def test_what_is_known_of_a_holder(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], alive: bool | None
) -> None:
    here = replace(ProcessIdentity.current(), machine="this", job="7", restarts=1)
    monkeypatch.setattr(ProcessIdentity, "current", classmethod(lambda cls: here))
    there = replace(here, **({"machine": "other"} if "boot" in changes and "machine" not in changes else {}), **changes)
    assert there.is_alive() is alive


def test_another_machines_lease_is_respected_until_it_has_run_out(
    tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = SearchDirectory.create(tmp_path, "first", search())
    with child(lambda: hold_until_lost(directory)) as holder:
        until((directory.path / EVENTS).read_text, "it is held")
        elsewhere(monkeypatch)
        assert directory.is_running
        with pytest.raises(UserError, match=rf"running already on .*, process {holder}, last heard of [0-2] s ago; "):
            directory.hold_lease().__enter__()
        os.kill(holder, signal.SIGSTOP)  # a machine that sleeps, or cannot reach its storage
        until(lambda: not directory.is_running, "it runs out")
        with directory.hold_lease():
            directory.record("notice", text="yours")
            os.kill(holder, signal.SIGCONT)
            assert ended_well(holder), "who comes back too late is told so, and writes no more"
            assert directory.is_running
            lines = (directory.path / EVENTS).read_text().splitlines()
            assert [json.loads(line)["text"] for line in lines][-1] == "yours"


def test_a_lease_that_is_renewed_is_kept_however_wrong_the_clocks_are(
    tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = SearchDirectory.create(tmp_path, "first", search())
    with child(lambda: hold_until_lost(directory)):
        until((directory.path / EVENTS).read_text, "it is held")
        elsewhere(monkeypatch)
        monkeypatch.setattr(lease, "TERM", 0.0)  # by its clock every lease has run out
        assert not directory.is_running
        with pytest.raises(UserError, match="running already"):
            directory.hold_lease().__enter__()


def test_a_holder_that_died_over_its_first_word_holds_nothing_up_for_long(tmp_path: Path, hurried: None) -> None:
    directory = SearchDirectory.create(tmp_path, "first", search())
    with directory.hold_lease():
        pass
    (directory.path / "lease" / "2").touch()
    assert directory.is_running
    until(lambda: not directory.is_running, "it runs out")
    with directory.hold_lease():
        assert directory.is_running


def test_a_full_disk_leaves_no_lease_behind(tmp_path: Path) -> None:
    directory = SearchDirectory.create(tmp_path, "first", search())

    def try_it() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # files can be made, and nothing written into them
        with pytest.raises(UserError, match="could not be written"):
            directory.hold_lease().__enter__()

    with child(try_it) as process:
        assert ended_well(process)
    assert not directory.is_running
    with directory.hold_lease():
        assert directory.is_running


def test_who_slept_through_many_leases_does_not_wake_up_as_a_second_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look and the attempt others come and go, and clear away the very number that is tried."""
    folder, look = tmp_path / "lease", lease._read

    def others_first(where: Path, number: int) -> object:
        monkeypatch.setattr(lease, "_read", look)
        seen = look(where, number)
        for _ in range(4):
            with lease.held(folder):
                pass
        holding.enter_context(lease.held(folder))
        return seen

    with ExitStack() as holding:
        with lease.held(folder):
            pass
        monkeypatch.setattr(lease, "_read", others_first)
        with pytest.raises(lease.AlreadyHeld):
            lease.held(folder).__enter__()
        assert lease.is_held(folder)


def test_who_was_taken_for_gone_writes_no_line_more(tmp_path: Path) -> None:
    """SLURM starts a job again that its cut-off node still runs: the second driver has read the log by then."""
    directory = SearchDirectory.create(tmp_path, "s", search())
    with directory.hold_lease():
        directory.record("notice", text="mine")
        [number] = (int(file.name) for file in (directory.path / LEASE).iterdir() if file.name.isdigit())
        (directory.path / LEASE / str(number + 1)).touch()  # as the server lets one make it
        with pytest.raises(UserError, match="another process has taken over this search"):
            directory.record("notice", text="no longer mine")
    assert [event["text"] for event, _ in directory.events()] == ["mine"]


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_a_folder_that_goes_away_is_not_made_again_and_ends_in_one_sentence(tmp_path: Path, how: str) -> None:
    directory, there = SearchDirectory.create(tmp_path, "s", search()), tmp_path / "other" / "t"
    there.parent.mkdir()
    with pytest.raises(FolderGone) as gone, directory.hold_lease():
        directory.record("notice", text="mine")
        if how == "deleted":
            shutil.rmtree(directory.path)
        else:
            directory.path.rename(there)
        if how == "replaced":
            SearchDirectory.create(tmp_path, "s", search())
            (directory.path / LEASE).mkdir()  # as a driver of its own has made it
        directory.record("notice", text="nowhere")
    assert gone.value.exit_code == 75
    if how == "deleted":
        assert str(gone.value).startswith(f"name: {directory.path} was deleted")
    else:
        assert f"{directory.path} was moved to {there} while its search ran" in str(gone.value)
        assert f"`recur-tune resume t --results {there.parent}` continues it there" in str(gone.value)
        assert SearchDirectory(there).state().notices == ["mine"]
        with SearchDirectory(there).hold_lease():  # its lease was ended
            pass
    assert directory.path.exists() == (how == "replaced")
    assert how != "replaced" or directory.state().notices == []


def test_a_write_that_fails_since_the_folder_has_gone_is_told_as_that(tmp_path: Path) -> None:
    directory = SearchDirectory.create(tmp_path, "s", search())
    with pytest.raises(FolderGone, match="was deleted"), directory.hold_lease():
        shutil.rmtree(directory.path)
        directory.request_stop()
    assert not directory.path.exists()


def test_who_knows_a_holder_to_be_dead_frees_its_search_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = SearchDirectory.create(tmp_path, "s", search())
    directory.release_dead_lease()  # nobody ever held it
    with child(lambda: hold_until_lost(directory)):
        until((directory.path / EVENTS).read_text, "it is held")
        directory.release_dead_lease()
        assert directory.is_running, "the living keep theirs"
    with monkeypatch.context() as away:
        elsewhere(away)
        assert directory.is_running, "as far as another machine knows"
    directory.release_dead_lease()
    elsewhere(monkeypatch)
    assert not directory.is_running


def test_a_search_that_is_renamed_under_its_lease_is_released(tmp_path: Path) -> None:
    directory = SearchDirectory.create(tmp_path, "first", search())
    renamed = directory.rename("second")
    assert not renamed.is_running
    with renamed.hold_lease():
        assert renamed.is_running


def test_a_flag_is_seen_by_who_laid_it_out(tmp_path: Path) -> None:
    asked = tmp_path / "stop"
    assert not FlagFile(asked).is_set()
    FlagFile(asked).create()
    assert not FlagFile(asked).is_set()
    FlagFile(asked).set()
    FlagFile(asked).create()
    assert FlagFile(asked).is_set(), "what was asked stays asked"
    FlagFile(asked).clear()
    assert not FlagFile(asked).is_set()
