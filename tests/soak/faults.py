"""The faults of a soak: each is done for real to processes, networks and disks, and undone at the end of its block."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import psutil

from recur_tune.common.errors import Paused
from recur_tune.search.record.directory import EVENTS, SearchDirectory
from tests.sites.slurm.mini_slurm import NODES
from tests.sites.slurm.site import Submitted
from tests.soak.ground import Ground
from tests.soak.plan import Draw
from tests.waiting import until

_DRIVER, _RAYLET, _STORE = "recur_tune.cli.main", "raylet", "gcs_server"
_TAKEN_OVER = "another process has taken over this search"


@dataclass(frozen=True)
class Target:
    """What a fault is done to."""

    ground: Ground
    search: Submitted
    head: str  # the node that the driver runs on
    draw: Draw

    @property
    def node(self) -> str:
        """The node of the draw, as the search lies now; where it has only its head, that."""
        others = [node for node in self.search.notes("begun")[-1]["nodes"] if node != self.head]
        there = [node for node in others if self.find(node, _RAYLET)]
        return there[0] if there and self.draw.where == "other" else self.head

    def find(self, node: str, name: str) -> list[psutil.Process]:
        """Processes on a node by the name of their program, or the module that Python runs."""
        return [process for process in self.ground.processes(node) if _is_called(process, name)]


@dataclass(frozen=True)
class Fault:
    """A way to spoil a search's day.

    Attributes:
        strike: Does it, says what, and undoes it.
        lasts: Whether it lasts for as long as was drawn, or is over in a moment.
        ends: Whether it ends the run of a search, which then has to begin anew.
        takes: Whether it takes the trials on its node along, which then have to go on elsewhere.
        taken_over: Whether another driver ran meanwhile, whose reports do not mean that the search is back.
    """

    strike: Callable[[Target], AbstractContextManager[str]]
    lasts: bool = False
    ends: Literal["always", "on the head", "never"] = "never"
    takes: bool = False
    taken_over: bool = False

    def ends_run(self, node: str, head: str) -> bool:
        """Whether it does, there."""
        return self.ends == "always" or (self.ends == "on the head" and node == head)


def _killing(name: str, what: str, on_head: bool = False) -> Callable[[Target], AbstractContextManager[str]]:
    @contextmanager
    def strike(target: Target) -> Iterator[str]:
        node = target.head if on_head else target.node
        found = target.find(node, name)
        for process in found:
            process.kill()
        yield f"{what} on {node} killed" if found else f"no {what} on {node} to kill"

    return strike


@contextmanager
def _kill_trial(target: Target) -> Iterator[str]:
    workers = sorted(trial.worker for trial in target.search.state.in_state("running") if trial.worker)
    there = [worker for worker in workers if worker.startswith(f"{target.node}:")] or workers
    if not there:
        yield "no trial to kill"
        return
    node, _, process = there[0].partition(":")
    target.ground.slurm.on_node(node, "kill", "-KILL", process, check=False)
    yield f"a trial's process on {node} killed"


@contextmanager
def _kill_node(target: Target) -> Iterator[str]:
    node = target.node
    target.ground.slurm.kill_node(node)
    yield f"node {node} killed"
    target.ground.revive(node)


@contextmanager
def _kill_everything(target: Target) -> Iterator[str]:
    for node in NODES:
        target.ground.slurm.kill_node(node)
    yield "all nodes killed"
    target.ground.revive(*NODES)


@contextmanager
def _cancel(target: Target) -> Iterator[str]:
    for job in target.search.jobs_in_queue():
        target.ground.slurm.run("scancel", job)
    yield "job cancelled"


@contextmanager
def _cut_off(target: Target) -> Iterator[str]:
    node = target.node
    target.ground.slurm.cut_off(node)
    try:
        yield f"{node} cut off the network for {target.draw.hold:.0f} s"
    finally:
        target.ground.slurm.reconnect(node)


@contextmanager
def _fill_disk(target: Target) -> Iterator[str]:
    room = 4096 if target.draw.strength < 0.5 else 65_536
    with target.ground.ballast(room):
        yield f"disk full but for {room // 1024} KiB, {target.draw.hold:.0f} s"


@contextmanager
def _slow_disk(target: Target) -> Iterator[str]:
    milliseconds = round(20 + 480 * target.draw.strength)
    for node in NODES:
        target.ground.spoil(node, microseconds=1000 * milliseconds)
    try:
        yield f"disk slow, {milliseconds} ms a call, {target.draw.hold:.0f} s"
    finally:
        for node in NODES:
            target.ground.spoil(node)


@contextmanager
def _wrong_clock(target: Target) -> Iterator[str]:
    node, seconds = target.node, round(7200 * (target.draw.strength - 0.5))
    target.ground.spoil(node, seconds=seconds)
    try:
        yield f"clock of {node} jumps by {seconds:+} s, and back after {target.draw.hold:.0f} s"
    finally:
        target.ground.spoil(node)


@contextmanager
def _without_mlflow(target: Target) -> Iterator[str]:
    target.ground.kill_mlflow()
    try:
        yield f"MLflow's server killed, away for {target.draw.hold:.0f} s"
    finally:
        target.ground.start_mlflow()


@contextmanager
def _damage_line(target: Target) -> Iterator[str]:
    """A byte of a line is flipped, or its second half becomes zeros; then the driver dies, which a resume meets."""
    file = target.search.directory.path / EVENTS
    lines = file.read_bytes().splitlines(keepends=True)[:-1]
    number = round(target.draw.strength * (len(lines) - 1))
    offset, line = sum(map(len, lines[:number])), lines[number]
    flips = target.draw.strength < 0.5
    middle = len(line) // 2
    with file.open("rb+") as log:
        log.seek(offset + middle)
        log.write(bytes([line[middle] ^ 1]) if flips else bytes(len(line) - middle - 1))
    for process in target.find(target.head, _DRIVER):
        process.kill()
    yield f"{'a byte' if flips else 'half'} of line {number + 1} of the log spoiled, and the driver killed"


@contextmanager
def _freeze_driver(target: Target) -> Iterator[str]:
    """The driver is stopped until its lease has expired and a driver on the login node has taken over and trains; then
    it wakes up, and has to end without another word to any of the books."""
    found, directory = target.find(target.head, _DRIVER), target.search.directory
    said = target.search.said.count(_TAKEN_OVER)
    if not found:
        yield f"no driver on {target.head} to freeze"
        return
    for process in found:
        process.suspend()
    try:
        until(lambda: not directory.is_running, "the end of the lease", pause=0.5)
        place = (directory.path / EVENTS).stat().st_size
        with target.ground.site.typing("resume", target.search.name) as successor:
            successor.until(lambda: _has_reported(directory, place), "a report of the driver that took over")
            survived = any(process.is_running() for process in found)  # a fault before may have cost it its node
            _wake(found)
            yield f"driver on {target.head} frozen, taken over on the login node, and woken up"
            until(lambda: not target.search.jobs_in_queue(), "the end of the frozen driver's job", pause=0.5)
            if successor.poll() is None:
                successor.signal(signal.SIGINT)
            assert successor.wait() in (0, Paused.exit_code), f"the driver that took over: {successor.err}"
        told = target.search.said.count(_TAKEN_OVER) > said
        assert told or not survived, "the driver that woke up did not say why it ended"
    finally:
        _wake(found)


def _has_reported(directory: SearchDirectory, place: int) -> bool:
    return any(event["kind"] == "report" for event, _ in directory.events(place))


def _wake(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@contextmanager
def _move_folder(target: Target) -> Iterator[str]:
    here = target.search.directory.path
    there, remains = here.with_name(f"moved-{here.name}"), here.with_name(f".remains-{here.name}")
    here.rename(there)
    yield "the search's folder moved, and back when its job had ended"
    until(lambda: not target.search.jobs_in_queue(), "the end of its job", pause=0.5)
    made = here.exists()
    if made:
        here.rename(remains)
    there.rename(here)
    if made:
        what = sorted(str(path.relative_to(remains)) for path in remains.rglob("*"))
        raise AssertionError(f"{here.name} was made again: {', '.join(what[:9])}")


FAULTS = {
    "driver": Fault(_killing(_DRIVER, "driver", on_head=True), ends="always"),
    "trial": Fault(_kill_trial),
    "raylet": Fault(_killing(_RAYLET, "raylet"), ends="on the head", takes=True),
    "store": Fault(_killing(_STORE, "Ray's store", on_head=True), ends="always"),
    "node": Fault(_kill_node, ends="on the head", takes=True),
    "everything": Fault(_kill_everything, ends="always"),
    "cancelled": Fault(_cancel, ends="always"),
    "network": Fault(_cut_off, lasts=True),
    "full disk": Fault(_fill_disk, lasts=True),
    "slow disk": Fault(_slow_disk, lasts=True),
    "clock": Fault(_wrong_clock, lasts=True),
    "mlflow": Fault(_without_mlflow, lasts=True),
    "damaged line": Fault(_damage_line, ends="always"),
    "frozen driver": Fault(_freeze_driver, ends="always", taken_over=True),
    "moved folder": Fault(_move_folder, ends="always"),
}


def _is_called(process: psutil.Process, name: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return bool(words) and (words[0].endswith(f"/{name}") or name in words)
