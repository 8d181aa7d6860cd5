"""Whatever is delivered again, by whom and after which failure: MLflow has everything once."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from recur_tune.search.record import lease
from recur_tune.search.record.directory import EVENTS, LEASE, SearchDirectory
from recur_tune.search.record.event_log import append
from recur_tune.tracking.mlflow import tracker as tracking
from recur_tune.tracking.mlflow.tracker import DeliveryFailed, Tracker
from tests.database import empty_database
from tests.tracking.tracked import Seen, complete, report, rich_search, search
from tests.tracking.unheard import Unheard

pytestmark = pytest.mark.slow


def test_parameters_that_an_earlier_version_wrote_in_another_way_stay(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = rich_search(results)
    with monkeypatch.context() as earlier:
        earlier.setattr(tracking, "trial_params", lambda spec, trial: {"learning_rate": "3.00000000001e-4"})
        Tracker(directory).deliver()
    (directory.path / "mlflow.json").unlink()
    assert Tracker(directory).deliver()
    params = Seen(directory).children()["T2"].data.params
    assert (params["learning_rate"], params["window"]) == ("3.00000000001e-4", "42")


def test_one_delivery_says_the_same_as_many(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "EVENTS_PER_PASS", 1)
    directory = rich_search(results)
    Tracker(directory).deliver()
    one_by_one = Seen(directory).everything()
    (directory.path / "mlflow.json").unlink()
    monkeypatch.setattr(tracking, "EVENTS_PER_PASS", 500)
    Tracker(directory).deliver()
    assert Seen(directory).everything() == one_by_one


@pytest.mark.parametrize("lost", ["nothing", "the file", "the offset", "the runs", "half the file"])
def test_delivering_again_changes_nothing(results: Path, lost: str) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    before = Seen(directory).everything()
    note = directory.path / "mlflow.json"
    content = json.loads(note.read_text())
    changed = {"nothing": {}, "the offset": {"offset": 0}, "the runs": {"offset": 0, "runs": {}}}
    if lost == "the file":
        note.unlink()
    else:
        note.write_text(json.dumps(content | changed.get(lost, {})))
    if lost == "half the file":
        note.write_text(note.read_text()[:40])

    assert Tracker(directory).deliver()
    assert Seen(directory).everything() == before
    assert json.loads(note.read_text()) == content


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ConnectionError])  # a death, an answer that was lost
@pytest.mark.parametrize("call", ["create_run", "log_batch", "set_terminated", "update_run", "log_text"])
def test_a_call_that_arrived_unnoted_duplicates_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch, call: str, fault: type[BaseException]
) -> None:
    """Every such call goes wrong once, after it arrived; then another tracker, or the same one, tries again."""
    monkeypatch.setattr(tracking, "EVENTS_PER_PASS", 7)
    directory = rich_search(results)
    with monkeypatch.context() as faulty:
        unheard = Unheard(faulty, call, fault)
        tracker, delivered = Tracker(directory), False
        while not delivered:
            unheard.try_again()
            try:
                delivered = tracker.deliver()
            except KeyboardInterrupt:
                tracker = Tracker(directory)
            except DeliveryFailed:
                pass
    assert unheard.faults > 0
    survived = Seen(directory).everything()
    assert len(survived) == 7
    (directory.path / "mlflow.json").unlink()
    Tracker(directory).deliver()
    assert Seen(directory).everything() == survived


def taken_over(directory: SearchDirectory) -> None:
    """As the server lets another process do it."""
    numbers = [int(file.name) for file in (directory.path / LEASE).iterdir() if file.name.isdigit()]
    (directory.path / LEASE / str(max(numbers) + 1)).touch()


def test_a_driver_that_lost_its_lease_delivers_nothing_more(results: Path) -> None:
    directory = search(results)
    with directory.hold_lease():
        tracker = Tracker(directory)
        tracker.deliver()
        before, note = Seen(directory).everything(), (directory.path / "mlflow.json").read_text()
        taken_over(directory)
        trial = {"time": 1e9, "trial": 1, "params": {"window": 40}, "costs": {}}
        for kind in ("trial", "running"):
            append(directory.path / EVENTS, trial | {"kind": kind})
        with pytest.raises(DeliveryFailed, match="another process has taken over"):
            tracker.deliver()
        with pytest.raises(DeliveryFailed, match="another process has taken over"):
            tracker.log_files([])
        assert "another process has taken over" in tracker.finish([])
    assert Seen(directory).everything() == before
    assert (directory.path / "mlflow.json").read_text() == note


@pytest.mark.parametrize("other_first", [True, False])
def test_a_driver_that_is_frozen_in_a_call_leaves_one_run_of_a_trial(
    results: Path, monkeypatch: pytest.MonkeyPatch, other_first: bool
) -> None:
    """It asks for a run and is frozen; another driver takes over and delivers, before the call arrives or after."""
    directory = search(results)
    successor = Tracker(directory)
    create = MlflowClient.create_run

    def frozen(client: MlflowClient, *arguments: Any) -> Run:
        monkeypatch.setattr(MlflowClient, "create_run", create)
        taken_over(directory)
        if other_first:
            with monkeypatch.context() as elsewhere:  # another process, which knows nothing of this one's lease
                elsewhere.setattr(lease, "_leases", {})
                successor.deliver()
        return create(client, *arguments)

    monkeypatch.setattr(tracking, "one_writer", lambda uri: nullcontext())  # as on a server, which takes calls of both
    with directory.hold_lease():
        tracker = Tracker(directory)
        tracker.deliver()
        successor = Tracker(directory)
        complete(directory, 1, perplexity=50.0)
        monkeypatch.setattr(MlflowClient, "create_run", frozen)
        with pytest.raises(DeliveryFailed, match="another process has taken over"):
            tracker.deliver()
    successor.deliver()
    assert {name: run.info.status for name, run in Seen(directory).children().items()} == {"T1": "FINISHED"}


def test_a_log_that_was_shortened_is_delivered_from_its_beginning(results: Path) -> None:
    directory = search(results)
    complete(directory, 1, perplexity=50.0)
    Tracker(directory).deliver()
    file = directory.path / EVENTS
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))  # its end, which MLflow has
    report(directory, 1, 1000, 60.0, state="complete")
    complete(directory, 2, perplexity=40.0)
    Tracker(directory).deliver()
    assert Seen(directory).on_front == {"T2"} and set(Seen(directory).children()) == {"T1", "T2"}


def test_a_resumed_search_may_have_a_larger_budget(results: Path) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    spec = directory.spec
    directory.change_spec(spec.model_copy(update={"budget": spec.budget.model_copy(update={"trials": 50})}))
    (directory.path / "mlflow.json").unlink()
    assert Tracker(directory).deliver()
    assert Seen(directory).parent.data.params["budget.trials"] == "5"


def test_a_run_that_somebody_deleted_keeps_nothing_else_from_arriving(results: Path) -> None:
    directory = search(results)
    tracker = Tracker(directory)
    complete(directory, 1, perplexity=50.0)
    tracker.deliver()
    [trial] = Seen(directory).children().values()
    Seen(directory).client.delete_run(trial.info.run_id)
    complete(directory, 2, perplexity=40.0)  # the deleted run leaves the front
    assert tracker.deliver()
    assert set(Seen(directory).children()) == Seen(directory).on_front == {"T2"}


def test_a_new_database_gets_everything(results: Path) -> None:
    directory = rich_search(results)
    Tracker(directory).deliver()
    other = results / "other.db"
    empty_database(other)
    directory.change_spec(directory.spec.model_copy(update={"tracking": f"sqlite:///{other}"}))
    Tracker(directory).deliver()
    seen = Seen(directory)
    assert len(seen.children()) == 6
    seen.client.delete_run(seen.parent.info.run_id)
    Tracker(directory).deliver()
    assert len(seen.children()) == 6


def test_a_first_delivery_makes_the_database_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = rich_search(tmp_path / "results")
    with monkeypatch.context() as unloaded:  # whoever asked for any part of MLflow would hear of it
        for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
            unloaded.setitem(sys.modules, name, None)
        tracker = Tracker(directory)
    tracker.deliver()
    assert capfd.readouterr() == ("", "")
    assert len(Seen(directory).children()) == 6
