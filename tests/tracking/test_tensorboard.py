"""What TensorBoard would read from the files that we write for it, against the log that they were made from."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
from tensorboardX.record_writer import masked_crc32c

from recur_tune.common.errors import UserError
from recur_tune.tracking.tensorboard import EVENT_FILE, write_event_files
from tests.cli.run import run
from tests.tracking.tracked import begin, complete, report, rich_search, search

Curves = dict[str, list[tuple[int, np.float32]]]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes from one event of a log to the next."""
    ticks = itertools.count(1_000_000_000.0)
    monkeypatch.setattr("recur_tune.search.record.directory.time", SimpleNamespace(time=lambda: next(ticks)))


def records(run_folder: Path) -> Iterator[Event]:
    """A file of events: each with its length before it, and sums of both by which damage is found."""
    [path] = run_folder.iterdir()
    content = path.read_bytes()
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        body = content[12 : 12 + length]
        assert struct.unpack("<I", content[8:12]) == (masked_crc32c(content[:8]),)
        assert struct.unpack("<I", content[12 + length : 16 + length]) == (masked_crc32c(body),)
        yield Event.FromString(body)
        content = content[16 + length :]


def curves(run_folder: Path) -> Curves:
    """Every metric by its steps; a start at a step voids what was said from there on, as TensorBoard has it."""
    found: Curves = {}
    for record in records(run_folder):
        if record.session_log.status == SessionLog.START:
            found = {tag: [(step, v) for step, v in points if step < record.step] for tag, points in found.items()}
        for value in record.summary.value:
            if value.HasField("simple_value"):
                found.setdefault(value.tag, []).append((record.step, np.float32(value.simple_value)))
    return found


def hyperparameters(run_folder: Path) -> dict[str, Any] | None:
    for record in records(run_folder):
        for value in record.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                assert value.tag == "_hparams_/session_start_info"
                told = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info.hparams
                return {name: getattr(one, one.WhichOneof("kind")) for name, one in told.items()}
    return None


def test_the_files_say_what_the_log_says(tmp_path: Path) -> None:
    directory = rich_search(tmp_path / "results")
    place = write_event_files(directory, tmp_path / "tb")
    state = directory.state()
    assert {folder.name for folder in place.iterdir()} == {"search", *(trial.name for trial in state.trials.values())}
    for trial in state.trials.values():
        seen = curves(place / trial.name)
        for metric in ("perplexity", "bits_per_byte", "loss"):
            said = [(one.tokens, np.float32(one.metrics[metric])) for one in trial.validations]
            assert seen.get(metric, []) == said
        assert {name: seen[name] for name in trial.costs} == {
            name: [(0, np.float32(cost))] for name, cost in trial.costs.items()
        }
        assert hyperparameters(place / trial.name) == trial.params | {"state": trial.state} | (
            {"role": trial.role} if trial.role else {}
        )
    assert "tokens_per_second" not in curves(place / "T1"), "no number in the log"
    assert curves(place / "search")["front_size"] == [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2)]


def test_every_record_has_its_event_s_time(tmp_path: Path) -> None:
    directory = rich_search(tmp_path / "results")
    place = write_event_files(directory, tmp_path / "tb")
    trial = directory.state().trials[2]
    first, *_, last = records(place / "T2")
    assert first.file_version == "brain.Event:2"
    assert (first.wall_time, last.wall_time) == (trial.started, trial.ended)


def test_what_a_resumed_trial_says_again_counts_once(tmp_path: Path) -> None:
    directory = search(tmp_path / "results")
    begin(directory, 0)
    for tokens, perplexity in [(250, 90.0), (500, 80.0), (750, 70.0)]:
        report(directory, 0, tokens, perplexity)
    directory.record("running", trial=0)  # from a checkpoint at 250 tokens
    report(directory, 0, 500, 79.0)
    report(directory, 0, 1000, 60.0, state="complete")
    place = write_event_files(directory, tmp_path / "tb")
    [trial] = directory.state().trials.values()
    assert [(one.tokens, one.metrics["perplexity"]) for one in trial.validations] == [
        (250, 90.0), (500, 79.0), (1000, 60.0),
    ]  # fmt: skip
    assert curves(place / "T0")["perplexity"] == [(250, 90.0), (500, 79.0), (1000, 60.0)]
    assert curves(place / "T0")["flops_per_token"] == [(0, 500.0)]


