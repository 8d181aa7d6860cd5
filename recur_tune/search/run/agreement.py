"""Agreement of a search's books before it is continued: log, trials' folders, Optuna's study and MLflow's runs.

The log is the truth where it is whole. A log that only lost its end gets it back from folders and study, and a study
that differs is made anew. What needs a person's decision is refused with the command that mends it.
"""

from __future__ import annotations

from collections.abc import Callable

from recur_tune.common.errors import UserError
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.study_agreement import StudyOnDisk, differs, make_anew, read_study, study_book
from recur_tune.search.record.damage import names, refuse_damaged_log, repair_command
from recur_tune.search.record.directory import SearchDirectory, SearchLog
from recur_tune.search.record.objectives import COSTS
from recur_tune.search.record.recovery import Book, GivenBack, folder_book, folders, given_back
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import Event, SearchState
from recur_tune.search.record.tracking_place import DELIVERED, Delivered, tracking_uri

Price = Callable[[TrialConfig], dict[str, float]]


class Agreement:
    """Compares the books of a search that is about to be continued, and brings them in line."""

    def __init__(self, log: SearchLog, price: Price) -> None:
        self.log, self.directory, self.spec = log, log.directory, log.directory.spec
        self.study = read_study(self.directory)
        self.price = price

    def check(self) -> None:
        """Refuse a search whose log is damaged, or has lost trials of which no book knows the settings."""
        refuse_damaged_log(self.directory, self.log.state)
        begun = begun_trials(self.directory)
        known = {*self.log.state.trials, *self.log.state.repeats}
        if known:
            known |= {one.event["trial"] for one in self._given(lambda event: {}) if one.event["kind"] == "trial"}
        if lost := sorted(begun - known):
            what = f"its log has lost {names(lost)}" if known else f"its log has no trial, and {len(lost)} have begun"
            raise UserError(
                f"name: {self.directory.name} cannot be continued as it is: {what}; "
                f"`{repair_command(self.directory)}` tells what would be lost, and mends it."
            )

    def bring_in_line(self) -> None:
        """Give the log back what it lost at its end, and make a study anew that differs from it."""
        given = self._given(costs_from(self.directory, self.spec, self.price))
        for one in given:
            self.log.record(**{name: value for name, value in one.event.items() if name != "time"})
        if given:
            self.log.record("notice", text=f"the log had lost its end, and got back: {'; '.join(map(str, given))}.")
        if self.study.damaged or differs(self.study.trials, self.log.state, self.spec):
            make_anew(self.directory, self.log.state, self.study.trials)
            self.log.record("notice", text="Optuna's study differed from the log, and was made anew from it.")

    def _given(self, costs: Callable[[Event], dict[str, float]]) -> list[GivenBack]:
        return given_back(
            self.log.state, local_books(self.directory, self.log.state, self.study), costs, ends_alone=True
        )


def local_books(directory: SearchDirectory, state: SearchState, study: StudyOnDisk) -> list[Book]:
    """The books in the search directory beside the log, the most exact first."""
    return [folder_book(directory), study_book(study.trials, state, directory.spec, folders(directory))]


def begun_trials(directory: SearchDirectory) -> set[int]:
    """The trials that have a folder or a run in MLflow."""
    return {*folders(directory), *Delivered.read(directory.path / DELIVERED, tracking_uri(directory)).runs}


def costs_from(directory: SearchDirectory, spec: SearchSpec, price: Price) -> Callable[[Event], dict[str, float]]:
    """Costs of a trial by its first event, computed where the book does not have all of them."""

    def costs(event: Event) -> dict[str, float]:
        known: dict[str, float] = event["costs"]
        if known.keys() >= COSTS.keys():
            return known
        try:
            config = directory.with_own_base(spec.trial_config(event["params"], event.get("seed")))
            return known | price(config)
        except UserError:  # it cannot be trained, which is how it ended
            return known

    return costs
