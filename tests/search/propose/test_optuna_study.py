"""Optuna's study of a search: what a driver that follows another finds in it, and who reads it without us."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from ray.tune.schedulers import TrialScheduler

from recur_tune.search.propose.optuna_study import NoLock, reopen, study_storage
from recur_tune.search.record.directory import STUDY, SearchDirectory
from recur_tune.search.run.agreement import Agreement
from tests.search.run.driving import FIELDS, Driver, changed, price


@pytest.fixture
def directory(tmp_path: Path) -> SearchDirectory:
    return changed(tmp_path)


class TestRestart:
    """A driver that is gone, and another one on the same directory."""

    def test_unfinished_trials_go_on_and_finished_ones_stay(self, directory: SearchDirectory) -> None:
        first = Driver(directory)
        done, half = first.ask(), first.ask()
        assert done and half
        first.report(half, 50, 7.0)
        first.report(done, 100, 5.0, state="complete")
        again = Driver(directory)
        trial = again.ask()
        assert trial is not None and trial.config == half.config
        again.report(trial, 100, 6.0, state="complete")
        assert again.states()[:2] == [TrialState.COMPLETE] * 2
        assert [t.number for t in again.told()] == [0, 1]

    def test_what_the_log_knows_is_told_late(self, directory: SearchDirectory) -> None:
        first = Driver(directory)
        trial = first.ask()
        assert trial is not None
        # The line is written, and the driver dies before it tells Optuna.
        message = {"tokens": 100, "loss": 1.0, "validation": {"token_perplexity": 4.0}, "state": "complete"}
        first.log.record("report", trial=0, **message)
        again = Driver(directory)
        [told] = again.told()
        assert (told.state, told.values and told.values[0]) == (TrialState.COMPLETE, 4.0)
        assert not again.searcher.unfinished

    def test_asked_for_and_never_logged_is_failed(self, directory: SearchDirectory) -> None:
        first = Driver(directory)
        first.searcher.study.ask()
        assert Driver(directory).states()[0] == TrialState.FAIL

    def test_a_paused_trial_stays_open_until_it_goes_on(self, directory: SearchDirectory) -> None:
        first = Driver(directory)
        trial = first.ask()
        assert trial is not None
        assert first.report(trial, 30, state="paused", reason="asked to stop") == TrialScheduler.STOP
        assert first.states() == [TrialState.RUNNING]
        again = Driver(directory)
        resumed = again.ask()
        assert resumed is not None and resumed.config["number"] == 0

    def test_rung_tables_survive(self, directory: SearchDirectory) -> None:
        first = Driver(directory)
        trials = [first.ask() for _ in range(4)]
        for place, trial in enumerate(trials):
            assert trial is not None
            first.report(trial, 50, 5.0 + place)
        tables, again = first.scheduler.rungs.tables, Driver(directory).scheduler.rungs.tables
        assert {number: values.tolist() for number, values in again[50].items()} == {
            number: values.tolist() for number, values in tables[50].items()
        }
        assert len(tables[50]) == 4

    def test_a_restarted_sampler_does_not_repeat_itself(self, directory: SearchDirectory) -> None:
        first = Driver(directory)
        drawn = [first.ask() for _ in range(4)]
        again = Driver(directory)
        while again.searcher.unfinished:
            again.ask()
        drawn += [again.ask(), again.ask()]
        rates = [trial.config["trial"]["learning_rate"] for trial in drawn if trial]
        assert len(set(rates)) == len(rates) == 6


def opened_by_optuna_alone(directory: SearchDirectory) -> optuna.Study:
    """The study as any tool of Optuna's opens it: by nothing but the journal's path."""
    storage = JournalStorage(JournalFileBackend(str(directory.path / STUDY)))
    [name] = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


def test_the_study_can_be_read_by_optuna_alone(tmp_path: Path) -> None:
    directory = changed(tmp_path, limits={"peak_memory": 40_000})  # the baseline's window of 64 is over it
    driver = Driver(directory)
    driver.finish_two()
    bad = driver.ask()
    assert bad
    driver.log.state.trials[bad.config["number"]].costs["flops_per_token"] = 1e9
    driver.report(bad, 50, 90.0)  # pruned
    study = opened_by_optuna_alone(directory)
    assert study.metric_names == ["token_perplexity", "flops_per_token"]
    seen = {trial.number: trial for trial in study.get_trials() if trial.state != TrialState.WAITING}
    assert seen.keys() == driver.log.state.trials.keys()
    ends = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "infeasible": TrialState.PRUNED}
    for number, record in driver.log.state.trials.items():
        complete = record.state == "complete"
        assert seen[number].state == ends[record.state]
        assert seen[number].values == (record.values(["token_perplexity", "flops_per_token"]) if complete else None)
        assert seen[number].params["window"] == record.params["window"]
        assert (max(seen[number].constraints.values()) > 0) == (record.state == "infeasible")
    assert {record.state for record in driver.log.state.trials.values()} == ends.keys()


def test_a_renamed_search_keeps_its_study(directory: SearchDirectory) -> None:
    driver = Driver(directory)
    trial = driver.ask()
    assert trial is not None
    driver.report(trial, 100, 8.0, state="complete")
    again = Driver(directory.rename("other"))
    another = again.ask()
    assert another is not None and another.config["number"] == 1
    study = opened_by_optuna_alone(SearchDirectory(directory.path.with_name("other")))
    assert study.study_name == "s"
    assert [told.state for told in study.get_trials()] == [TrialState.COMPLETE, TrialState.RUNNING]


def test_objectives_get_their_names_when_an_older_search_goes_on(directory: SearchDirectory) -> None:
    storage = study_storage(directory.path)
    optuna.create_study(study_name="s", storage=storage, directions=["minimize", "minimize"])
    Driver(directory)
    assert opened_by_optuna_alone(directory).metric_names == ["token_perplexity", "flops_per_token"]
    before = (directory.path / STUDY).read_text().count("metric_names")
    Driver(directory)
    assert (directory.path / STUDY).read_text().count("metric_names") == before == 1


@pytest.mark.parametrize("lost", ["all of it", "its half", "a line in the middle"])
def test_a_study_that_was_lost_or_damaged_is_made_anew_from_the_log(directory: SearchDirectory, lost: str) -> None:
    driver = Driver(directory)
    driver.finish_two()
    running = driver.ask()
    assert running
    before, file = driver.told(), directory.path / STUDY
    lines = file.read_text().splitlines(keepends=True)
    if lost == "all of it":
        file.unlink()
    else:
        half = len(lines) // 2
        file.write_text("".join(lines[:half] + ([] if lost == "its half" else ["{", *lines[half + 1 :]])))
    log = directory.open_log()
    agreement = Agreement(log, price)
    agreement.check()
    agreement.bring_in_line()
    again = Driver(directory)
    assert [(one.state, one.values) for one in again.told()] == [(one.state, one.values) for one in before]
    fields = again.searcher.spec.parsed_space.fields_of  # several points have the same overlap in tokens
    assert [fields(one.params) for one in again.told()] == [fields(one.params) for one in before]
    assert list(again.searcher.unfinished) == [running.config["number"]]
    assert "made anew" in again.log.state.notices[-1]


def test_a_study_that_agrees_is_kept_though_a_branch_fixes_a_field(tmp_path: Path) -> None:
    space = FIELDS["space"] | {"window": {8: {"batch": 4}, 16: {"batch": 2}}}
    directory = changed(tmp_path, space=space)
    driver = Driver(directory)
    driver.finish_two()
    assert driver.ask()
    before = (directory.path / STUDY).read_bytes()
    log = directory.open_log()
    assert all("batch" in trial.params for trial in log.state.trials.values())
    agreement = Agreement(log, price)
    agreement.check()
    agreement.bring_in_line()
    assert not log.state.notices
    assert (directory.path / STUDY).read_bytes() == before


# Names that Optuna does not promise: a failure below says which of them a new version has changed.


def test_a_trial_is_opened_again_by_its_id() -> None:
    study = optuna.create_study()
    asked = study.ask()
    again = reopen(study, study.trials[0])
    assert again.number == asked.number, "FrozenTrial._trial_id no longer leads to the trial"
    assert 0 <= again.suggest_float("x", 0, 1) <= 1, "optuna.Trial(study, id) no longer goes on with a trial"
    study.tell(again, 3.0)
    assert study.trials[0].value == 3.0


def test_a_journal_asks_its_lock_to_acquire_and_release(tmp_path: Path) -> None:
    asked = []

    class Counting(NoLock):
        def acquire(self) -> bool:
            asked.append("acquire")
            return super().acquire()

        def release(self) -> None:
            asked.append("release")

    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal"), lock_obj=Counting()))
    optuna.create_study(storage=storage).add_trial(optuna.trial.create_trial(value=1.0))
    assert asked[:2] == ["acquire", "release"], "JournalFileBackend takes another kind of lock_obj"
    assert set(asked) == {"acquire", "release"} and len(asked) % 2 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["journal"], "it makes a lock file all the same"
