"""The legs of the suite side by side, and at the end what took the time.

    python -m tests.legs [--only LEG …] [ARGUMENTS OF PYTEST]

Two of them mostly wait, for clusters, which have little time to start in; the third uses what they leave of the cores.
Each leg's lines are printed as they come, behind its name.

Side by side, a test takes as long as the others let it. What it costs are seconds of a processor: its own, and those of
the processes that it started and waited for. Of what ends by itself, as most of a cluster does, they tell nothing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests import handover
from tests.command import start_server
from tests.handover import SERVER
from tests.processor import PROCESSOR
from tests.waiting import until

_DEAREST = 30
_LINES_OF_A_FAILURE = 12
_NO_TESTS = 5  # pytest's exit code where nothing was selected
_STEP = 5  # of niceness
_FIRST_PORT = 61_000  # above what Linux gives to who asks for any, up to 60,999


@dataclass(frozen=True)
class Leg:
    """Tests that one pytest runs, and how."""

    name: str
    marks: str
    spreads: bool = False  # over as many processes as there are cores; else its tests are printed name by name
    steps_back: bool = False  # and lets whoever else wants the cores have them
    is_forked: bool = False  # waits for the fork server, and its tests are in processes from there

    def words(self, results: Path, more: list[str]) -> list[str]:
        """Its command line."""
        python = [sys.executable]
        forked = [*python, "-S", handover.__file__, os.environ[SERVER]] if self.is_forked else python
        if not self.spreads:
            python, how = forked, ["-vv"]
        elif not self.is_forked:
            how = ["-n", "auto", *_FILE_BY_FILE]
        else:  # but for the process that only hands out tests, which has no use for what is loaded there
            how = [f"--tx={len(os.sched_getaffinity(0))}*popen//python={shlex.join(forked)}", *_FILE_BY_FILE]
        return [*python, "-m", "pytest", "-m", self.marks, *how, f"--junitxml={results}", *more]


# A file's tests stay together, with the fixtures that they share, and files are begun in the order of their collection.
_FILE_BY_FILE = ("--dist=loadfile", "--no-loadscope-reorder")
# SLURM takes as long to come up as the fork server does to load, and one core is enough for that.
LEGS = (
    Leg("unit", "not ray and not slurm", spreads=True, steps_back=True, is_forked=True),
    Leg("ray", "ray", is_forked=True),
    Leg("slurm", "slurm"),
)
QUICK = Leg("quick", "not ray and not slurm and not browser and not slow", spreads=True)


@dataclass(frozen=True)
class Test:
    """One that ended, its fixtures included."""

    file: str
    name: str
    leg: str
    seconds: float
    processor: float
    failure: str = ""  # the last lines of what it said, where it failed


@dataclass
class Run:
    """A leg under way."""

    leg: Leg
    process: subprocess.Popen[str]
    results: Path
    started: float
    seconds: float = 0.0

    def follow(self) -> None:
        """Print its lines until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f"{self.leg.name:>5} | {line}", end="", flush=True)
        self.process.wait()
        self.seconds = time.monotonic() - self.started

    @property
    def tests(self) -> list[Test]:
        """Every test that ended."""
        if not self.results.exists():
            return []
        return [self._read(case) for case in ElementTree.parse(self.results).iter("testcase")]

    def _read(self, case: ElementTree.Element) -> Test:
        said = {one.get("name"): one.get("value", "0") for one in case.iter("property")}
        file, seconds = case.get("classname", ""), float(case.get("time", 0))
        name = f"{file}.{case.get('name')}"
        failures = [one.text or one.get("message", "") for kind in ("failure", "error") for one in case.iter(kind)]
        failure, processor = "\n".join(map(last_lines, failures)), float(said.get(PROCESSOR, 0))
        return Test(file, name, self.leg.name, seconds, processor, failure)


