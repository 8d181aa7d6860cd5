"""Paused trials on a real Ray cluster: resumed later, they have the numbers of trials that never paused."""

from __future__ import annotations

import math
import shutil
import threading
from pathlib import Path

import pytest

from recur_tune.api.outputs import OUTPUTS
from recur_tune.cluster.connection import Cluster
from recur_tune.search.propose import candidates, known_costs
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.knowledge import knowledge_of
from recur_tune.search.record.warm_start import warm_start_from
from recur_tune.search.run.driver import run_search
from recur_tune.training import RESUME
from tests.search.run.searches import ALIKE, ONE_AT_A_TIME, assert_settled, events_of, small_spec
from tests.search.run.test_driver import reports_of, trained_here
from tests.waiting import until

pytestmark = pytest.mark.ray


@pytest.fixture(autouse=True)
def _bold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pause every trial that another matches on costs, and resume all of them in the end."""
    monkeypatch.setattr(known_costs, "_MIN_GAIN_RATIO", math.inf)
    monkeypatch.setattr(candidates, "SMALL_CHANCE", 0.0)


def paused_trials(directory: SearchDirectory) -> list[int]:
    return [one.number for one in directory.state().trials.values() if one.paused_at_rung]


def earlier_search(world: Path, results: Path) -> SearchDirectory:
    """A search of another budget, from which the other one expects."""
    made = SearchDirectory.create(results, "earlier", small_spec(world, budget__tokens=8000))
    for number, rate in enumerate((1e-3, 1e-2)):
        params = {"recurrence": "none", "window": 16, "overlap": 0, "learning_rate": rate}
        made.record("trial", trial=number, params=params, costs={"flops_per_token": 1e4, "peak_memory": 1e6})
        made.record("report", trial=number, tokens=8000, validation={"token_perplexity": 9.0}, state="complete")
    return made


def test_a_resumed_trial_has_the_numbers_of_one_that_never_paused(
    cluster: Cluster, world: Path, tmp_path: Path
) -> None:
    # More trials than are over before the stop is heard.
    spec = small_spec(world, **ALIKE, budget__trials=12, resources__cpus=ONE_AT_A_TIME)
    learned = warm_start_from([earlier_search(world, tmp_path)], spec)
    directory = SearchDirectory.create(tmp_path, "resumed", learned.spec, learned.knowledge.as_json())

    def stop_once_one_is_paused() -> None:
        until(lambda: paused_trials(directory), "a trial that is paused at a rung", pause=0.02)
        directory.request_stop()

    assert [len(one.curves) for one in knowledge_of(directory).searches] == [2]
    thread = threading.Thread(target=stop_once_one_is_paused, daemon=True)
    thread.start()
    state = run_search(directory, OUTPUTS)
    thread.join()
    assert state.status == "paused"
    paused = paused_trials(directory)
    assert paused and all((directory.trial(number) / RESUME).is_dir() for number in paused)

    shutil.rmtree(tmp_path / "earlier")
    enough = spec.model_copy(update={"budget": spec.budget.model_copy(update={"trials": state.trained + 1})})
    state = run_search(directory, OUTPUTS, change=enough)
    assert state.status == "finished" and {one.state for one in state.trials.values()} == {"complete"}
    resumed = [event["trial"] for event in events_of(directory, "thaw")]
    assert set(paused) <= set(resumed)
    assert_settled(directory)
    assert reports_of(directory, paused[0]) == trained_here(directory, paused[0], tmp_path)
    assert not list(directory.path.glob(f"trials/*/{RESUME}")), "nobody will need them"
