"""Tracker: reads a search's log and delivers new events to MLflow; the only writer there.

The log is the spool, and `mlflow.json` beside it holds the delivered offset. So a server that is down stops nothing and
loses nothing: the same thread, a resumed search or `recur-tune track` delivers the rest later. A process may die
between a call and its record, so every call can be repeated: metrics carry their event's time, and a run is looked up
before it is created.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_text
from recur_tune.report.front_files import draw_front, smaller
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import front_rows
from recur_tune.search.record.lease import FolderGone, Lost
from recur_tune.search.record.state import Event, SearchState, TrialRecord
from recur_tune.search.record.subject import corpus_of, trial_params
from recur_tune.search.record.tracking_place import (
    DELIVERED,
    NOTE,
    PICTURE,
    Delivered,
    is_server,
    tracking_uri,
    without_password,
)
from recur_tune.tracking.mlflow.calls import (
    children,
    has_another_run,
    is_active,
    log_run,
    quiet_client,
    reason,
    set_status,
)
from recur_tune.tracking.mlflow.database import REBUILD, is_damaged, one_writer
from recur_tune.tracking.mlflow.datasets import dataset_inputs
from recur_tune.tracking.mlflow.description import search_note, trial_note
from recur_tune.tracking.mlflow.models import FrontModels
from recur_tune.tracking.mlflow.run_updates import LogUpdates, RunUpdate
from recur_tune.tracking.mlflow.runs import create_trial, find_or_create_search
from recur_tune.tracking.mlflow.system_metrics import SystemMetrics
from recur_tune.tracking.mlflow.views import SEARCHES, view_address

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow import MlflowClient

FRONT_TABLE = "front.json"
EVENTS_PER_PASS = 500
PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds between deliveries, and the most after failures
FIGURES_APART = 300.0  # seconds between figures: the interactive one has megabytes


class DeliveryFailed(UserError):
    """MLflow did not accept a delivery; nothing is lost, and a later delivery retries."""


class Tracker:
    """Delivers a search's log to MLflow; only the process that holds the search's lease may have one."""

    def __init__(self, directory: SearchDirectory) -> None:
        self.directory = directory
        self.uri = tracking_uri(directory)
        self.problem: str | None = None  # why the thread's latest delivery failed
        self._spec = directory.spec
        self._turn = threading.Lock()  # the thread and its owner exclude each other
        self._closing, self._out_of_time = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._machine = SystemMetrics(self.uri)
        self._next_figures = 0.0  # earliest time, on the monotonic clock
        self._forget()

    @property
    def run_url(self) -> str | None:
        """The search's page in MLflow's UI, None where there is no server or nothing has reached it yet."""
        if not is_server(self.uri) or not self._delivered.parent:
            return None
        return f"{without_password(self.uri).rstrip('/')}/{self.page}"

    @property
    def page(self) -> str:
        """Path of the search's run below MLflow's address; empty while nothing is delivered."""
        return self._delivered.page(self._delivered.parent) if self._delivered.parent else ""

    @property
    def run_list(self) -> str:
        """Path of the list of all searches' runs below MLflow's address; empty while nothing is delivered."""
        return view_address(self._delivered, SEARCHES) if self._delivered.parent else ""

    def start(self, after: float = 0.0) -> None:
        """Deliver in the background, beginning after so many seconds."""
        self._thread = threading.Thread(target=self._deliver_until_closed, args=(after,), name="mlflow", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 30.0) -> bool:
        """Deliver a last time and end the thread; True when everything was delivered within so many seconds."""
        self._closing.set()
        if self._thread is None:
            self.start()  # so that the timeout holds for a tracker that was never started
        assert self._thread is not None
        self._thread.join(timeout)
        self._out_of_time.set()
        return not self._thread.is_alive() and self.problem is None

    def finish(self, files: list[Path]) -> str:
        """Deliver the rest and an ended search's files; a sentence where that fails, which `recur-tune track` mends."""
        try:
            if not self.close():
                raise DeliveryFailed(self.problem or "it took too long")
            self.log_files(files)
        except DeliveryFailed as error:
            return f"MLflow has not got everything ({error}); `recur-tune track {self.directory.name}` delivers it."
        return ""

    def deliver(self) -> bool:
        """Send everything new in the log; False when `close` ran out of time before its end."""
        with self._turn, self._one_sentence_on_failure():
            self.directory.check_lease()
            if self._client is not None and self._is_up_to_date:
                return True
            return self._deliver_all()

    def _deliver_all(self) -> bool:
        with one_writer(self.uri):
            client = self._connect()
            while events := list(islice(self.directory.events(self._delivered.offset), EVENTS_PER_PASS)):
                if self._out_of_time.is_set():
                    return False
                self.directory.check_lease()
                self._deliver_events(client, events)
            if self._delivered.table != self._delivered.front:
                self._deliver_table(client)
            return True

    @property
    def _is_up_to_date(self) -> bool:
        """Whether there is nothing to deliver; then no lease is taken."""
        new = next(self.directory.events(self._delivered.offset), None)
        return new is None and self._delivered.table == self._delivered.front

    def log_files(self, paths: list[Path]) -> None:
        """Log an ended search's files as artifacts, and the models of its front."""
        with self._turn, self._one_sentence_on_failure(), one_writer(self.uri):
            self.directory.check_lease()
            client = self._connect()
            self._log_files(client, paths)
            self._log_models(client)

    def _log_models(self, client: MlflowClient) -> None:
        from mlflow.exceptions import MlflowException

        models = FrontModels(client, self.directory, self._spec, self._delivered)
        try:
            models.deliver(self.directory.state())
        except MlflowException as error:
            if error.error_code != "ENDPOINT_NOT_FOUND":
                raise
            # A server before MLflow 3 has no logged models.

    def _log_files(self, client: MlflowClient, paths: Iterable[Path]) -> None:
        for path in paths:
            client.log_artifact(self._delivered.parent, str(path))
            if path.name == PICTURE:
                self._log_small_picture(client, path)

    def _log_small_picture(self, client: MlflowClient, picture: Path) -> None:
        """Show a small picture in the search's description, always at the same address."""
        with TemporaryDirectory(prefix="recur-tune-") as folder:
            client.log_artifact(self._delivered.parent, str(smaller(picture, Path(folder))))
        if not self._delivered.pictured:
            self._delivered.pictured = True
            self._save()
            log_run(client, self._delivered.parent, tags=self._note(self._state or self._delivered_state()))

    def _deliver_until_closed(self, after: float) -> None:
        self._closing.wait(after)
        pause = PAUSE
        while not self._closing.is_set():
            arrived = self._try(self._deliver_with_figures)
            self._closing.wait(PAUSE if arrived else pause)
            pause = PAUSE if arrived else min(2 * pause, LONGEST_PAUSE)
        self._machine.end()
        self._try(self.deliver)

    def _try(self, deliver: Callable[[], bool]) -> bool:
        try:
            self.problem = None if deliver() else "There was no time left for the last delivery to MLflow."
        except Exception as error:  # no failure of MLflow may stop the search
            self.problem = str(error)
        return self.problem is None

    def _deliver_with_figures(self) -> bool:
        """Deliver a running search's log, its figures now and then, and system metrics."""
        arrived = self.deliver()
        with self._turn, self._one_sentence_on_failure():
            delivered = self._delivered
            self._machine.keep_going(delivered.parent)
            if delivered.front != delivered.figures and time.monotonic() >= self._next_figures:
                self._next_figures = time.monotonic() + FIGURES_APART
                with one_writer(self.uri), TemporaryDirectory(prefix="recur-tune-") as folder:
                    state = self._state or self._delivered_state()
                    drawn = draw_front(self.directory.name, self._spec, state, Path(folder))
                    self._log_files(self._connect(), drawn)
                delivered.figures = delivered.front
                self._save()
        return arrived

    @contextmanager
    def _one_sentence_on_failure(self) -> Iterator[None]:
        """Turn any exception of MLflow, a database or a network into `DeliveryFailed`; the next try starts from the
        files."""
        try:
            yield
        except (Exception, FolderGone) as error:
            if isinstance(error, FolderGone | Lost):
                self._machine.end()  # it sends by itself
            self._forget()
            if isinstance(error, FolderGone):
                raise DeliveryFailed(f"{self.directory.path} is gone") from error
            if isinstance(error, UserError):  # already a sentence, as about a folder that cannot be written
                raise DeliveryFailed(str(error)) from error
            raise DeliveryFailed(
                f"MLflow at {without_password(self.uri)} did not take the records of {self.directory.name} "
                f"({reason(error)}); {_what_now(str(error))}."
            ) from error

    def _forget(self) -> None:
        """Drop the state in memory: a failed call may have arrived, and the files and the server know."""
        self._delivered = Delivered.read(self.directory.path / DELIVERED, self.uri)
        if self._delivered.before and self._delivered.before != self.directory.fingerprint(self._delivered.offset):
            self._delivered.offset = 0  # the log was shortened or mended: all of it is delivered again
        self._client: MlflowClient | None = None
        self._state: SearchState | None = None
        self._note_there: dict[str, str] = {}
        self._children_known = False
        self._params_there: dict[str, set[str]] = {}  # by run, where another tracker had made it

    def _save(self) -> None:
        self.directory.check_lease()  # another driver's record of what it delivered is not overwritten
        write_text(self.directory.path / DELIVERED, json.dumps(asdict(self._delivered)) + "\n")

    def _connect(self) -> MlflowClient:
        """The client, once the server has the search's run."""
        if self._client is None:
            client = quiet_client(self.uri)
            if not self._delivered.parent or not is_active(client, self._delivered.parent):
                # A server that lost the run gets everything again, from the log's beginning.
                self._delivered = find_or_create_search(client, self.directory, self._spec, self.uri)
                self._save()
            self._client = client
        return self._client

    def _deliver_events(self, client: MlflowClient, events: list[tuple[Event, int]]) -> None:
        """Send the updates of some events, then record the offset."""
        updates = LogUpdates(self._state or self._delivered_state(), self._spec.objectives)
        for event, _ in events:
            updates.take(event)
        best = updates.front
        for number in set(best) ^ set(self._delivered.front):
            updates.trials.setdefault(number, RunUpdate())
        for number, update in updates.trials.items():
            self.directory.check_lease()
            self._deliver_trial(client, updates.state.record(number), update, number in best)
        note = self._note(updates.state)
        self.directory.check_lease()
        log_run(client, self._delivered.parent, updates.search.points, tags=note if note != self._note_there else {})
        self._note_there = note
        set_status(client, self._delivered.parent, updates.search)
        self._delivered.front, self._delivered.offset = best, events[-1][1]
        self._delivered.before = self.directory.fingerprint(self._delivered.offset)
        self._save()
        self._state = updates.state

    def _note(self, state: SearchState) -> dict[str, str]:
        return {NOTE: search_note(self.directory, self._spec, state, self._delivered)}

    def _delivered_state(self) -> SearchState:
        return self.directory.follow(until=self._delivered.offset).state

    def _deliver_trial(self, client: MlflowClient, trial: TrialRecord, update: RunUpdate, on_front: bool) -> None:
        from mlflow.exceptions import MlflowException

        run = self._find_or_create_child(client, trial, update)
        tags = {
            "state": trial.state,  # MLflow's status of a pruned trial is FINISHED
            "pareto": str(on_front).lower(),
            "recur_tune.role": trial.role or None,
            "recur_tune.workers": str(trial.workers),
            "recur_tune.reason": trial.reason or (None if update.begins else ""),  # of an earlier pause, say
            "recur_tune.folder": str(self.directory.trial(trial.number)),
            NOTE: trial_note(self.directory, self._spec, trial, on_front, self.page),
        }
        params = trial_params(self._spec, trial) if update.begins else {}
        # MLflow's parameters keep their first value, which an earlier version may have written in another way.
        params = {name: value for name, value in params.items() if name not in self._params_there.get(run, ())}
        try:
            log_run(client, run, update.points, params, tags)
            if update.begins:
                client.log_inputs(run, dataset_inputs(corpus_of(self._spec), self._delivered.corpus))
            set_status(client, run, update)
        except MlflowException:
            if is_active(client, run):
                raise
            # A user deleted this run in MLflow; the others are delivered all the same.

    def _find_or_create_child(self, client: MlflowClient, trial: TrialRecord, update: RunUpdate) -> str:
        """A trial's run. One that is not recorded may exist where another tracker has created runs."""
        runs, parent = self._delivered.runs, (self._delivered.experiment, self._delivered.parent)
        if trial.number not in runs:  # at first all are looked up at once
            found = children(client, *parent, trial.number if self._children_known else None)
            runs |= {number: run.info.run_id for number, run in found.items() if number not in runs}
            self._params_there |= {run.info.run_id: set(run.data.params) for run in found.values()}
            self._children_known = True
        if trial.number not in runs:
            self.directory.check_lease()
            start = trial.started or update.changed  # an infeasible trial ends without a start
            made = create_trial(client, self.directory, self._delivered, trial, start)
            try:
                self.directory.check_lease()
            except (Lost, FolderGone):  # while the call was under way: its successor may have made one too
                if has_another_run(client, *parent, trial.number, made):
                    client.delete_run(made)
                raise
            runs[trial.number] = made
        return runs[trial.number]

    def _deliver_table(self, client: MlflowClient) -> None:
        """The front as a file, recorded apart from the log: a server that refuses files still gets the metrics."""
        rows = front_rows(self._state or self._delivered_state(), self._spec.objectives)
        client.log_text(self._delivered.parent, json.dumps(rows, indent=2), FRONT_TABLE)
        self._delivered.table = self._delivered.front
        self._save()


def _what_now(error: str) -> str:
    return f"it is damaged, and {REBUILD}" if is_damaged(error) else "they are kept and can be delivered later"
