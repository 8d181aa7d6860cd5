"""A soak: searches on a SLURM of three nodes, a fault a minute, and the invariants after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.soak.faults import FAULTS, Target
from tests.soak.ground import Ground
from tests.soak.plan import MINUTE, Draw, plan
from tests.soak.vigil import Ended, Vigil
from tests.waiting import until


@dataclass
class Struck:
    """A fault that was done, and what came of it."""

    minute: float  # when it struck
    planned: int
    kind: str
    search: str
    what: str = ""
    then: str = ""  # what the search did
    seconds: float = 0.0  # from the end of the fault until a trial reported again
    broken: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """All of it."""

    seed: int
    minutes: float
    struck: list[Struck] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """Every invariant that did not hold, with where."""
        of_faults = [f"minute {one.minute:.1f}, {one.kind}: {text}" for one in self.struck for text in one.broken]
        return of_faults + [f"{one.name}, at its end: {text}" for one in self.ended for text in one.broken]


class Soak:
    """Runs the plan of a seed for so many minutes; the last search is then left to end in peace."""

    def __init__(self, ground: Ground, outcome: Outcome, tell: Callable[[str], None], kinds: Sequence[str]) -> None:
        self.ground, self.outcome, self.tell, self.kinds = ground, outcome, tell, kinds
        self.began = time.monotonic()
        self.vigil = Vigil(ground)
        outcome.ended = self.vigil.ended

    def run(self) -> None:
        """To the end."""
        for draw in plan(self.outcome.seed, self.kinds):
            self._be_at_work_when(draw)
            if self._passed() >= MINUTE * self.outcome.minutes:
                break
            self._strike(draw)
        self.tell("no more faults: the last search goes on to its end")
        self._see_off()

    def _passed(self) -> float:
        return time.monotonic() - self.began

    def _be_at_work_when(self, draw: Draw) -> None:
        """Until a fault is due and there is a search at work to meet it; a finished one makes room for the next."""
        over = MINUTE * self.outcome.minutes
        place = self.vigil.place if self.outcome.struck else 0
        while self._passed() < over:
            if self.vigil.is_finished:
                self._see_off()
                self.vigil.begin()
                place = 0
            elif self._passed() >= draw.due and self.vigil.is_back(place):
                return
            self.vigil.tend()
            time.sleep(0.5)

    def _see_off(self) -> None:
        """Wait for the end of a search, and judge it."""
        vigil = self.vigil
        try:
            vigil.wait(lambda: vigil.is_finished, "the end of the search")
            ended = vigil.settle()
        except Exception as error:
            ended = self._give_up(_said(error))
        held = f"BROKEN: {'; '.join(ended.broken)}" if ended.broken else "every invariant held, nothing left behind"
        self.tell(
            f"{ended.name} ended: {ended.trials} trials, hypervolume {ended.hypervolume:.4f}, {ended.allocations} "
            f"allocations, {ended.resumes} resumes: {held}"
        )

    def _strike(self, draw: Draw) -> None:
        vigil = self.vigil
        struck = Struck(self._passed() / MINUTE, draw.minute, draw.kind, vigil.search.name)
        self.outcome.struck.append(struck)
        before, ended = _Count.of(vigil), len(vigil.ended)
        try:
            self._do(draw, struck)
            struck.broken = vigil.check()
        except Exception as error:  # stuck, or a fault of the soak's own: the rest of the hour is worth having
            struck.broken, struck.then = [_said(error)], "did not come back"
            self._give_up(_said(error))
        struck.then = struck.then or before.told(vigil)
        held = f"BROKEN: {'; '.join(struck.broken)}" if struck.broken else "invariants held"
        self.tell(f"              {struck.then}, at work after {struck.seconds:.0f} s; {held}")
        if len(vigil.ended) > ended:
            vigil.begin()

    def _do(self, draw: Draw, struck: Struck) -> None:
        """The fault, perhaps a second time, and then until the search is back at work."""
        fault, vigil = FAULTS[draw.kind], self.vigil
        if (target := self._aim(draw)) is None:
            struck.what = "none: it had just finished"
            return
        node, place = target.node, vigil.place
        anew = fault.ends_run(node, target.head)
        victims = [trial for trial, there in vigil.search.nodes_at_work().items() if fault.takes and there == node]
        self._let(target, struck)
        place = vigil.place if fault.taken_over else place
        if anew and draw.again:
            vigil.wait(lambda: vigil.begins_behind(place), "another run")
            place = vigil.place
            if target := self._aim(draw):
                self._let(target, struck)
                place = vigil.place if fault.taken_over else place
        cleared = time.monotonic()
        place = place if anew or victims else vigil.place
        vigil.wait(lambda: vigil.is_back(place, anew, victims), "back at work")
        struck.seconds = time.monotonic() - cleared

    def _aim(self, draw: Draw) -> Target | None:
        """At the search where it is now; None where it has just finished."""
        while not self.vigil.is_finished:
            if head := self.vigil.search.folder.head:
                return Target(self.ground, self.vigil.search, head.node, draw)
            self.vigil.tend()
            time.sleep(0.3)
        return None

    def _let(self, target: Target, struck: Struck) -> None:
        fault = FAULTS[target.draw.kind]
        with fault.strike(target) as what:
            struck.what += f"; as it began anew, {what}" if struck.what else what
            self.tell(f"minute {self._passed() / MINUTE:5.1f}  {what} …")
            if fault.lasts:
                time.sleep(target.draw.hold)  # the fault's own length, which nothing is hoped of

    def _give_up(self, why: str) -> Ended:
        """A search that does not go on is broken enough; the next may fare better."""
        vigil = self.vigil
        for job in vigil.search.jobs_in_queue():
            self.ground.slurm.run("scancel", job)
        until(lambda: not vigil.search.jobs_in_queue(), "the end of its job", pause=0.5)
        return vigil.enter([f"given up: {why}"])


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@dataclass(frozen=True)
class _Count:
    """What a search has gone through so far."""

    allocations: int
    resumes: int
    refusals: int
    repairs: int
    retries: int
    moves: int

    @classmethod
    def of(cls, vigil: Vigil) -> _Count:
        """As of now."""
        events = [event for event, _ in vigil.search.directory.events()]
        retries = sum(event["kind"] == "running" and "after" in event for event in events)
        moves = sum(event["kind"] == "moved" for event in events)
        begun = len(vigil.search.notes("begun"))
        repairs = sum("recur-tune repair" in words for words in vigil.refusals)
        return cls(begun, vigil.resumes, len(vigil.refusals), repairs, retries, moves)

    def told(self, vigil: Vigil) -> str:
        """What has been added since, in words."""
        now, words = _Count.of(vigil), []
        if now.resumes > self.resumes:
            words.append("asked for a resume")
        elif now.allocations > self.allocations:
            words.append("went on in another allocation")
        if now.retries > self.retries or now.moves > self.moves:
            words.append("trials went on elsewhere")
        if now.refusals > self.refusals:
            words.append(f"{now.refusals - self.refusals} resumes refused")
        if now.repairs > self.repairs:
            words.append("was repaired")
        if vigil.is_finished:
            words.append("finished")
        return ", ".join(words or ["went on"])
