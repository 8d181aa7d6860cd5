"""TensorBoard's event files of a search: a run for each trial, and one for the search itself.

They hold the numbers that MLflow's runs do, and are made from the log alone. As the log grows, so do they: what is
written later begins with what was written before, and a TensorBoard that runs takes up the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorboardX.proto.event_pb2 import Event as Record
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import hparams, scalar

from recur_tune.errors import UserError
from recur_tune.files import whole_folder, writing
from recur_tune.searching.directory import SearchDirectory
from recur_tune.searching.state import ENDED, SearchState, TrialRecord
from recur_tune.tracking.news import News, Point

EVENT_FILE = "events.out.tfevents.recur-tune"  # TensorBoard looks for the middle of it; the end makes it ours
SEARCH = "search"  # the search's own run, among T0, T1 and so on
_VERSION = "brain.Event:2"  # what every event file begins with


def write_event_files(directory: SearchDirectory, folder: Path) -> Path:
    """Write a search's runs below a folder, as far as it has come; gives the search's own folder there."""
    place = folder / directory.name
    if place.resolve() == directory.path.resolve():
        raise UserError(f"tensorboard: {folder} is where the search itself lies; give another folder.")
    news = News(SearchState(), directory.spec.objectives)
    for event, _ in directory.events():
        news.take(event)
    if not news.trials:
        raise UserError(f"name: no trial of {directory.name} has begun yet, so TensorBoard has nothing to show.")
    written = {_write(place / SEARCH, _curves(news.state.started, news.search.points))}
    for number, trial_news in news.trials.items():
        trial = news.state.record(number)
        curves = _curves(trial.started or trial.ended, trial_news.points)  # what is infeasible ends without a start
        written.add(_write(place / trial.name, [*curves, *_session(trial)]))
    with writing(place):
        for other in set(place.glob(f"*/{EVENT_FILE}")) - written:  # of an earlier search that had this name
            other.unlink()
    return place


def _curves(begun: float | None, points: Iterable[Point]) -> Iterator[Record]:
    """All values in the order of the log. A trial that went on from a checkpoint says some things a second time:
    a start at that step is TensorBoard's word for forgetting what came after it."""
    yield Record(wall_time=begun, file_version=_VERSION)
    latest = 0
    for name, value, milliseconds, step in points:
        if 0 < step < latest:  # costs, which stand at step 0, void nothing
            yield Record(wall_time=milliseconds / 1000, step=step, session_log=SessionLog(status=SessionLog.START))
        yield Record(wall_time=milliseconds / 1000, step=step, summary=scalar(name, value))
        latest = step or latest


def _session(trial: TrialRecord) -> Iterator[Record]:
    """Hyperparameters of a trial that has ended, with how it did: TensorBoard shows a pruned trial's last value beside
    the values of those that went on, and has no other place to say so."""
    if trial.state not in ENDED:
        return
    besides = {"state": trial.state, "role": trial.role or None, "seed": trial.seed}
    told = {name: value for name, value in besides.items() if value is not None}
    # Alone, without the list of all hyperparameters: TensorBoard would take the first trial's list for everybody's.
    _, session, _ = hparams(trial.params | told, {})
    yield Record(wall_time=trial.ended, summary=session)


def _write(folder: Path, records: Iterable[Record]) -> Path:
    """Write a run's file; where it is there already and has only grown, the rest is added to it."""
    path, content = folder / EVENT_FILE, _framed(records)
    with writing(path):
        before = path.read_bytes() if path.exists() else b""
        if before and content.startswith(before):
            with path.open("ab") as file:
                file.write(content.removeprefix(before))
            return path
    with whole_folder(folder) as partial:
        (partial / EVENT_FILE).write_bytes(content)
    return path


def _framed(records: Iterable[Record]) -> bytes:
    with TemporaryDirectory(prefix="recur-tune-") as scratch:
        path = Path(scratch) / EVENT_FILE
        writer = RecordWriter(str(path))
        for record in records:
            writer.write(record.SerializeToString())
        writer.close()
        return path.read_bytes()
