"""Repair of a search whose log is damaged or has lost lines, from its folders, Optuna's study and further books."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recur_tune.common.files import write_text, writing
from recur_tune.search.propose.study_agreement import StudyOnDisk, differs, make_anew, read_study
from recur_tune.search.record.directory import EVENTS, SNAPSHOT, SearchDirectory
from recur_tune.search.record.event_log import DamagedLine, corrected, damaged_lines, line_number, line_of, read_from
from recur_tune.search.record.front import BEYOND_THE_FIRST
from recur_tune.search.record.objectives import COSTS
from recur_tune.search.record.recovery import Book, GivenBack, about, given_back, with_events
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import ENDED, Event, SearchState, in_current_terms, replay
from recur_tune.search.record.tracking_place import DELIVERED
from recur_tune.search.run.agreement import Price, begun_trials, costs_from, local_books

ASIDE = "events.damaged"  # beside the log: the damaged lines, as they were found
_LOST = "lost-{}"  # beside the trials' folders: that of a trial whose settings nobody knows
_OF_NO_TRIAL = ("search", "stage", "notice", "moved", "thaw")

# Books of sources that a search does not import, as MLflow, about all trials but the given ones.
MoreBooks = Callable[[Collection[int]], Sequence[Book]]


@dataclass(frozen=True)
class MendedLine:
    """A damaged line, and what became of it."""

    number: int
    line: DamagedLine
    events: tuple[Event, ...]  # where a single byte was wrong
    fate: str  # in words


@dataclass(frozen=True)
class Repair:
    """A repair before it is done: what would be mended, given back and lost."""

    directory: SearchDirectory
    study: StudyOnDisk
    lines: list[MendedLine]
    given: list[GivenBack]
    lost: list[int]  # trials that have begun, and of which no book knows the settings
    orphans: list[Event]  # whole lines of the log about them
    events: list[Event]  # of the mended log
    state: SearchState  # that they lead to

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.lines or self.given or self.lost) or self.study_differs

    @property
    def study_differs(self) -> bool:
        """Whether Optuna's study has to be made anew."""
        known = self.study.trials
        return self.study.damaged or differs(known, self.state, self.directory.spec) or not known.keys() >= {*self.lost}

    def in_words(self) -> Iterator[str]:
        """A line for each thing that would be done."""
        for line in self.lines:
            kind, trial = about(line.line.text)
            what = f" (a {kind} line{'' if trial is None else f' of T{trial}'})" if kind else ""
            yield f"line {line.number}{what}: {line.line.why}; {line.fate}"
        for one in self.given:
            yield f"given back: {one}"
        for number in self.lost:
            yield f"lost: T{number}, whose settings no record has; its folder becomes trials/{_LOST.format(number)}"
        if self.study_differs:
            yield "Optuna's study differs from the log, and is made anew from it"

    def do(self) -> None:
        """Put damaged lines aside, write the mended log, and make anew what follows from it."""
        path = self.directory.path
        with writing(path / ASIDE), (path / ASIDE).open("ab") as aside:
            for line in self.lines:
                aside.write(f"# line {line.number}: {line.line.why}\n".encode() + line.line.text + b"\n")
            for event in self.orphans:
                aside.write(f"# of a trial whose first line is lost\n{line_of(event)}\n".encode())
        self.directory.check_lease()
        write_text(path / EVENTS, "".join(f"{line_of(event)}\n" for event in self.events))
        with writing(path):
            for derived in (SNAPSHOT, DELIVERED):  # they are about the log as it was; MLflow gets everything again
                (path / derived).unlink(missing_ok=True)
            for number in self.lost:
                if (folder := self.directory.trial(number)).is_dir():
                    folder.rename(_free(folder.with_name(_LOST.format(number))))
        if self.study_differs:
            make_anew(self.directory, self.state, self.study.trials, reserved=self.lost)


def plan_repair(directory: SearchDirectory, price: Price, more: MoreBooks = lambda state: ()) -> Repair:
    """Find what is damaged or missing, and where it can be had from; nothing is changed."""
    file, spec = directory.path / EVENTS, directory.spec
    if not file.exists():
        file.touch()
    fixed = [(line, tuple(corrected(line.text))) for line in damaged_lines(file)]
    whole = _in_order(file, dict(fixed))
    state = replay(in_current_terms(deepcopy(event)) for event in whole)
    study = read_study(directory)
    books = [
        *local_books(directory, state, study),
        *more(_settled(state, [line for line, found in fixed if not found])),
    ]
    given = given_back(state, books, costs_from(directory, spec, price))
    events = with_events(whole, given)
    mended = replay(in_current_terms(deepcopy(event)) for event in events)
    orphans = [event for event in events if event.get("trial") in mended.unknown]
    events = [event for event in events if event.get("trial") not in mended.unknown]
    if reference := _reference(mended, spec):
        events.append({"time": mended.updated or 0.0, "kind": "reference", "values": reference})
        mended.apply(events[-1])
    lost = sorted({*begun_trials(directory), *mended.unknown} - {*mended.trials, *mended.repeats})
    lines = [
        MendedLine(line_number(file, line.offset), line, found, _fate(line, found, given)) for line, found in fixed
    ]
    return Repair(directory, study, lines, given, lost, orphans, events, mended)


def _settled(state: SearchState, damaged: Sequence[DamagedLine]) -> set[int]:
    """Trials of which the log has everything, as far as one can know."""
    touched = {about(line.text)[1] for line in damaged}
    if None in touched:
        return set()
    known = [*state.trials.values(), *state.repeats.values()]
    return {trial.number for trial in known if trial.state in ENDED} - {*state.unknown, *touched}


def _in_order(file: Path, fixed: dict[DamagedLine, tuple[Event, ...]]) -> list[Event]:
    """The log's whole events, with those of corrected lines in their places."""
    placed: list[tuple[int, Event]] = [(after, event) for event, after in read_from(file, 0)]
    placed += [(line.offset + len(line.text) + 1, event) for line, events in fixed.items() for event in events]
    return [event for _, event in sorted(placed, key=lambda one: one[0])]


def _fate(line: DamagedLine, events: tuple[Event, ...], given: Sequence[GivenBack]) -> str:
    if events:
        return "a single byte is wrong, and is corrected"
    kind, trial = about(line.text)
    if kind in _OF_NO_TRIAL:
        return "it is put aside, and no trial loses anything"
    if any(one.event["trial"] == trial for one in given):
        return "it is put aside, and other records give back what they have of its trial"
    if kind == "report" and b'"validation": null' in line.text:
        return "it is put aside: a loss between two validations is lost"
    return "it is put aside, and what it said is lost"


def _reference(state: SearchState, spec: SearchSpec) -> dict[str, float]:
    """The reference quality, where its line is lost: as it was fixed, by the baseline's first validation. The reference
    costs are computed when the search is continued."""
    missing = [name for name in spec.objectives if name not in state.reference and name not in COSTS]
    validated = [trial for trial in state.trials.values() if trial.validations]
    first = next((trial for trial in validated if trial.role == "baseline"), next(iter(validated), None))
    if first is None:
        return {}
    metrics: dict[str, Any] = first.validations[0].metrics
    return {name: metrics[name] * BEYOND_THE_FIRST for name in missing if name in metrics}


def _free(path: Path) -> Path:
    """The path, or another one like it that does not exist yet."""
    number = 1
    while path.exists():
        path, number = path.with_name(f"{path.name}-{number}"), number + 1
    return path
