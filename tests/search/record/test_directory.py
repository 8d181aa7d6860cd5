"""Searches on disk: made, found, leased, resumed, and what a killed process leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from recur_tune.common.errors import UserError
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import (
    EVENTS,
    FORMAT,
    IDENTITY,
    SPEC,
    STOP,
    STUDY,
    SearchDirectory,
    results_folder,
    searches_in,
)
from recur_tune.search.record.spec import check_units
from tests.search.record import search
from tests.users import NOBODY, as_user

pytestmark = pytest.mark.usefixtures("real_fsync")

HOLDER = """
import sys
from pathlib import Path
from recur_tune.search.record.directory import SearchDirectory
with SearchDirectory(Path(sys.argv[1])).hold_lease():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def made(tmp_path: Path) -> SearchDirectory:
    return SearchDirectory.create(tmp_path, "first", search())


@pytest.fixture
def holder(made: SearchDirectory) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs the search, until its standard input ends."""
    command = [sys.executable, "-c", HOLDER, str(made.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(UserError) as refusal:
        call(*arguments)
    return str(refusal.value)


def test_a_new_search_is_found_again_as_it_was_made(tmp_path: Path) -> None:
    spec = search(
        limits={"peak_memory": "40GiB"}, space={"recurrence": {"none": None, "pooled": {"l_ins": [1, "all"]}}}
    )
    made = SearchDirectory.create(tmp_path / "deep" / "results", "a.b_c-1", spec)
    found = SearchDirectory.open(tmp_path / "deep" / "results", "a.b_c-1")
    assert found == made and found.name == "a.b_c-1"
    assert found.spec == spec
    assert found.identity["format"] == FORMAT and len(found.identity["id"]) == 32
    assert list(found.events()) == [] and found.state().status == "new"
    assert found.trial(7) == found.path / "trials" / "7" and found.trial(7).parent.is_dir()
    assert yaml.safe_load((found.path / SPEC).read_text())["budget"]["rungs"] == 3, "defaults are written out"
    assert [path.name for path in found.path.parent.iterdir()] == ["a.b_c-1"], "nothing else is left"


def test_a_taken_name_is_refused_and_its_search_untouched(made: SearchDirectory) -> None:
    before = (made.path / IDENTITY).read_text()
    assert refused(SearchDirectory.create, made.path.parent, "first", search()) == (
        f"name: 'first' is taken in {made.path.parent}; go on with it by `recur-tune resume first`, or choose another."
    )
    assert (made.path / IDENTITY).read_text() == before


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "a b", "-x", ".x", "a\n", "é", "x" * 101, "a\0"]
)
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    sentence = f"name: {name!r} is not a name; use letters, digits, '.', '_' and '-', at most 100 of them."
    assert refused(SearchDirectory.create, tmp_path / "results", name, search()) == sentence
    assert refused(SearchDirectory.open, tmp_path / "results", name) == sentence
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_answered_by_the_known_ones(tmp_path: Path) -> None:
    assert refused(SearchDirectory.open, tmp_path, "x") == (
        f"name: there is no search 'x' in {tmp_path}; there are none yet; `recur-tune search` makes one."
    )
    for name in ("zebra", "ant"):
        SearchDirectory.create(tmp_path, name, search())
    (tmp_path / "no-search").mkdir()
    assert refused(SearchDirectory.open, tmp_path, "x") == (
        f"name: there is no search 'x' in {tmp_path}; there are: zebra, ant."
    )


def test_what_a_killed_process_left_half_made_is_no_search(made: SearchDirectory) -> None:
    partial = made.path.parent / ".partial-x"
    partial.mkdir()
    (partial / IDENTITY).write_text((made.path / IDENTITY).read_text())
    assert searches_in(made.path.parent) == [made]


def test_a_newer_format_and_a_damaged_identity_are_refused(made: SearchDirectory) -> None:
    (made.path / IDENTITY).write_text(json.dumps({**made.identity, "format": FORMAT + 1}))
    assert refused(SearchDirectory.open, made.path.parent, "first") == (
        f"{made.path} was written by a newer recur-tune (format {FORMAT + 1}; "
        f"this one reads up to {FORMAT}); upgrade it."
    )
    (made.path / IDENTITY).write_text("{")
    assert "could not be read" in refused(SearchDirectory.open, made.path.parent, "first")


def test_events_go_on_exactly_where_the_last_reader_stopped(made: SearchDirectory) -> None:
    written = [made.record("notice", text=text) for text in ("one", "zwei – drei", "four")]
    read = list(made.events())
    assert [event for event, _ in read] == written
    for index, (_, offset) in enumerate(read):
        assert [event for event, _ in made.events(offset)] == written[index + 1 :]
    assert read[-1][1] == (made.path / EVENTS).stat().st_size
    assert made.state().notices == ["one", "zwei – drei", "four"]


def test_an_offset_counts_bytes(made: SearchDirectory) -> None:
    lines = [f'{{"time": 1, "kind": "notice", "text": "{text}"}}\n' for text in ("東京", "b")]
    (made.path / EVENTS).write_text("".join(lines), encoding="utf-8")
    first, second = made.events()
    assert [event for event, _ in made.events(first[1])] == [second[0]]


def test_a_line_that_is_being_written_waits(made: SearchDirectory) -> None:
    first = made.record("notice", text="one")
    with (made.path / EVENTS).open("a") as file:
        file.write('{"time": 5, "kind": "no')
    [(event, offset)] = made.events()
    assert event == first
    with (made.path / EVENTS).open("a") as file:
        file.write('tice", "text": "two"}\n')
    assert [event for event, _ in made.events(offset)] == [{"time": 5, "kind": "notice", "text": "two"}]


def test_a_log_and_the_state_it_leads_to_are_never_apart(made: SearchDirectory) -> None:
    made.record("notice", text="one")
    log = made.open_log()
    log.record("notice", text="two")
    assert log.state.notices == ["one", "two"]
    assert log.state == made.state()


@pytest.mark.parametrize("log", [EVENTS, STUDY])
@pytest.mark.parametrize(("left", "kept"), [("a\nb\nhal", "a\nb\n"), ("hal", ""), ("a\n", "a\n"), ("", "")])
def test_half_a_line_is_dropped_when_the_lease_is_taken(made: SearchDirectory, log: str, left: str, kept: str) -> None:
    (made.path / log).write_text(left)
    with made.hold_lease():
        assert (made.path / log).read_text() == kept


def test_one_process_at_a_time_runs_a_search(made: SearchDirectory, holder: subprocess.Popen[str]) -> None:
    (made.path / EVENTS).write_text("being writ")
    assert made.is_running
    assert refused(made.hold_lease().__enter__) == (
        "name: first is running already; `recur-tune status first` shows it, `recur-tune stop first` ends it."
    )
    assert (made.path / EVENTS).read_text() == "being writ", "a process without the lease touches nothing"
    holder.communicate()
    assert not made.is_running
    with made.hold_lease():
        assert made.is_running


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_user_who_can_read_a_search_can_ask_whether_it_runs() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        Path(folder).chmod(0o755)
        directory = SearchDirectory.create(Path(folder), "first", search())
        with directory.hold_lease():
            assert as_user(NOBODY, lambda: directory.is_running) == "True"
            assert "could not be written" in as_user(NOBODY, directory.request_stop)
        assert as_user(NOBODY, lambda: directory.is_running) == "False"


def test_a_killed_process_leaves_no_lease(made: SearchDirectory, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert not made.is_running
    with made.hold_lease():
        pass


def test_a_lease_ends_with_its_block_however_that_ends(made: SearchDirectory) -> None:
    with pytest.raises(RuntimeError), made.hold_lease():
        raise RuntimeError
    assert not made.is_running


def test_a_request_to_stop_holds_until_the_search_is_run_again(made: SearchDirectory) -> None:
    assert not made.stop_requested
    made.request_stop()
    made.request_stop()
    assert made.stop_requested
    with made.hold_lease():
        assert not made.stop_requested
        made.request_stop()
        assert made.stop_requested
    assert made.stop_requested
    made.withdraw_stop()
    made.withdraw_stop()
    assert not made.stop_requested


def test_no_flag_file_is_left_where_nobody_asked_to_stop(made: SearchDirectory) -> None:
    with made.hold_lease():
        assert (made.path / STOP).exists(), "workers open it"
    assert not (made.path / STOP).exists()
    with made.hold_lease():
        made.request_stop()
    with made.hold_lease():
        assert not made.stop_requested
    assert not (made.path / STOP).exists()


def test_a_search_may_get_more_trials_but_not_other_tokens(made: SearchDirectory) -> None:
    larger = search(budget={"trials": 30, "wall_clock": "2h"})
    made.change_spec(larger)
    assert made.spec == larger
    assert refused(made.change_spec, search(budget={"trials": 30, "tokens": "5M"})) == (
        "budget.tokens: first was begun with 20000000 and cannot go on with 5000000; "
        "start a new search under another name."
    )
    assert made.spec == larger


def test_results_lie_where_they_are_said_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECUR_TUNE_RESULTS", raising=False)
    assert results_folder() == tmp_path / "results"
    monkeypatch.setenv("RECUR_TUNE_RESULTS", "elsewhere")
    assert results_folder() == tmp_path / "elsewhere"
    assert results_folder(Path("chosen")) == tmp_path / "chosen"


def test_the_same_space_written_otherwise_is_no_change(tmp_path: Path) -> None:
    branches = {200: {"batch": 6}, 300: {"batch": 4}}
    made = SearchDirectory.create(tmp_path, "first", search(space={"window": branches, "learning_rate": [1e-4, 5e-4]}))
    assert made.spec.space["window"] == branches, "numbers stay numbers on disk"
    as_text = {"window": {"200": {"batch": "6"}, "300": {"batch": 4}}, "learning_rate": ["1e-4", "5e-4"]}
    made.change_spec(search(space=as_text))
    assert refused(made.change_spec, search(space=as_text | {"window": [200]})).startswith("space.window: ")


def test_a_preset_with_another_tokenizer_is_another_base(made: SearchDirectory) -> None:
    usual, other = TrialConfig(base="tiny"), TrialConfig(base="tiny", tokenizer="someone/bpe")
    assert made.own_base(usual) == made.path / "base" / "tiny"
    assert made.own_base(other).parent == made.path / "base" and made.own_base(other) != made.own_base(usual)
    made.own_base(other).mkdir(parents=True)
    assert made.with_own_base(other).base == str(made.own_base(other))
    assert made.with_own_base(usual) == usual, "there is none of its own yet"


def test_a_spec_is_stored_with_units_and_read_again_also_from_a_file_without_them(tmp_path: Path) -> None:
    spec = search(
        space={"window": [200, 300], "memory_budget": "3MiB"},
        limits={"peak_memory": "64MiB", "inference_memory": 12_345, "flops_per_token": 1e6},
        reference={"peak_memory": 10.5},
        budget={"wall_clock": 5400.25},
    )
    directory = SearchDirectory.create(tmp_path, "a", spec)
    stored = yaml.safe_load((directory.path / SPEC).read_text())
    assert stored["limits"] == {"peak_memory": "64MiB", "inference_memory": "12345B", "flops_per_token": 1e6}
    assert stored["budget"]["wall_clock"] == "5400.25s" and stored["space"]["memory_budget"] == "3MiB"
    assert directory.spec == spec
    check_units(stored | {"reference": {}})  # it can be edited, and given to a new search
    stored["limits"], stored["budget"]["wall_clock"] = {"peak_memory": 64.0 * 2**20, **dict(spec.limits)}, 5400.25
    (directory.path / SPEC).write_text(yaml.safe_dump(stored))  # as earlier versions wrote it
    assert directory.spec == spec
