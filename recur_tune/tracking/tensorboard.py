"""TensorBoard's event files of a search: a run for each trial, and one for the search itself.

They hold the log's numbers in the log's units. A later write only appends, so a running TensorBoard reads the rest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tensorboardX.proto.event_pb2 import Event as Record
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import hparams, scalar

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_bytes, writing
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import front, search_hypervolume
from recur_tune.search.record.state import ENDED, Event, SearchState, TrialRecord
from recur_tune.tracking.mlflow.run_updates import reported

EVENT_FILE = "events.out.tfevents.recur-tune"  # TensorBoard looks for `tfevents`
SEARCH = "search"  # the search's own run, among T0, T1 and so on
_VERSION = "brain.Event:2"  # the first record of every event file


class Value(NamedTuple):
    """One value of a curve."""

    name: str
    value: float
    time: float | None  # in seconds since the epoch
    step: int


def write_event_files(directory: SearchDirectory, folder: Path) -> Path:
    """Write a search's runs below a folder; gives the search's own folder there."""
    place = folder / directory.name
    if place.resolve() == directory.path.resolve():
        raise UserError(f"tensorboard: {folder} is where the search itself lies; give another folder.")
    state, values = _read(directory)
    begun = [trial for trial in (*state.trials.values(), *state.repeats.values()) if trial.started or trial.ended]
    if not begun:
        raise UserError(f"name: no trial of {directory.name} has begun yet, so TensorBoard has nothing to show.")
    written = {_write(place / SEARCH, _curves(state.started, values[SEARCH]))}
    for trial in begun:
        time = trial.started or trial.ended  # an infeasible trial ends without a start
        costs = [Value(name, cost, time, 0) for name, cost in trial.costs.items()]
        records = [*_curves(time, costs + values[trial.name]), *_session(trial)]
        written.add(_write(place / trial.name, records))
    with writing(place):
        for other in set(place.glob(f"*/{EVENT_FILE}")) - written:  # of an earlier search that had this name
            other.unlink()
    return place


def _read(directory: SearchDirectory) -> tuple[SearchState, dict[str, list[Value]]]:
    """A search's state and its values by run, in the order of the log."""
    state, values = SearchState(), defaultdict[str, list[Value]](list)
    for event in directory.history()[0]:
        state.apply(event)
        if event["kind"] == "report":
            trial = state.record(event["trial"])
            values[trial.name] += _finite(reported(event), event, trial.tokens)
        if event.get("state") in ENDED and event["trial"] in state.trials:
            objectives = directory.spec.objectives
            best = front(state.trials.values(), objectives)
            metrics = {"hypervolume": search_hypervolume(state, objectives), "front_size": len(best)}
            values[SEARCH] += _finite(metrics, event, sum(1 for _ in state.in_state(*ENDED)))
    return state, values


def _finite(values: Mapping[str, Any], event: Event, step: int) -> list[Value]:
    return [
        Value(name, value, event["time"], step)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    ]


def _curves(begun: float | None, values: Iterable[Value]) -> Iterator[Record]:
    """All values in the order of the log. A trial that was resumed from a checkpoint reports some steps again: a START
    record makes TensorBoard drop what came after that step."""
    yield Record(wall_time=begun, file_version=_VERSION)
    latest = 0
    for name, value, time, step in values:
        if 0 < step < latest:  # the costs at step 0 stay
            yield Record(wall_time=time, step=step, session_log=SessionLog(status=SessionLog.START))
        yield Record(wall_time=time, step=step, summary=scalar(name, value))
        latest = step or latest


def _session(trial: TrialRecord) -> Iterator[Record]:
    """Hyperparameters of an ended trial, with its state: TensorBoard shows a pruned trial's last value beside those of
    complete ones, and has no other place for it."""
    if trial.state not in ENDED:
        return
    besides = {"state": trial.state, "role": trial.role or None, "seed": trial.seed}
    told = {name: value for name, value in besides.items() if value is not None}
    # Without the list of all hyperparameters: TensorBoard would use the first trial's list for all.
    _, session, _ = hparams(trial.params | told, {})
    yield Record(wall_time=trial.ended, summary=session)


def _write(folder: Path, records: Iterable[Record]) -> Path:
    """Write a run's file; append to one that is a prefix of the new content."""
    path, content = folder / EVENT_FILE, _framed(records)
    with writing(path):
        before = path.read_bytes() if path.exists() else b""
        if before and content.startswith(before):
            with path.open("ab") as file:
                file.write(content.removeprefix(before))
            return path
    write_bytes(path, content)
    return path


def _framed(records: Iterable[Record]) -> bytes:
    with TemporaryDirectory(prefix="recur-tune-") as scratch:
        path = Path(scratch) / EVENT_FILE
        writer = RecordWriter(str(path))
        for record in records:
            writer.write(record.SerializeToString())
        writer.close()
        return path.read_bytes()
