"""Kills a worker of any rank at a random moment, again and again, while two workers train the trials of a search.

    python -m tests.soak.killed_workers [--kills 20] [--seed 1]

A trial is killed twice. Then each has to be complete, or pruned at a rung, and every validation is that of the same
trial without Ray and without a fault. Ray Tune must have started it once, and once more where it was resumed after a
rung: then Ray Train alone has handled what happened. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recur_tune.api.outputs import OUTPUTS
from recur_tune.cluster.connection import DASHBOARD, connected
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.run.driver import run_search
from recur_tune.search.run.trainable import run_trial
from tests import forked
from tests.command import own_server
from tests.search.run.searches import ALIKE, assert_settled, events_of, make_world, small_spec
from tests.search.run.train_page import train_runs, workers_of_latest_start
from tests.waiting import until

_KILLS_OF_A_TRIAL = 2
_SPARE_TRIALS = 3  # some are paused at a rung before the second kill
_SECONDS_OF_A_TRIAL = 4.0  # a kill comes within so many seconds of the workers' start


@dataclass
class Kill:
    """A kill, and how the trial went on."""

    trial: int
    rank: int
    tokens: int  # told before
    seconds: float = 0.0  # until the trial told more


class Killer(threading.Thread):
    """Kills workers of the trial that runs, each time in another process."""

    def __init__(self, directory: SearchDirectory, kills: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.directory, self.kills, self.draw = directory, kills, random.Random(seed)
        self.done: list[Kill] = []
        self.killed: set[int] = set()  # processes of starts that are over

    def run(self) -> None:
        """Until there were as many kills as asked for, or the search ends."""
        while len(self.done) < self.kills:
            workers = until(self._unharmed, "workers", pause=0.1)
            time.sleep(self.draw.uniform(0, _SECONDS_OF_A_TRIAL))
            running = list(self.directory.state().in_state("running"))
            if not running or self._of(running[0].number) == _KILLS_OF_A_TRIAL:
                time.sleep(0.1)
                continue
            rank = self.draw.choice(sorted(workers))
            kill, before = Kill(running[0].number, rank, running[0].tokens), len(self._reports())
            started = time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(workers[rank], signal.SIGKILL)
            self.killed |= set(workers.values())
            self.done.append(kill)
            until(lambda before=before: len(self._reports()) > before, "a report", pause=0.1)
            kill.seconds = time.monotonic() - started
            print(f"kill {len(self.done)}: T{kill.trial}, rank {rank}, {kill.seconds:.1f} s", file=sys.stderr)

    def _unharmed(self) -> dict[int, int]:
        workers = workers_of_latest_start(self.directory.name)
        return {} if self.killed & set(workers.values()) else workers

    def _of(self, trial: int) -> int:
        return sum(kill.trial == trial for kill in self.done)

    def _reports(self) -> list[dict[str, Any]]:
        return events_of(self.directory, "report")


def losses(events: list[dict[str, Any]]) -> dict[int, float]:
    """The validations' losses by tokens."""
    return {event["tokens"]: event["validation"]["loss"] for event in events if event.get("validation")}


def losses_without_ray(directory: SearchDirectory, number: int, folder: Path) -> dict[int, float]:
    """Those of the same trial, trained in this process."""
    own = folder / "alone" / "trials" / str(number)
    own.mkdir(parents=True)
    said: list[dict[str, Any]] = []
    config = directory.spec.trial_config(directory.state().trials[number].params)
    run_trial({"folder": str(own), "trial": config.plain_values()}, said.append)
    return losses(said)


def main() -> int:
    """Run it, print the table, and say whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="which rank, and when")
    arguments = parser.parse_args()
    trials = -(-arguments.kills // _KILLS_OF_A_TRIAL) + _SPARE_TRIALS
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as variables:
        folder = Path(place)
        forked.start_from(own_server(), variables)
        variables.setenv(DASHBOARD, "off")
        variables.setenv("OMP_NUM_THREADS", "1")
        variables.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 2}')
        make_world(folder)
        changes: dict[str, Any] = {
            **ALIKE, "budget__trials": trials, "budget__tokens": 12_000, "budget__rungs": 5, "resources__workers": 2,
            "space__recurrence": "none",
        }  # fmt: skip
        spec = small_spec(folder, **changes)
        budget = spec.budget.model_copy(update={"reduction": 1.5})
        directory = SearchDirectory.create(folder, "killed", spec.model_copy(update={"budget": budget}))
        with connected(None):
            killer = Killer(directory, arguments.kills, arguments.seed)
            killer.start()
            state = run_search(directory, OUTPUTS)
            runs = len(train_runs("killed"))
        starts, resumed = ([one["trial"] for one in events_of(directory, kind)] for kind in ("running", "thaw"))
        print("| trial | state | starts by Ray Tune | kills (rank, s until it went on) | losses without Ray, apart |")
        print("|---|---|---|---|---|")
        well = len(killer.done) == arguments.kills and runs == 1
        for trial in state.trials.values():
            kills = ", ".join(f"{kill.rank} {kill.seconds:.1f}" for kill in killer.done if kill.trial == trial.number)
            told = losses([event for event in events_of(directory, "report") if event["trial"] == trial.number])
            alone = losses_without_ray(directory, trial.number, folder)
            apart = max((abs(loss / alone[tokens] - 1) for tokens, loss in told.items()), default=math.nan)
            begun = starts.count(trial.number)
            well &= trial.state in ("complete", "pruned") and begun == 1 + resumed.count(trial.number) and apart < 1e-4
            print(f"| {trial.name} | {trial.state} | {begun} | {kills} | {apart:.1e} |", flush=True)
        assert_settled(directory)
        print(f"\n{len(killer.done)} kills, {runs} run of Ray Train; {'all is well' if well else 'BROKEN'}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
