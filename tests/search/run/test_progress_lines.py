"""What is said of a search that is asked to stop, and in which order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from recur_tune.search.run import progress_lines
from recur_tune.search.run.callback import DriverCallback
from recur_tune.search.run.progress_lines import PAUSING, ProgressLines
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
