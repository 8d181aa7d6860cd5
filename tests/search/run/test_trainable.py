"""What a trial leaves behind in the process that ran it."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recur_tune.models.pretrained import save_model
from recur_tune.search.run import trainable
from recur_tune.search.run.execution import train_in_actor
from recur_tune.search.run.trainable import Message, run_trial
from recur_tune.training import RESUME
from recur_tune.training.checkpoint import BEFORE, FILE
from recur_tune.training.loop import Diverged, Trainer
from tests.search.run.searches import make_world
from tests.tasks import FACTS_WORDS, small_encoder, word_tokenizer
from tests.training.runs import flip

_TRAINED = {"window": 8, "bptt_windows": 2, "batch": 2, "tokens": 400, "validate_every": 100, "validation_tokens": 200}


@pytest.fixture
def no_collections() -> Iterator[None]:
    """None but those that are asked for."""
    gc.disable()
    yield
    gc.unfreeze()  # a trial had it all set aside
    gc.enable()


def listen(message: Message) -> None:
    """To its end."""


def leave(message: Message) -> None:
    """As Ray Tune leaves a trial that others have beaten."""
    sys.exit()


def diverge(trainer: Trainer) -> Iterator[Any]:
    raise Diverged("the loss is not a number")
    yield


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(("report", "run"), [(listen, None), (leave, None), (listen, diverge)],
                         ids=["complete", "pruned", "diverged"])  # fmt: skip
def test_a_trial_is_destroyed_in_the_thread_that_ran_it(
    report: Callable[[Message], None], run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And before the next one begins: a recording must be."""
    make_world(tmp_path)
    left: list[weakref.ref[Trainer]] = []
    said: list[Message] = []
    set_up = trainable.set_up

    def remembered(*arguments: Any) -> Any:
        made = set_up(*arguments)
        made[0].itself = made[0]  # type: ignore[attr-defined] # what has a cycle waits for a collection
        left.append(weakref.ref(made[0]))
        return made

    def told(message: Message) -> None:
        said.append(message)
        report(message)

    monkeypatch.setattr(trainable, "set_up", remembered)
    if run is not None:
        monkeypatch.setattr(Trainer, "run", run)
    trial = _TRAINED | {"base": str(tmp_path / "base"), "corpus": f"text:{tmp_path / 'text'}", "l_ins": 1, "width": 4}
    folder = tmp_path / "search" / "trials" / "0"
    folder.mkdir(parents=True)

    def trained() -> None:
        with suppress(SystemExit):
            run_trial({"folder": str(folder), "trial": trial}, told)

    thread = threading.Thread(target=trained)
    thread.start()
    thread.join()
    assert said, "it came as far as a report"
    assert [one() for one in left] == [None]


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [[FILE], [FILE, BEFORE]], ids=["the latest", "all"])
def test_a_damaged_checkpoint_costs_a_trial_steps_and_nothing_else(damaged: list[str], tmp_path: Path) -> None:
    make_world(tmp_path)
    fields = {"base": str(tmp_path / "base"), "corpus": f"text:{tmp_path / 'text'}", "l_ins": 1, "width": 4}
    folder = tmp_path / "search" / "trials" / "0"
    folder.mkdir(parents=True)
    job = {"folder": str(folder), "trial": _TRAINED | fields}
    said: list[Message] = []

    def killed_after_two_checkpoints(message: Message) -> None:
        said.append(message)
        if sum(bool(one["validation"]) for one in said) == 2:
            sys.exit()

    with pytest.raises(SystemExit):
        run_trial(job, killed_after_two_checkpoints)
    for name in damaged:
        flip(folder / RESUME / name)
    again: list[Message] = []
    run_trial(job, again.append)
    first, *rest = again
    first_validation = next(one["tokens"] for one in said if one["validation"])
    words = "begins anew" if BEFORE in damaged else f"whole, after {first_validation} tokens"
    assert str(folder / RESUME / FILE) in first["notice"] and words in first["notice"]
    assert rest[-1]["state"] == "complete"
    expected = 0 if BEFORE in damaged else first_validation
    assert expected < rest[0]["tokens"] <= expected + 2 * 2 * 8, "it went on from the very checkpoint"


@pytest.mark.slow
def test_a_trial_on_questions_tells_what_it_leaves_out_and_is_scored(tmp_path: Path) -> None:
    tokenizer, folder = word_tokenizer(FACTS_WORDS), tmp_path / "search" / "trials" / "0"
    save_model(small_encoder(vocab_size=len(tokenizer)), tokenizer, tmp_path / "base")
    folder.mkdir(parents=True)
    trial = _TRAINED | {
        "base": str(tmp_path / "base"),
        "corpus": "facts",
        "window": 9,
        "question_tokens": 2,
        "width": 8,
    }
    said: list[Message] = []
    run_trial({"folder": str(folder), "trial": trial | {"bptt_windows": 4, "batch": 32}, "split": "test"}, said.append)
    notice, *_, last = said
    assert notice == {"notice": "questions cut, with more than 2 tokens: 4096."}
    assert last["state"] == "complete" and {"f1_error", "loss"} <= last["validation"].keys()
    assert last["scores"]["test"]["f1"] == pytest.approx(1 - last["scores"]["test"]["f1_error"])


def test_all_trials_of_an_actor_train_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[threading.Thread] = []
    monkeypatch.setattr(trainable, "run_trial", lambda job, report: trained.append(threading.current_thread()))
    for given in [threading.Thread(target=train_in_actor, args=({"cpus": 1},)) for _ in range(2)]:
        given.start()
        given.join()
    first, second = trained
    assert first is second


def test_a_lost_peer_is_no_failure_of_a_trial_though_the_process_group_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray Train ends the group of the workers that are left while they tell why they stop, and starts all again."""
    workers = [2]

    def without_peer(*job: Any) -> Iterator[Message]:
        workers.append(1)
        raise RuntimeError("Connection reset by peer")
        yield

    monkeypatch.setattr(trainable, "worker_count", lambda: workers[-1])
    monkeypatch.setattr(trainable, "_train", without_peer)
    said: list[Message] = []
    with pytest.raises(RuntimeError, match="peer"):
        run_trial({"folder": str(tmp_path), "trial": _TRAINED}, said.append)
    assert not said