def main() -> int:
    """Run them; the exit code is that of the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[leg.name for leg in (*LEGS, QUICK)], help="these legs alone")
    arguments, for_pytest = parser.parse_known_args()
    # A shell has its background jobs ignore Ctrl-C, and so would everything that tests start and press it for.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Dozens of processes import this code and transformers', and tests' assertions are rewritten: not without bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    legs = [leg for leg in (*LEGS, QUICK) if leg.name in (arguments.only or [leg.name for leg in LEGS])]
    with tempfile.TemporaryDirectory(prefix="recur-tune-legs-") as folder:
        runs: list[Run] = []
        followers: list[threading.Thread] = []
        try:
            for run in begin(legs, Path(folder), for_pytest):
                runs.append(run)
                followers.append(threading.Thread(target=run.follow))
                followers[-1].start()
        except KeyboardInterrupt:
            interrupt(runs)
        for follower in followers:
            while follower.is_alive():
                try:
                    follower.join()
                except KeyboardInterrupt:
                    interrupt(runs)
        if not runs:
            return 1
        print_times(runs)
        print_failures(runs)
    codes = [run.process.returncode for run in runs]
    if any(codes) and any(code not in (0, _NO_TESTS) for code in codes):
        print(f"failed: {', '.join(run.leg.name for run in runs if run.process.returncode not in (0, _NO_TESTS))}")
        return 1
    return _NO_TESTS if all(code == _NO_TESTS for code in codes) else 0


def begin(legs: list[Leg], folder: Path, arguments: list[str]) -> Iterator[Run]:
    """Each as soon as it can be."""
    began = time.monotonic()
    if any(leg is not QUICK for leg in legs):
        os.environ[SERVER] = str(folder / "forkserver")
        server = start_server(Path(os.environ[SERVER]))
    for number, leg in sorted(enumerate(legs), key=lambda pair: pair[1].is_forked):
        if leg.is_forked:
            until(Path(os.environ[SERVER]).exists, "the fork server", hopeless=lambda: server.poll() is not None)
        yield start(leg, number, folder, arguments, began)


def start(leg: Leg, number: int, folder: Path, arguments: list[str], began: float) -> Run:
    """A pytest of its own, with ports that no other leg takes."""
    results = folder / f"{leg.name}.xml"
    env = os.environ | {"RECUR_TUNE_TEST_PORTS": str(_FIRST_PORT + 1000 * number)}
    process = subprocess.Popen(
        leg.words(results, arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
        start_new_session=True, preexec_fn=step_back if leg.steps_back else None,
    )  # fmt: skip
    return Run(leg, process, results, began)


def interrupt(runs: list[Run]) -> None:
    """Pass Ctrl-C on to the legs, which have sessions of their own and have not heard it."""
    for run in runs:
        run.process.send_signal(signal.SIGINT)


def step_back() -> None:
    """A third of the others' share of a core. With less, somebody else who keeps the cores busy would stop it."""
    os.nice(_STEP)
    with suppress(OSError):  # where Linux shares the cores among sessions first, the session's counts
        Path("/proc/self/autogroup").write_text(str(_STEP))


def print_times(runs: list[Run]) -> None:
    """Where the time went, so that who adds a minute sees it."""
    tests = [test for run in runs for test in run.tests]
    print("\ndearest tests, with their fixtures: seconds of a processor, and until they ended")
    patient = {leg.name for leg in LEGS if leg.steps_back}  # whose tests take as long as others let them

    def price(test: Test) -> float:
        return test.processor if test.leg in patient else max(test.processor, test.seconds)

    for test in sorted(tests, key=price, reverse=True)[:_DEAREST]:
        print(f"{test.processor:7.1f} s {test.seconds:7.1f} s  {test.leg:<5}  {test.name}")
    files = defaultdict[str, float](float)
    for test in tests:
        files[f"{test.leg:<5}  {test.file}"] += price(test)
    print("\ndearest files, by the dearer of the two, or by the first where a test waits for others")
    for file, seconds in sorted(files.items(), key=lambda pair: -pair[1])[:_DEAREST]:
        print(f"{seconds:7.1f} s  {file}")
    print("\nlegs")
    for run in runs:
        processor = sum(test.processor for test in run.tests)
        print(f"{processor:7.1f} s {run.seconds:7.1f} s  {run.leg.name:<5}  {len(run.tests)} tests")
    everything = sum(test.processor for test in tests)
    print(f"{everything:7.1f} s {max(run.seconds for run in runs):7.1f} s  all, side by side", flush=True)


def print_failures(runs: list[Run]) -> None:
    """Once more and last: whoever sees nothing but the end of a log sees what failed."""
    for test in (test for run in runs for test in run.tests if test.failure):
        print(f"\nfailed in leg {test.leg}: {test.name}\n{test.failure}", flush=True)


def last_lines(text: str) -> str:
    """Where pytest says what was wrong, and in which line."""
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-_LINES_OF_A_FAILURE:])


if __name__ == "__main__":
    sys.exit(main())
