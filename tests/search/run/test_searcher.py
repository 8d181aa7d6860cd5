"""What Optuna is told, by driving the searcher as Ray Tune would: no cluster, no training."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.optuna_study import first_points, make_sampler
from recur_tune.search.record.directory import STOP, SearchDirectory
from recur_tune.search.record.flag_file import FlagFile
from recur_tune.search.record.knowledge import EarlierSearch, Knowledge
from recur_tune.search.record.requests import RIVAL, ask_for_trial
from recur_tune.search.record.spec import SearchSpec
from tests.search.run.driving import FIELDS, Driver, changed, price


@pytest.fixture
def directory(tmp_path: Path) -> SearchDirectory:
    return changed(tmp_path)


def dear_after(trials: int) -> Callable[[TrialConfig], dict[str, float]]:
    """The usual price of so many trials, then one beyond all others."""
    priced = itertools.count()
    return lambda config: price(config) | ({"flops_per_token": 1e9} if next(priced) >= trials else {})


def test_full_budget_is_complete_with_its_values(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    trial = driver.ask()
    assert trial is not None
    assert driver.report(trial, 50, 9.0) == TrialScheduler.CONTINUE
    assert driver.report(trial, 100, 8.0, state="complete") == TrialScheduler.STOP
    [told] = driver.told()
    assert told.state == TrialState.COMPLETE
    assert told.values == [8.0, driver.log.state.trials[0].costs["flops_per_token"]]


def test_pruned_trials_have_no_values(directory: SearchDirectory) -> None:
    driver = Driver(directory, dear_after(2))
    driver.finish_two()
    bad = driver.ask()
    assert bad
    assert driver.report(bad, 50, 60.0) == TrialScheduler.STOP
    told = driver.told()[bad.config["number"]]
    assert (told.state, told.values) == (TrialState.PRUNED, None)
    assert driver.log.state.trials[told.number].state == "pruned"


def test_several_workers_are_asked_to_leave(directory: SearchDirectory) -> None:
    driver = Driver(directory, dear_after(3))
    driver.finish_two()
    good, bad = driver.ask(), driver.ask()
    assert good and bad
    for trial in (good, bad):
        trial.config["workers"] = 2
    driver.report(good, 50, 5.0)
    assert driver.report(bad, 50, 60.0) == TrialScheduler.CONTINUE
    assert FlagFile(directory.trial(bad.config["number"]) / STOP).is_set()
    assert driver.report(bad, 60, 5.5) == TrialScheduler.CONTINUE  # on its way already, and too late
    assert driver.log.state.trials[bad.config["number"]].tokens == 50
    assert driver.report(good, 60, state="paused") == TrialScheduler.CONTINUE
    assert not FlagFile(directory.trial(good.config["number"]) / STOP).is_set()


def test_a_diverged_trial_failed(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    trial = driver.ask()
    assert trial is not None
    driver.report(trial, 50, 9.0)
    assert driver.report(trial, 60, state="failed", reason="no longer finite") == TrialScheduler.STOP
    assert driver.states() == [TrialState.FAIL]


def test_an_actor_that_died_for_good_failed(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    trial = driver.ask()
    assert trial is not None
    driver.report(trial, 50, 9.0)
    driver.searcher.on_trial_complete(trial.trial_id, error=True)
    assert driver.states() == [TrialState.FAIL]
    assert driver.log.state.trials[0].state == "failed"


@pytest.mark.parametrize("left", ["waiting", "paused"])
def test_a_trial_whose_actor_died_before_it_began_is_handed_out_again(directory: SearchDirectory, left: str) -> None:
    """Ray gives up on a trial when the actor that it was to take over from another does not live to see it."""
    driver = Driver(directory)
    trial = driver.ask(starts=left == "paused")
    assert trial is not None
    if left == "paused":
        driver.log.record("end", trial=0, state="paused", reason="the search was asked to stop")
    assert driver.log.state.trials[0].state == left
    driver.searcher.on_trial_complete(trial.trial_id, error=True)
    assert driver.states() == [TrialState.RUNNING], "the study waits for it"
    again = driver.ask()
    assert again is not None and again.config["number"] == 0
    assert driver.report(again, 100, 9.0, state="complete") == TrialScheduler.STOP
    assert driver.states() == [TrialState.COMPLETE]


def test_a_trial_that_no_actor_lives_to_begin_fails_in_the_end(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    for _ in range(2):
        trial = driver.ask(starts=False)
        assert trial is not None and trial.config["number"] == 0
        driver.searcher.on_trial_complete(trial.trial_id, error=True)
    assert driver.states() == [TrialState.FAIL]


def test_out_of_memory_is_infeasible_and_its_actor_is_replaced(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    trial = driver.ask()
    assert trial is not None
    decision = driver.report(trial, 0, state="infeasible", reason="out of memory", replace_actor=True)
    assert decision == TrialScheduler.CONTINUE  # the actor raises next, and Ray replaces it
    assert trial.max_failures == 0  # and does not try the same again
    driver.searcher.on_trial_complete(trial.trial_id, error=True)
    [told] = driver.told()
    assert told.state == TrialState.PRUNED
    assert driver.log.state.trials[0].state == "infeasible"
    assert max(told.constraints.values()) > 0


def test_over_a_limit_takes_no_worker(tmp_path: Path) -> None:
    driver = Driver(changed(tmp_path, limits={"peak_memory": 40_000}))  # windows of 64 are over it
    while driver.ask():
        pass
    trials = driver.told()
    infeasible = [trial for trial in trials if trial.params["window"] == 64]
    assert infeasible
    assert all(trial.state == TrialState.PRUNED and trial.constraints["peak_memory"] > 0 for trial in infeasible)
    feasible = [trial for trial in trials if trial.params["window"] != 64]
    assert len(feasible) == 8  # the budget counts what was trained
    assert all(trial.constraints["peak_memory"] <= 0 for trial in feasible)
    reasons = {driver.log.state.trials[trial.number].reason for trial in infeasible}
    assert reasons == {"peak_memory 6.4e+04 is over 4e+04"}


def test_an_exhausted_space_ends_the_search(tmp_path: Path) -> None:
    space = {"base": "tiny", "recurrence": ["none"], "window": [16, 32]}
    driver = Driver(changed(tmp_path, space=space, sampler={"name": "random"}))
    windows = []
    while trial := driver.ask():
        windows.append(trial.config["trial"]["window"])
        driver.report(trial, 100, 5.0, state="complete")
    assert sorted(windows) == [16, 32]  # each once
    assert driver.log.state.notices


def test_what_cannot_be_trained_at_all_is_infeasible(tmp_path: Path) -> None:
    def refuse_large_windows(config: TrialConfig) -> dict[str, float]:
        if config.window == 64:
            raise UserError("memory_budget: 1 byte is less than a step needs.")
        return price(config)

    driver = Driver(changed(tmp_path, limits={"peak_memory": 1e9}), refuse_large_windows)
    while driver.ask():
        pass
    refused = [trial for trial in driver.told() if trial.params["window"] == 64]
    assert refused  # the first points are among them
    assert all(trial.state == TrialState.PRUNED and trial.constraints["trainable"] > 0 for trial in refused)
    assert driver.log.state.trials[0].reason == "memory_budget: 1 byte is less than a step needs."
    assert driver.log.state.trained == 8


def test_a_baseline_over_a_limit_leaves_the_reference_to_others(tmp_path: Path) -> None:
    driver = Driver(changed(tmp_path, limits={"peak_memory": 40_000}))  # the baseline's window of 64 is over it
    trial = driver.ask()
    assert trial is not None
    assert driver.log.state.trials[0].state == "infeasible"
    driver.report(trial, 50, 20.0)
    assert driver.log.state.reference["token_perplexity"] == pytest.approx(21.0)


def test_no_feasible_configuration_ends_the_search(tmp_path: Path) -> None:
    driver = Driver(changed(tmp_path, limits={"peak_memory": 10}))
    assert driver.ask() is None
    assert driver.log.state.trained == 0


def test_a_request_to_stop_ends_the_asking(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    assert driver.ask() is not None
    directory.request_stop()
    assert driver.ask() is None


def test_the_baseline_and_the_paper_come_first(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    first, second = driver.ask(), driver.ask()
    assert first and second
    assert [driver.log.state.trials[number].role for number in (0, 1)] == ["baseline", "paper"]
    assert first.config["trial"]["recurrence"] == "none"
    paper = second.config["trial"]
    assert (paper["recurrence"], paper["l_ins"], paper["width"], paper["window"], paper["overlap"]) == (
        "pooled", 2, 200, 64, 0,
    )  # fmt: skip


def test_given_trials_come_next(tmp_path: Path) -> None:
    driver = Driver(changed(tmp_path, first=[{"recurrence": "pooled", "width": 33}, {"window": 32}]))
    trials = [driver.ask() for _ in range(5)]
    roles = [record.role for record in driver.log.state.trials.values()]
    assert roles == ["baseline", "paper", "first 1", "first 2", ""]
    given = [trial.config["trial"] for trial in trials[2:4] if trial]
    assert (given[0]["recurrence"], given[0]["width"], given[1]["window"]) == ("pooled", 33, 32)


def test_a_space_without_plain_models_has_no_baseline(tmp_path: Path) -> None:
    space = {**FIELDS["space"], "recurrence": "pooled"}
    assert list(first_points(parse(SearchSpec, FIELDS | {"space": space}))) == ["paper"]


def test_forms_of_a_mechanism_that_are_equal_in_a_space_are_tried_once(tmp_path: Path) -> None:
    space = {**FIELDS["space"], "recurrence": {"none": None, "cache": {"cache_rows": [8, 16]}}}
    assert list(first_points(parse(SearchSpec, FIELDS | {"space": space}))) == ["baseline", "transformer-xl"]
    space["recurrence"]["cache"]["cache_join"] = ["softmax", "gate"]
    points = first_points(parse(SearchSpec, FIELDS | {"space": space}))
    assert list(points) == ["baseline", "transformer-xl", "memorizing"]


def test_what_earlier_searches_recommend_comes_before_the_mechanisms_own_points() -> None:
    taught = Knowledge(searches=(EarlierSearch("a", ()),))
    spec = parse(SearchSpec, FIELDS | {"first": [{"window": 16}]})
    assert list(first_points(spec)) == ["baseline", "paper", "first 1"]
    assert list(first_points(spec, taught)) == ["baseline", "first 1"]
    without = spec.model_copy(update={"space": {**FIELDS["space"], "recurrence": "pooled"}})
    assert list(first_points(parse(SearchSpec, without.model_dump()), taught)) == ["paper", "first 1"]


def test_a_study_that_calls_a_recurrence_by_its_former_name_goes_on(tmp_path: Path) -> None:
    space = {"base": "tiny", "recurrence": ["none", "memory"], "window": 16}
    directory = changed(tmp_path, space=space)
    driver = Driver(directory)
    for _ in range(2):
        trial = driver.ask()
        assert trial is not None
        driver.report(trial, 100, 8.0, state="complete")
    log = directory.path / "events.jsonl"
    now = re.sub(r', "crc": "\w{8}"', "", log.read_text())  # earlier versions wrote no checksums
    log.write_text(now.replace('"pooled"', '"memory"'))
    again = Driver(directory)
    assert again.ask() is None, "both of its trials are known"
    assert [one.params["recurrence"] for one in again.told()[:2]] == ["none", "memory"]
    assert [one.params["recurrence"] for one in again.log.state.trials.values()] == ["none", "pooled"]


def test_the_reference_is_fixed_by_the_baselines_first_validation(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    baseline, paper = driver.ask(), driver.ask()
    assert baseline and paper
    driver.report(paper, 50, 30.0)
    assert "token_perplexity" not in driver.log.state.reference
    driver.report(baseline, 50, 20.0)
    driver.report(baseline, 100, 10.0, state="complete")
    assert driver.log.state.reference["token_perplexity"] == pytest.approx(21.0)


@pytest.mark.parametrize("name", ["tpe", "nsga2", "nsga3", "gp", "random"])
def test_every_sampler_proposes_trials(tmp_path: Path, name: str) -> None:
    driver = Driver(changed(tmp_path, sampler={"name": name}, budget={"tokens": 100, "trials": 14, "rungs": 2}))
    count = 0
    while trial := driver.ask():
        count += 1
        driver.report(trial, 100, 5.0 + trial.config["trial"]["learning_rate"], state="complete")
    assert count == 14
    assert set(driver.states()) == {TrialState.COMPLETE}


def test_tpe_is_grouped_and_has_a_constant_liar() -> None:
    spec = parse(SearchSpec, FIELDS)

    def proposed(sampler: optuna.samplers.BaseSampler) -> dict[str, Any]:
        """After 20 trials at random, with ten more on their way."""
        study = optuna.create_study(directions=["minimize"] * 2, sampler=optuna.samplers.RandomSampler(seed=1))
        for number in range(20):
            trial = study.ask()
            fields = spec.parsed_space.draw(trial)
            study.tell(trial, [fields["learning_rate"] * 1000 + number % 3, float(fields["window"])])
        for _ in range(10):
            spec.parsed_space.draw(study.ask())
        study.sampler = sampler
        trial = study.ask()
        spec.parsed_space.draw(trial)
        return trial.params

    def tpe(**settings: bool) -> dict[str, Any]:
        return proposed(optuna.samplers.TPESampler(seed=spec.sampler.seed, **settings))

    ours = proposed(make_sampler(spec, already=0))
    assert ours == tpe(multivariate=True, group=True, constant_liar=True)
    assert ours != tpe(), "as Optuna's own default does not"


def test_one_trial_at_a_time_reproduces_with_its_seed(tmp_path: Path) -> None:
    def rates(name: str) -> list[float]:
        driver = Driver(SearchDirectory.create(tmp_path, name, parse(SearchSpec, FIELDS)))
        found = []
        while trial := driver.ask():
            found.append(trial.config["trial"]["learning_rate"])
            driver.report(trial, 100, 1.0 + found[-1], state="complete")
        return found

    assert rates("a") == rates("b")


@pytest.mark.parametrize(("may_stop", "decision"), [(False, TrialScheduler.CONTINUE), (True, TrialScheduler.STOP)])
def test_an_added_trial_starts_next_and_is_trained_to_its_end_unless_it_may_stop(
    tmp_path: Path, may_stop: bool, decision: str
) -> None:
    first = [{"window": 16}, {"window": 32}, {"window": 64}]  # they wait since the search began
    directory = changed(tmp_path, first=first, budget={"tokens": 100, "trials": 9, "rungs": 2})
    driver = Driver(directory)
    driver.finish_two()
    point = {"learning_rate": 0.005, "recurrence": "none", "window": 64, "overlap_of_window": 0.0}
    ask_for_trial(directory, point, may_stop)
    mine = driver.ask()
    assert mine and driver.log.state.trials[mine.config["number"]].role.startswith("added")
    assert driver.report(mine, 50, 500.0) == decision, "far worse than the others"
    after = driver.ask()
    assert after and after.config["trial"]["window"] == 16, "then the others, in their order"


def test_what_waits_for_a_worker_lets_an_added_trial_pass(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    before = driver.ask(starts=False)
    driver.searcher.room = lambda: 1
    ask_for_trial(directory, {"learning_rate": 0.005, "recurrence": "none", "window": 64, "overlap_of_window": 0.0})
    mine = driver.ask(starts=False)
    assert before and mine
    for trial in (before, mine):
        trial.status = Trial.PENDING
    controller = SimpleNamespace(get_trials=lambda: [before, mine])
    assert driver.scheduler.choose_trial_to_run(controller) is mine


def test_an_added_trial_takes_no_other_beyond_the_budget(tmp_path: Path) -> None:
    first = [{"window": 16}, {"window": 32}, {"window": 64}]
    directory = changed(tmp_path, first=first, budget={"tokens": 100, "trials": 2, "rungs": 2})
    driver = Driver(directory)
    while trial := driver.ask():
        driver.report(trial, 100, 5.0, state="complete")
    ask_for_trial(directory, {"learning_rate": 0.005, "recurrence": "none", "window": 64, "overlap_of_window": 0.0})
    again = Driver(directory)
    mine = again.ask()
    assert mine and again.log.state.trials[mine.config["number"]].role == "added"
    again.report(mine, 100, 4.0, state="complete")
    assert not again.ask(), "those that the search would have begun with wait for a larger budget"
    assert again.log.state.trained == 3


def test_a_confirmation_trains_a_plain_rival_to_its_end_and_proposes_nothing_else(tmp_path: Path) -> None:
    directory = changed(tmp_path, first=[{"window": 16}], budget={"tokens": 100, "trials": 2, "rungs": 2})
    driver = Driver(directory)
    while trial := driver.ask():
        driver.report(trial, 100, 5.0, state="complete")
    again = Driver(directory, proposes=False)
    plain = {"learning_rate": 0.005, "recurrence": "none", "window": 64, "overlap_of_window": 0.0}
    again.searcher.add(plain, RIVAL)
    rival = again.ask()
    assert rival and again.log.state.trials[rival.config["number"]].role == "plain rival"
    assert again.report(rival, 50, 900.0) == TrialScheduler.CONTINUE
    again.report(rival, 100, 900.0, state="complete")
    assert not again.ask()


def test_a_confirmation_leaves_a_paused_search_paused(tmp_path: Path) -> None:
    directory = changed(tmp_path)
    driver = Driver(directory)
    done, unfinished = driver.ask(), driver.ask()
    assert done and unfinished
    driver.report(done, 100, 5.0, state="complete")
    driver.report(unfinished, 60, state="paused")
    confirming = Driver(directory, proposes=False)
    confirming.searcher.repeat(confirming.log.state.trials[0], 1, "test")
    repeat = confirming.ask()
    assert repeat and repeat.config["number"] in confirming.log.state.repeats
    confirming.report(repeat, 100, 5.1, state="complete")
    assert not confirming.ask()
    resumed = Driver(directory).ask()
    assert resumed and resumed.config["number"] == unfinished.config["number"]
