"""What is said of a search that is asked to stop, and in which order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from recur_tune.search.record.requests import RIVAL
from recur_tune.search.run import progress_lines
from recur_tune.search.run.callback import DriverCallback
from recur_tune.search.run.progress_lines import ENDING, PAUSING, ProgressLines
from tests.search.run.driving import Driver, changed

_NOTHING: Any = SimpleNamespace(check=lambda: None, export=lambda state: None)  # a watchdog and an exporter


def start(callback: DriverCallback, job: dict[str, Any]) -> None:
    """Tell the callback, as Ray Tune does, that a worker has a trial."""
    callback.on_trial_start(1, [], cast(Any, SimpleNamespace(config=job | {"gpus": 0}, error_file=None)))


def test_after_a_stop_its_line_comes_first_and_no_trial_seems_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_lines, "_SECONDS_BETWEEN_LOOKS", 60)  # only the main thread tells
    directory, said = changed(tmp_path), list[str]()
    with directory.hold_lease():
        driver = Driver(directory)
        before, after = driver.ask(starts=False), driver.ask(starts=False)
        assert before and after
        with ProgressLines(directory, said.append) as lines:
            callback = DriverCallback(directory.spec, driver.log, lambda: lines.is_pausing, _NOTHING, _NOTHING)
            start(callback, before.config)
            lines.pausing()  # the signal's handler
            start(callback, after.config)  # Ray had it on its way
            assert directory.stop_requested, "the worker sees it before it loads anything"
            callback.on_step_begin(2, [])
            for trial in (before, after):
                driver.report(trial, 0, state="paused", reason="the search was asked to stop")
            lines.stage("writing the front …")
    assert [line.strip().split(":")[0].split(" (")[0] for line in said] == [
        "pausing", "T0 starts", "T0 paused", "writing the front …",
    ]  # fmt: skip
    assert said[0] == PAUSING


def test_a_stop_while_the_front_is_written_pauses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "_SECONDS_BETWEEN_LOOKS", 60)
    said = list[str]()
    with ProgressLines(changed(tmp_path), said.append) as lines:
        lines.searching()
        lines.ending()
        lines.pausing()
        assert not lines.is_pausing, "from Python it is no interruption"
    assert said == ["searching …", "writing the front …", ENDING]


def test_a_confirmation_tells_no_progress_of_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "_SECONDS_BETWEEN_LOOKS", 60)
    directory, said = changed(tmp_path), list[str]()
    directory.record("search", status="started")
    told = {"params": {"window": 16}, "costs": {"flops_per_token": 1.0, "peak_memory": 1.0}}
    with ProgressLines(directory, said.append) as lines:
        directory.record("search", status="started", confirming=True)
        directory.record("trial", trial=0, role=RIVAL, **told)
        directory.record("end", trial=0, state="complete")
        lines.searching(confirming=True)
        directory.record("search", status="paused")
    assert [line.rpartition("; ")[2] for line in said] == [
        "confirming the front: 1 of 1 trainings ended", "confirming the front …",
    ]  # fmt: skip
    assert lines.headline().startswith("1 of"), "the search goes on"
