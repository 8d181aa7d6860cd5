"""Names of Ray Tune that are not promised: a failure here says which of them a new version has changed."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import optuna
import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.tune.constants import TUNE_ENV_VARS
from ray.tune.experiment import Trial
from ray.tune.search.optuna import OptunaSearch

from recur_tune.cluster import ray_tune_adaptations as adaptations


def test_ray_tune_knows_our_environment_variables() -> None:
    ours = {name for name in adaptations.TUNE_SETTINGS if name.startswith("TUNE_")}
    assert ours - TUNE_ENV_VARS == set(), "Ray Tune reads other names now"


def test_what_lives_in_the_driver_pickles_to_nothing() -> None:
    part = adaptations.DriverOnly()
    part.file = object  # type: ignore[attr-defined]
    assert vars(pickle.loads(pickle.dumps(part))) == {}


def test_optuna_search_keeps_its_study_in_ot_study() -> None:
    space = {"x": optuna.distributions.FloatDistribution(0, 1)}
    search = OptunaSearch(space=space, metric=["a", "b"], mode=["min", "min"])
    assert isinstance(adaptations.optuna_study(search), optuna.Study), "OptunaSearch has its study elsewhere"


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """One of which nothing runs."""
    trial = Trial("any", stub=True, max_failures=1)
    monkeypatch.setattr(Trial, "local_path", property(lambda trial: str(tmp_path)))
    return trial


def test_a_trial_is_tried_again_while_it_may_fail(trial: Trial) -> None:
    for _ in range(2):
        trial.handle_error(ValueError("no"))
    assert not trial.should_recover(), "Trial.max_failures no longer says how often a trial may fail"
    adaptations.allow_another_failure(trial)
    assert trial.should_recover(), "raising Trial.max_failures no longer lets a trial go on"
    adaptations.allow_no_failure(trial)
    assert not trial.should_recover(), "Trial.max_failures = 0 no longer ends a trial"


def failed_task(message: str) -> RayTaskError:
    """As Ray brings it from a worker."""
    try:
        raise RuntimeError(message)
    except RuntimeError as error:
        return RayTaskError("train", traceback.format_exc(), error, proctitle="ray::train", pid=1, ip="127.0.0.1")


_ELSEWHERE = "Ray writes Trial.error_file in another way"


def test_a_first_start_has_no_failure_before_it(trial: Trial) -> None:
    assert adaptations.last_failure(trial) == ""


def test_of_what_was_raised_the_first_line_is_told(trial: Trial) -> None:
    trial.handle_error(failed_task("out of threads\nand here is what to read about it"))
    assert adaptations.last_failure(trial) == "RuntimeError: out of threads", _ELSEWHERE


def test_the_last_failure_counts(trial: Trial) -> None:
    trial.handle_error(failed_task("out of threads"))
    trial.handle_error(ActorDiedError())
    died = "The actor died unexpectedly before finishing this task."
    assert adaptations.last_failure(trial) == died, _ELSEWHERE
