"""Paused trials as Ray would drive them, without a cluster and without training."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from optuna.trial import TrialState

from recur_tune.search.propose import candidates, known_costs
from recur_tune.search.record.directory import STOP, SearchDirectory
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.requests import end_by_hand
from recur_tune.search.record.state import TrialRecord
from recur_tune.search.record.warm_start import warm_start_from
from recur_tune.training import RESUME
from tests.search.run.driving import Driver, RayTrial, changed

SEARCH = {
    "sampler": {"name": "known-costs"},
    "budget": {"tokens": 100, "trials": 8, "rungs": 2},
    "space": {"base": "tiny", "recurrence": "none", "window": [16, 32, 64],
              "learning_rate": {"from": 1e-4, "to": 1e-2}},
}  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> SearchDirectory:
    return changed(tmp_path, **SEARCH)


def pause_one(driver: Driver, workers: int = 1) -> TrialRecord:
    """Bring trials to their end until the first of which the rung thinks little; its checkpoint is 1,000 bytes."""
    while trial := driver.ask():
        number, trial.config["workers"] = trial.config["number"], workers
        checkpoint = driver.log.directory.trial(number) / RESUME
        checkpoint.mkdir(parents=True)
        (checkpoint / "training_state.safetensors").write_bytes(bytes(1000))
        driver.report(trial, 50, 5.0 if number < 3 else 9.0)
        if (record := driver.log.state.record(number)).state != "running":
            return record
        driver.report(trial, 100, 4.8 if number < 3 else 8.8, state="complete")
    raise AssertionError("nobody was paused")


def finish(driver: Driver) -> list[RayTrial]:
    begun = []
    while trial := driver.ask():
        begun.append(trial)
        driver.report(trial, 100, 4.7, state="complete")
    return begun


def test_a_hopeless_trial_is_paused_and_pruned_at_the_searchs_end(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    paused = pause_one(driver)
    assert (paused.state, paused.cause) == ("paused", "frozen"), "the cause is so called in the log"
    assert "expected hypervolume gain was small" in paused.reason
    assert driver.states()[paused.number] == TrialState.RUNNING, "the study waits for it"
    assert (directory.trial(paused.number) / RESUME).is_dir()
    finish(driver)
    assert paused.state == "pruned" and "stayed small" in paused.reason
    assert driver.states()[paused.number] == TrialState.PRUNED
    assert not (directory.trial(paused.number) / RESUME).exists()


def test_a_paused_trial_is_paused_after_a_resume_and_can_be_resumed(
    directory: SearchDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = pause_one(Driver(directory))
    again = Driver(directory)
    assert again.log.state.record(paused.number).paused_at_rung and not again.searcher.unfinished
    monkeypatch.setattr(candidates, "SMALL_CHANCE", 0.0)  # it is wanted, though it will hardly end on the front
    FlagFile(directory.trial(paused.number) / STOP).set()
    resumed = [trial for trial in finish(again) if trial.config["number"] == paused.number]
    assert len(resumed) == 1 and again.log.state.record(paused.number).state == "complete"
    assert again.states()[paused.number] == TrialState.COMPLETE
    assert not FlagFile(directory.trial(paused.number) / STOP).is_set(), "or its workers would leave again"
    kinds = [event["kind"] for event, _ in directory.events() if event.get("trial") == paused.number]
    assert kinds == ["trial", "running", "report", "end", "thaw", "running", "report"]


def test_the_baseline_is_trained_to_its_end_whatever_is_thought_of_it(
    directory: SearchDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_costs.KnownCosts, "should_continue", lambda *known, **spent: False)
    driver = Driver(directory)
    states = []
    for _ in range(2):
        trial = driver.ask()
        assert trial is not None
        driver.report(trial, 50, 9.0)
        record = driver.log.state.record(trial.config["number"])
        states.append((record.role, record.state))
    assert states == [("baseline", "running"), ("", "paused")]


def test_workers_that_have_not_noticed_the_pause_are_not_listened_to(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    paused = pause_one(driver)
    late = RayTrial("late", {"number": paused.number, "workers": 2})
    driver.report(late, 60)
    driver.report(late, 100, 4.0, state="complete")
    assert paused.paused_at_rung and paused.tokens == 50 and len(paused.validations) == 1


def test_several_workers_are_asked_to_leave_and_not_taken_away(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    paused = pause_one(driver, workers=2)
    assert paused.paused_at_rung and FlagFile(directory.trial(paused.number) / STOP).is_set()
    assert paused.number in {driver.searcher.numbers[one] for one in driver.searcher.live}, "until they have left"


def test_a_paused_trial_can_be_ended_by_hand(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    paused = pause_one(driver)
    end_by_hand(driver.log, paused.number)
    finish(driver)
    assert driver.states()[paused.number] == TrialState.PRUNED
    assert "by hand" in paused.reason


def test_where_the_disk_is_short_the_least_wanted_is_let_go(
    directory: SearchDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    driver, room = Driver(directory), {"free": 10_001}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(room["free"]))
    first = pause_one(driver)
    assert first.state == "paused", "ten more of its size have room"
    room["free"] = 9_999
    second = pause_one(driver)
    given_up = [one for one in (first, second) if one.state == "pruned"]
    assert len(given_up) == 1 and "little room" in given_up[0].reason
    assert not (directory.trial(given_up[0].number) / RESUME).exists()
    assert driver.states()[given_up[0].number] == TrialState.PRUNED


def test_another_sampler_prunes_for_good(tmp_path: Path) -> None:
    driver = Driver(changed(tmp_path, **SEARCH | {"sampler": {"name": "random"}}))
    driver.finish_two()
    while trial := driver.ask():
        driver.report(trial, 50, 50.0)
    states = [one.state for one in driver.log.state.trials.values()]
    assert "pruned" in states and "paused" not in states


def test_a_new_search_hears_of_paused_trials_as_of_pruned_ones(directory: SearchDirectory) -> None:
    paused = pause_one(Driver(directory))
    told = {one.name: one.state for one in warm_start_from([directory], directory.spec).knowledge.told}
    assert told[paused.name] == "pruned"