def test_costs_outlive_a_beginning_from_nothing(tmp_path: Path) -> None:
    directory = search(tmp_path / "results")
    begin(directory, 0)
    report(directory, 0, 500, 80.0)
    directory.record("running", trial=0)
    report(directory, 0, 0)
    report(directory, 0, 250, 90.0)
    place = write_event_files(directory, tmp_path / "tb")
    assert curves(place / "T0")["flops_per_token"] == [(0, 500.0)]
    assert curves(place / "T0")["perplexity"] == [(250, 90.0)]


def test_no_number_is_rounded_or_in_another_unit(tmp_path: Path) -> None:
    directory = search(tmp_path / "results")
    complete(directory, 0, perplexity=12.345678, flops=351_524.5)
    place = write_event_files(directory, tmp_path / "tb")
    assert curves(place / "T0")["perplexity"] == [(1000, np.float32(12.345678))]
    assert curves(place / "T0")["flops_per_token"] == [(0, 351_524.5)]
    assert curves(place / "T0")["measured_peak_memory"] == [(500, 1 << 20), (1000, 1 << 20)]


def test_repetitions_are_runs_with_their_seeds(tmp_path: Path) -> None:
    directory = search(tmp_path / "results")
    complete(directory, 0, perplexity=50.0)
    complete(directory, 1, perplexity=51.0, role="seed 7 of T0", repeats=0, seed=7, split="test")
    place = write_event_files(directory, tmp_path / "tb")
    assert hyperparameters(place / "T1") == {"window": 41, "seed": 7, "role": "seed 7 of T0", "state": "complete"}
    assert curves(place / "search")["front_size"] == [(1, 1)], "it is no candidate of its own"


def test_a_running_search_s_files_grow(tmp_path: Path) -> None:
    """A TensorBoard that has read a file goes on reading from there, and never looks at another in its place."""
    directory = search(tmp_path / "results")
    begin(directory, 0)
    report(directory, 0, 500, 80.0)
    place = write_event_files(directory, tmp_path / "tb")
    file = place / "T0" / EVENT_FILE
    before, inode = file.read_bytes(), file.stat().st_ino
    assert hyperparameters(place / "T0") is None, "it has not ended"
    report(directory, 0, 1000, 60.0, state="complete")
    write_event_files(directory, tmp_path / "tb")
    assert file.read_bytes().startswith(before) and file.stat().st_ino == inode
    assert curves(place / "T0")["perplexity"] == [(500, 80.0), (1000, 60.0)]
    assert hyperparameters(place / "T0") == {"window": 40, "state": "complete"}


def test_another_search_of_the_same_name_takes_the_place_of_the_first(tmp_path: Path) -> None:
    place = write_event_files(rich_search(tmp_path / "old"), tmp_path / "tb")
    (place / "notes.txt").write_text("mine")
    (place / "T2" / "events.out.tfevents.1.mine").write_text("mine")
    directory = search(tmp_path / "new")
    complete(directory, 1, perplexity=20.0)
    assert write_event_files(directory, tmp_path / "tb") == place
    assert curves(place / "T1")["perplexity"] == [(1000, 20.0)]
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert files == {f"search/{EVENT_FILE}", f"T1/{EVENT_FILE}", "notes.txt", "T2/events.out.tfevents.1.mine"}


def test_the_command_writes_them_of_a_search_that_runs(tmp_path: Path) -> None:
    directory = rich_search(tmp_path / "results")
    with directory.hold_lease():
        told = run("track", "first", "--tensorboard", tmp_path / "tb", "--results", tmp_path / "results")
    assert (told.code, told.out) == (0, f"{tmp_path}/tb/first\n")
    assert told.err == f"next:  tensorboard --logdir {tmp_path}/tb\n"
    assert curves(tmp_path / "tb" / "first" / "T6")["perplexity"] == [(1000, 40.0)]
    assert not (tmp_path / "results" / "mlflow.db").exists()


def test_where_they_cannot_go_is_told(tmp_path: Path) -> None:
    directory = rich_search(tmp_path / "results")
    with pytest.raises(UserError, match=r"^tensorboard: .*results is where the search itself lies; give another"):
        write_event_files(directory, tmp_path / "results")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"could not be written .*Not a directory"):
        write_event_files(directory, tmp_path / "file")
    with pytest.raises(UserError, match=r"^name: no trial of empty has begun yet"):
        write_event_files(search(tmp_path / "results", "empty"), tmp_path / "tb")
    assert not (tmp_path / "tb").exists()
