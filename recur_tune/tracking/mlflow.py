"""The one writer to MLflow: it reads a search's log and delivers what is new.

The log is the spool, and `mlflow.json` beside it says how far it is delivered. So a server that cannot be reached
stops nothing and loses nothing: the same thread, a resumed search or a single command delivers the rest later. A
process may die between a call to MLflow and the note of it, so all that is sent may be sent again: metrics carry
their event's time, and a run is looked for before it is made.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recur_tune.errors import UserError
from recur_tune.files import write_text
from recur_tune.searching.directory import SearchDirectory
from recur_tune.searching.front import front_rows
from recur_tune.searching.spec import SearchSpec
from recur_tune.searching.state import Event, SearchState, TrialRecord, replay
from recur_tune.tracking.news import News, Point, RunNews, milliseconds

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "recur-tune"
DELIVERED = "mlflow.json"
FRONT_TABLE = "front.json"
EVENTS_PER_PASS = 500
PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds between deliveries, and the most after failures

# Only where the user has not decided otherwise. MLflow's own patience is minutes, ours is the next delivery.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class Undelivered(UserError):
    """MLflow did not take what the log holds; nothing is lost, a later delivery tries again."""


def tracking_uri(directory: SearchDirectory) -> str:
    """The server that the search names, else an SQLite file that all searches of the results folder share."""
    return directory.spec.tracking or f"sqlite:///{directory.path.absolute().parent / 'mlflow.db'}"


@dataclass
class Delivered:
    """What `mlflow.json` remembers."""

    uri: str
    experiment: str = ""
    parent: str = ""
    offset: int = 0  # in the log: everything before it is at the server
    runs: dict[int, str] = field(default_factory=dict)  # run ids by the trials' numbers
    front: list[int] = field(default_factory=list)  # trials tagged as on the front
    table: list[int] = field(default_factory=list)  # the front whose table the server has

    def page(self, run: str) -> str:
        """Where a run is shown below MLflow's own address."""
        return f"#/experiments/{self.experiment}/runs/{run}"

    @classmethod
    def read(cls, path: Path, uri: str) -> Delivered:
        """The file's content; where it is missing, broken or about another server, nothing is delivered yet."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            fields = json.loads(path.read_text())
            if fields["uri"] == uri:
                return cls(**fields | {"runs": {int(number): run for number, run in fields["runs"].items()}})
        return cls(uri)


class Tracker:
    """Delivers a search's log to MLflow; only the process that holds the search's lock may have one."""

    def __init__(self, directory: SearchDirectory) -> None:
        self.directory = directory
        self.uri = tracking_uri(directory)
        self.problem: str | None = None  # what kept the thread's latest delivery from arriving
        self._spec, self._identity = directory.spec, directory.identity
        self._turn = threading.Lock()  # the thread and its owner take turns
        self._closing, self._out_of_time = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._forget()

    @property
    def run_url(self) -> str | None:
        """The search's page in MLflow's UI, None where there is no server or nothing has reached it yet."""
        if not is_server(self.uri) or not self._delivered.parent:
            return None
        return f"{without_password(self.uri).rstrip('/')}/{self.page}"

    @property
    def page(self) -> str:
        """Where the search's run is shown below MLflow's own address; its front page while nothing has arrived."""
        return self._delivered.page(self._delivered.parent) if self._delivered.parent else ""

    def start(self, after: float = 0.0) -> None:
        """Deliver in the background, beginning after so many seconds."""
        self._thread = threading.Thread(target=self._deliver_until_closed, args=(after,), name="mlflow", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 30.0) -> bool:
        """Deliver a last time and end the thread; True when everything was delivered within so many seconds."""
        self._closing.set()
        if self._thread is None:
            self.start()  # whoever never started it is bounded in time all the same
        assert self._thread is not None
        self._thread.join(timeout)
        self._out_of_time.set()
        return not self._thread.is_alive() and self.problem is None

    def deliver(self) -> bool:
        """Send everything new in the log; False when `close` ran out of time before its end."""
        with self._turn, self._one_sentence_on_failure():
            client = self._connect()
            while events := list(islice(self.directory.events(self._delivered.offset), EVENTS_PER_PASS)):
                if self._out_of_time.is_set():
                    return False
                self._deliver_events(client, events)
            if self._delivered.table != self._delivered.front:
                self._deliver_table(client)
            return True

    def log_files(self, paths: list[Path]) -> None:
        """Put files beside the search's run."""
        with self._turn, self._one_sentence_on_failure():
            client = self._connect()
            for path in paths:
                client.log_artifact(self._delivered.parent, str(path))

    def _deliver_until_closed(self, after: float) -> None:
        self._closing.wait(after)
        pause = PAUSE
        while not self._closing.is_set():
            arrived = self._try_to_deliver()
            self._closing.wait(PAUSE if arrived else pause)
            pause = PAUSE if arrived else min(2 * pause, LONGEST_PAUSE)
        self._try_to_deliver()

    def _try_to_deliver(self) -> bool:
        try:
            self.problem = None if self.deliver() else "There was no time left for the last delivery to MLflow."
        except Exception as error:  # whatever it is, the search goes on
            self.problem = str(error)
        return self.problem is None

    @contextmanager
    def _one_sentence_on_failure(self) -> Iterator[None]:
        """MLflow, databases and networks raise all kinds; after any of them the next try begins afresh."""
        try:
            yield
        except Exception as error:
            self._forget()
            if isinstance(error, UserError):
                raise
            raise Undelivered(
                f"MLflow at {without_password(self.uri)} did not take the records of {self.directory.name} "
                f"({_reason(error)}); they are kept and can be delivered later."
            ) from error

    def _forget(self) -> None:
        """Drop what is only in memory: a call that failed may have arrived, and the files and the server know."""
        self._delivered = Delivered.read(self.directory.path / DELIVERED, self.uri)
        self._client: MlflowClient | None = None
        self._state: SearchState | None = None
        self._children_known = False

    def _save(self) -> None:
        write_text(self.directory.path / DELIVERED, json.dumps(asdict(self._delivered)) + "\n")

    def _connect(self) -> MlflowClient:
        """The client, after making sure that the server has the search's run."""
        if self._client is None:
            client = _quiet_client(self.uri)
            if not self._delivered.parent or not _is_active(client, self._delivered.parent):
                # A server without the run that we knew gets everything, from the log's beginning.
                self._delivered = self._find_or_create_parent(client)
                self._save()
            self._client = client
        return self._client

    def _find_or_create_parent(self, client: MlflowClient) -> Delivered:
        experiment = self._find_or_create_experiment(client)
        found = client.search_runs([experiment], f"tags.`recur_tune.search_id` = '{self._identity['id']}'")
        run = found[0] if found else self._create_parent(client, experiment)
        # A resumed search may have a larger budget, and MLflow's parameters keep their first value.
        params = {name: value for name, value in _search_params(self._spec).items() if name not in run.data.params}
        _log(client, run.info.run_id, params=params)
        return Delivered(self.uri, experiment, run.info.run_id)

    def _create_parent(self, client: MlflowClient, experiment: str) -> Run:
        tags = {
            "recur_tune.search_id": self._identity["id"],
            "recur_tune.version": self._identity["version"],
            "mlflow.source.name": EXPERIMENT,
        }
        return client.create_run(experiment, milliseconds(self._identity["created"]), tags, self.directory.name)

    def _find_or_create_experiment(self, client: MlflowClient) -> str:
        """A database has no place for files, and MLflow would put them in the current folder."""
        if experiment := client.get_experiment_by_name(EXPERIMENT):
            return experiment.experiment_id
        files = None if is_server(self.uri) else (self.directory.path.absolute().parent / "mlartifacts").as_uri()
        return client.create_experiment(EXPERIMENT, files)

    def _deliver_events(self, client: MlflowClient, events: list[tuple[Event, int]]) -> None:
        """Send what some events say, then note it."""
        news = News(self._state or self._delivered_state(), self._spec.objectives)
        for event, _ in events:
            news.take(event)
        best = news.front
        for number in set(best) ^ set(self._delivered.front):
            news.trials.setdefault(number, RunNews())
        for number, trial_news in news.trials.items():
            self._deliver_trial(client, news.state.trials[number], trial_news, number in best)
        _log(client, self._delivered.parent, news.search.points)
        _set_status(client, self._delivered.parent, news.search)
        self._delivered.front, self._delivered.offset = best, events[-1][1]
        self._save()
        self._state = news.state

    def _delivered_state(self) -> SearchState:
        return replay(event for event, after in self.directory.events() if after <= self._delivered.offset)

    def _deliver_trial(self, client: MlflowClient, trial: TrialRecord, news: RunNews, on_front: bool) -> None:
        from mlflow.exceptions import MlflowException

        run = self._find_or_create_child(client, trial, news)
        tags = {
            "pareto": str(on_front).lower(),
            "recur_tune.state": trial.state,
            "recur_tune.role": trial.role,
            "recur_tune.reason": trial.reason,
            "recur_tune.folder": str(self.directory.trial(trial.number)),
        }
        params = self._spec.trial_config(trial.params).model_dump() if news.begins else {}
        try:
            _log(client, run, news.points, params, tags)
            _set_status(client, run, news)
        except MlflowException:
            if _is_active(client, run):
                raise
            # Somebody deleted this run in MLflow; the others are wanted all the same.

    def _find_or_create_child(self, client: MlflowClient, trial: TrialRecord, news: RunNews) -> str:
        """A trial's run. One that is not noted can exist only where this tracker has not made all runs itself."""
        runs = self._delivered.runs
        if trial.number not in runs and not self._children_known:
            runs |= _children(client, self._delivered.experiment, self._delivered.parent)
            self._children_known = True
        if trial.number not in runs:
            start = milliseconds(trial.started or news.changed)  # what is infeasible ends without a start
            tags = {"mlflow.parentRunId": self._delivered.parent, "recur_tune.trial": str(trial.number)}
            run = client.create_run(self._delivered.experiment, start, tags, trial.name)
            runs[trial.number] = run.info.run_id
        return runs[trial.number]

    def _deliver_table(self, client: MlflowClient) -> None:
        """The front as a file, noted apart from the log: a server that takes no files still gets the numbers."""
        rows = front_rows(self._state or self._delivered_state(), self._spec.objectives)
        client.log_text(self._delivered.parent, json.dumps(rows, indent=2), FRONT_TABLE)
        self._delivered.table = self._delivered.front
        self._save()


