"""What the log says of a trial that is started again."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.tune.experiment import Trial

from recur_tune.running.callback import _last_failure


def failed_task(message: str) -> RayTaskError:
    """As Ray brings it from a worker."""
    try:
        raise RuntimeError(message)
    except RuntimeError as error:
        return RayTaskError("train", traceback.format_exc(), error, proctitle="ray::train", pid=1, ip="127.0.0.1")


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    trial = Trial("any", stub=True)
    monkeypatch.setattr(Trial, "local_path", property(lambda trial: str(tmp_path)))
    return trial


def test_a_first_start_has_no_failure_before_it(trial: Trial) -> None:
    assert _last_failure(trial) == ""


def test_of_what_was_raised_the_first_line_is_told(trial: Trial) -> None:
    trial.handle_error(failed_task("out of threads\nand here is what to read about it"))
    assert _last_failure(trial) == "RuntimeError: out of threads"


def test_the_last_failure_counts(trial: Trial) -> None:
    trial.handle_error(failed_task("out of threads"))
    trial.handle_error(ActorDiedError())
    assert _last_failure(trial) == "The actor died unexpectedly before finishing this task."
