"""A search under watch: waited for, resumed where it asks for it, and checked; when one has ended the next begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from recur_tune.common.throttle import Every
from recur_tune.search.record.state import ENDED
from tests.sites.slurm.site import Submitted
from tests.soak.books import read_books
from tests.soak.ground import Ground
from tests.soak.invariants import Witness
from tests.soak.leftovers import left_behind
from tests.waiting import until

_TRIALS, _TOKENS, _RUNGS = 6, 80_000, 4
_PATIENCE = 600.0  # seconds within which a search has to be back at work, however busy the machine is
_UNDELIVERED = "MLflow has not got everything"


class Stuck(Exception):
    """A search does not go on, though nothing is in its way."""


@dataclass
class Ended:
    """A search of the soak, when it is over."""

    name: str
    trials: int
    hypervolume: float
    allocations: int
    resumes: int
    broken: list[str]


@dataclass
class Vigil:
    """The latest search, and what became of those before it."""

    ground: Ground
    search: Submitted = field(init=False)
    witness: Witness = field(init=False)
    ended: list[Ended] = field(default_factory=list)
    resumes: int = 0  # of the latest search
    refusals: list[str] = field(default_factory=list)  # of resumes, in the product's own words

    def __post_init__(self) -> None:
        self.profile = self.ground.profile()
        self.asks = Every(2.0)  # SLURM, which takes three processes
        self.begin()

    def begin(self) -> None:
        """Submit the next search."""
        budget = {"budget__trials": _TRIALS, "budget__tokens": _TOKENS, "budget__rungs": _RUNGS}
        space = self.ground.site.space(
            **budget, budget__reduction=2, tracking=self.ground.tracking, sampler__seed=len(self.ended)
        )
        self.search = self.ground.site.submit(f"soak-{len(self.ended) + 1}", self.profile, space)
        self.witness, self.resumes, self.refusals = Witness(), 0, []

    @property
    def is_finished(self) -> bool:
        """Whether the search has spent its budget."""
        return self.search.state.status == "finished"

    def wait(self, happened: Callable[[], bool], what: str) -> None:
        """Until something has happened, with a resume whenever no job is left that could bring it about."""
        deadline = time.monotonic() + _PATIENCE
        while not happened():
            if time.monotonic() > deadline:
                raise Stuck(f"{what}: not in {_PATIENCE:.0f} s")
            self.tend()
            time.sleep(0.3)

    def tend(self) -> None:
        """Resume the search where it has no job any more and is not finished, or repair it: what its last words ask
        for."""
        if not self.asks() or self.search.jobs_in_queue() or self.is_finished:
            return
        typed = self.ground.site.type("resume", self.search.name, "--slurm", code=None)
        if typed.code == 0:
            self.resumes += 1
        else:
            self.refusals.append(typed.err.strip().splitlines()[-1])
            if f"recur-tune repair {self.search.name}" in self.refusals[-1]:
                self.ground.site.type("repair", self.search.name, "--yes")

    def is_back(self, place: int, anew: bool = False, victims: Iterable[int] = ()) -> bool:
        """Whether a trial has reported behind a place of the log, or the search is finished.

        Where asked, in a run that began behind it, and each victim has gone on or ended.
        """
        if self.is_finished:
            return True
        events = [event for event, _ in self.search.directory.events(place)]
        starts = [number for number, event in enumerate(events) if event.get("status") == "started"]
        if anew:
            events = events[starts[-1] :] if starts else []
        went_on = {event["trial"] for event in events if event["kind"] == "running"}
        left = set() if starts else set(victims) - went_on
        return any(event["kind"] == "report" for event in events) and all(
            self.search.state.record(number).state in ENDED for number in left
        )

    def begins_behind(self, place: int) -> bool:
        """Whether another run of the search has begun there."""
        events = (event for event, _ in self.search.directory.events(place))
        return self.is_finished or any(event.get("status") == "preparing" for event in events)

    @property
    def place(self) -> int:
        """The end of the log."""
        return (self.search.directory.path / "events.jsonl").stat().st_size

    def check(self) -> list[str]:
        """The invariants as they are now."""
        return self.witness.check(read_books(self.search.directory, self.ground.database), settled=False)

    def settle(self) -> Ended:
        """See a finished search off: everything is delivered, everything agrees, nothing is left."""
        until(lambda: not self.search.jobs_in_queue(), "the end of its job", pause=0.5)
        if any(_UNDELIVERED in notice for notice in self.search.state.notices[-1:]):
            self.ground.site.type("track", self.search.name)
        books = read_books(self.search.directory, self.ground.database)
        broken = [*self.witness.check(books, settled=True), *left_behind(self.ground, self.search)]
        return self.enter(broken)

    def enter(self, broken: list[str]) -> Ended:
        """The search is over, in whichever way."""
        trials, begun = len(self.search.state.trials), len(self.search.notes("begun"))
        ended = Ended(self.search.name, trials, self.witness.hypervolume, begun, self.resumes, broken)
        self.ended.append(ended)
        return ended
