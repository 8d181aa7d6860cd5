"""The sampler of our own, as Ray would drive it: no cluster, no training."""

from __future__ import annotations

import json
import math
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from recur_tune.common.parsing import parse
from recur_tune.search.propose.optuna_study import first_points
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import search_hypervolume
from recur_tune.search.record.progress import expected_gains
from recur_tune.search.record.requests import ask_for_trial
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.warm_start import warm_start_from
from recur_tune.search.run import outlooks
from recur_tune.search.run.outlooks import Outlooks
from tests.search.run.driving import FIELDS, Driver, changed

KNOWN_COSTS = {"sampler": {"name": "known-costs"}, "budget": {"tokens": 100, "trials": 9, "rungs": 2}}


def run(driver: Driver, trials: int = 100) -> list[dict[str, Any]]:
    found = []
    while len(found) < trials and (trial := driver.ask()):
        found.append(trial.config["trial"])
        quality = 5.0 + found[-1]["learning_rate"] + found[-1]["window"] / 64
        driver.report(trial, 100, quality, state="complete")
    return found


def test_it_reproduces_with_its_seed_and_trains_nothing_twice(tmp_path: Path) -> None:
    one, other = (
        run(Driver(SearchDirectory.create(tmp_path, name, parse(SearchSpec, FIELDS | KNOWN_COSTS))))
        for name in ("a", "b")
    )
    assert one == other and len(one) == 9
    assert len({json.dumps(trial, sort_keys=True) for trial in one}) == 9


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    directory = changed(tmp_path, **KNOWN_COSTS)
    before = run(Driver(directory), 6)
    after = run(Driver(directory))
    assert len(after) == 3 and not any(trial in before for trial in after)


def test_after_the_first_points_nothing_over_a_limit_is_proposed(tmp_path: Path) -> None:
    driver = Driver(changed(tmp_path, **KNOWN_COSTS, limits={"peak_memory": 40_000}))
    assert len(run(driver)) == 9
    over = [one.role for one in driver.log.state.trials.values() if one.state == "infeasible"]
    assert set(over) <= {"baseline", "paper"}


def test_open_fields_are_chosen_for_first_trials_that_run_alone(tmp_path: Path) -> None:
    driver = Driver(changed(tmp_path, **KNOWN_COSTS))
    assert driver.searcher.model is not None
    chosen = driver.searcher.model.completed(first_points(driver.searcher.spec))
    alone, beside = driver.ask(), driver.ask()
    assert alone is not None and beside is not None
    assert [one.role for one in driver.log.state.trials.values()] == ["baseline", "paper"]
    rates = [one.config["trial"]["learning_rate"] for one in (alone, beside)]
    assert rates[0] == chosen["baseline"]["learning_rate"] and rates[1] != chosen["paper"]["learning_rate"]


def test_a_small_space_is_exhausted(tmp_path: Path) -> None:
    space = {"base": "tiny", "recurrence": {"none": None, "pooled": {"l_ins": [1, 2]}}, "window": [16, 32]}
    driver = Driver(changed(tmp_path, **KNOWN_COSTS, space=space))
    assert len(run(driver)) == 6
    assert driver.log.state.exhausted


def test_a_limit_that_nothing_meets_ends_the_search(tmp_path: Path) -> None:
    driver = Driver(changed(tmp_path, **KNOWN_COSTS, limits={"peak_memory": 10}))
    assert run(driver) == []
    assert driver.log.state.notices == ["200 proposals in a row were known already or over a limit; there are no more."]


def test_trials_of_an_earlier_search_teach_it(tmp_path: Path) -> None:
    first = SearchDirectory.create(tmp_path, "first", parse(SearchSpec, FIELDS | KNOWN_COSTS))
    run(Driver(first))
    start = warm_start_from([first], parse(SearchSpec, FIELDS | KNOWN_COSTS))
    driver = Driver(SearchDirectory.create(tmp_path, "second", start.spec, start.knowledge.as_json()))
    told = {(one.fields["window"], one.curve[0][1]) for one in driver.searcher.earlier}
    known = {(one.params["window"], one.metrics["token_perplexity"]) for one in Driver(first).log.state.trials.values()}
    assert told == known
    assert len(run(driver)) == 9


@pytest.mark.slow
def test_a_plateau_ends_the_search_and_says_so(tmp_path: Path) -> None:
    """All qualities are the same, so that nothing is to be gained beyond the cheapest window."""
    budget = {"tokens": 100, "trials": 60, "rungs": 2, "plateau": 0.01}
    directory = changed(tmp_path, **KNOWN_COSTS | {"budget": budget})
    driver = Driver(directory)
    driver.log.record("reference", values={"flops_per_token": 70.0})
    while trial := driver.ask():
        driver.report(trial, 50, 5.0)
        driver.report(trial, 100, 5.0, state="complete")
    state = driver.log.state
    assert 6 < len(state.trials) < 40 and state.exhausted
    [notice] = state.notices
    assert "is expected to add" in notice and "budget.plateau is 0.01" in notice
    volume = search_hypervolume(state, FIELDS["objectives"])
    assert volume and all(gain < 0.01 * volume for gain in expected_gains(state)[-2:])
    again = Driver(directory)
    assert again.ask() is None, "it is as flat as it was"
    ask_for_trial(directory, {"recurrence": "none", "window": 16, "overlap_of_window": 0.21, "learning_rate": 0.001})
    by_hand = Driver(directory)
    added = by_hand.ask()
    assert added is not None and added.config["trial"]["learning_rate"] == 0.001, "it is trained nevertheless"
    by_hand.report(added, 100, 5.0, state="complete")
    assert by_hand.ask() is None


def test_outlooks_are_logged_where_something_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlooks, "_SECONDS_BETWEEN", 0.0)

    def logged(driver: Driver) -> list[dict[str, list[float]]]:
        """What each of a few rounds of Ray Tune's loop leaves in the log."""
        ahead, found = Outlooks(driver.searcher, driver.log), []
        for _ in range(6):
            ahead.catch_up()
            if ahead.waiting is not None:
                wait([ahead.waiting])
            found += [driver.log.state.outlook] if driver.log.state.outlook not in found else []
        return found[1:]

    driver = Driver(changed(tmp_path / "a", **KNOWN_COSTS))
    driver.log.record("reference", values={"token_perplexity": 8.0, "flops_per_token": 70.0})
    run(driver, 2)
    assert logged(driver) == [], "too few have ended"
    run(driver, 3)
    [before] = logged(driver)
    assert before["trials"] == [1, 2, 4, 8, 16, 32] and before["high"][-1] > 0
    run(driver)
    assert driver.ask() is None
    [after] = logged(driver)
    assert after["high"] == [0.0] * 6, "nothing is left"
    other = Driver(changed(tmp_path / "b", **KNOWN_COSTS | {"sampler": {"name": "tpe"}}))
    run(other, 4)
    assert logged(other) == [], "Optuna's samplers have no process"


def test_nan_at_the_first_rung_is_no_observation_and_ends_nothing(tmp_path: Path) -> None:
    driver = Driver(changed(tmp_path, **KNOWN_COSTS))
    for place in range(9):
        trial = driver.ask()
        assert trial is not None
        if place % 2:
            driver.report(trial, 50, math.nan)
            driver.report(trial, 60, state="failed", reason="no longer finite")
        else:
            driver.report(trial, 50, 6.0)
            driver.report(trial, 100, 5.0, state="complete")
    assert driver.ask() is None
    states = [one.state for one in driver.log.state.trials.values()]
    assert states.count("complete") == 5 and set(states) <= {"complete", "failed", "pruned"}