def _quiet_client(uri: str) -> MlflowClient:
    """A client that fails soon and leaves the terminal to the search."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for talkative in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(talkative).setLevel(logging.ERROR)
    return MlflowClient(uri)


def _children(client: MlflowClient, experiment: str, parent: str) -> dict[int, str]:
    """The run ids of the trials that the server has, by the trials' numbers."""
    runs: dict[int, str] = {}
    token = None
    while True:
        page = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'", page_token=token)
        runs |= {int(run.data.tags["recur_tune.trial"]): run.info.run_id for run in page}
        if not page.token:
            return runs
        token = page.token


def _is_active(client: MlflowClient, run: str) -> bool:
    """Whether the server has the run, and nobody has deleted it."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run).info.lifecycle_stage == "active"
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


def _log(
    client: MlflowClient,
    run: str,
    points: Iterable[Point] = (),
    params: Mapping[str, Any] = {},
    tags: Mapping[str, str] = {},
) -> None:
    """Send a run's values in as few calls as possible; what is None or empty says nothing."""
    from mlflow.entities import Metric, Param, RunTag

    client.log_batch(
        run,
        [Metric(*point) for point in points],
        [Param(name, str(value)) for name, value in params.items() if value is not None],
        [RunTag(name, value) for name, value in tags.items() if value],
        synchronous=True,
    )


def _set_status(client: MlflowClient, run: str, news: RunNews) -> None:
    if news.status == "RUNNING":
        client.update_run(run, news.status)
    elif news.status is not None:
        client.set_terminated(run, news.status, milliseconds(news.changed))


def _search_params(spec: SearchSpec) -> dict[str, Any]:
    """What a person compares searches by."""
    sections = spec.model_dump(include={"budget", "sampler", "resources", "limits"})
    flat = {f"{section}.{name}": value for section, fields in sections.items() for name, value in fields.items()}
    return {"objectives": ", ".join(spec.objectives), **flat}


def is_server(uri: str) -> bool:
    """Whether runs lie with a server, which has pages to show them, and not in a file."""
    return uri.startswith(("http://", "https://"))


def without_password(text: str) -> str:
    """An address as it may be shown."""
    return re.sub(r"//[^/\s@]*@", "//", text)


def _reason(error: BaseException) -> str:
    """The system's own words where there are any under MLflow's, else the beginning of MLflow's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    words = without_password(" ".join(str(error).split())) or type(error).__name__
    return words if len(words) <= 200 else f"{words[:200]}..."
