"""From a front to a decision, as commands: the best within limits, one trial, trials by hand, keeping house."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.requests import ask_to_end, take_ends, take_trials
from recur_tune.tracking.mlflow.tracker import Tracker
from tests.cli.books import lines_of, record_report, refused
from tests.cli.run import run
from tests.database import empty_database


@pytest.fixture
def books(results: Path) -> SearchDirectory:
    return SearchDirectory(results / "books")


def confirm_by_hand(books: SearchDirectory, number: int, values: list[float]) -> None:
    """Repetitions of a trial that ended so."""
    point = books.state().trials[number]
    for seed, value in enumerate(values, 1):
        own = 20 + 10 * number + seed
        books.record(
            "trial", trial=own, params=point.params, costs=point.costs, repeats=number, seed=seed, split="test"
        )
        books.record("running", trial=own)
        scores = {"test": {"perplexity": value}}
        metrics = {"perplexity": value + 1, "bits_per_byte": 1.0}
        books.record("report", trial=own, tokens=80_000, validation=metrics, state="complete", scores=scores)


def test_the_best_for_what_one_can_spend_and_what_one_step_more_buys(results: Path) -> None:
    # T0: 50 at 32M FLOPs and 10 MiB; T1: 40 at 32M and 11 MiB; T2: 45 at 64M and 12 MiB.
    outcome = run("front", "books", "--under", "flops_per_token=40M,peak_memory=10.5MiB")
    lines = lines_of(outcome.out)
    assert lines[0] == "the best within FLOPs/token 40M and peak memory 10.5MiB: T0"
    assert any(line.split()[:2] == ["T0", "50"] for line in lines)
    assert "more FLOPs/token alone buys nothing that was found." in lines
    assert (
        "peak memory 11 MiB instead of 10 MiB (+10.0%) buys T1: perplexity per word 40 instead of 50 (-20.0%)." in lines
    )
    assert "export books --best --under flops_per_token=40M,peak_memory=10.5MiB --to" in outcome.err
    told = json.loads(run("front", "books", "--under", "peak_memory=10.5MiB", "--json").out)
    assert told["best"]["trial"] == "T0" and told["steps"][0]["more"] == "peak_memory"
    assert told["under"] == {"peak_memory": 10.5 * 2**20}


def test_limits_that_nothing_meets_are_answered_by_the_least(results: Path) -> None:
    refused(run("front", "books", "--under", "flops_per_token=1M"), "under: ", "FLOPs/token 32M")
    refused(run("front", "books", "--under", "flops=1M"), "under: 'flops' is no cost")
    refused(run("front", "books", "--under", "flops_per_token=1M", "--csv"), "csv: ")


def test_a_model_is_taken_without_a_number(results: Path, tmp_path: Path) -> None:
    best = run("export", "books", "--best", "--to", tmp_path / "best")
    assert (best.code, best.out) == (0, "T1\n")
    cheap = run("export", "books", "--best", "--under", "peak_memory=10.5MiB", "--to", tmp_path / "cheap")
    assert (cheap.code, cheap.out) == (0, "T0\n")
    assert (tmp_path / "cheap" / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "trial: say which to take"),
        (["--trial", "T1", "--best"], "not both"),
        (["--trial", "T1", "--under", "peak_memory=1GiB"], "under: it goes with --best"),
        (["--best", "--under", "peak_memory=1KiB"], "under: no trial is within"),
    ],
)
def test_an_export_that_cannot_be_meant_is_refused(results: Path, tmp_path: Path, words: list[str], said: str) -> None:
    refused(run("export", "books", *words, "--to", tmp_path / "m"), said)
    assert not (tmp_path / "m").exists()


def test_a_confirmed_front_is_told_with_its_noise(books: SearchDirectory) -> None:
    confirm_by_hand(books, 0, [49.0, 51.0])
    confirm_by_hand(books, 1, [48.0, 51.5])
    outcome = run("front", "books")
    lines = lines_of(outcome.out)
    rows = {line.split()[0]: line for line in lines if "±" in line and line[0] == "T"}
    assert "49.75 ± 1.4" in rows["T1"] and "50 ± 1.4" in rows["T0"]
    assert "T1: within noise of T0, which costs no more." in lines
    narrow = run("front", "books", width=80).out.splitlines()
    assert all(len(line) <= 80 for line in narrow if line.startswith("T"))
    told = json.loads(run("front", "books", "--json").out)
    assert [(one["trial"], one["mean"], one["seeds"]) for one in told["confirmed"]] == [("T1", 49.75, 2), ("T0", 50, 2)]
    assert {row["trial"] for row in told["front"]} == {"T0", "T1"}, "a repetition is no candidate"
    under = run("front", "books", "--under", "peak_memory=1GiB")
    assert "by means of the test split: T1 has 49.75." in under.out
    assert "T0 costs no more and does as well, as far as 2 seeds can tell" in under.err


def test_a_confirmed_front_is_chosen_from_by_its_means(books: SearchDirectory, tmp_path: Path) -> None:
    assert run("export", "books", "--best", "--to", tmp_path / "found").out == "T1\n"
    confirm_by_hand(books, 0, [39.0, 39.5])
    confirm_by_hand(books, 1, [48.0, 48.5])  # its own 40 was luck
    assert run("export", "books", "--best", "--to", tmp_path / "confirmed").out == "T0\n"
    told = json.loads(run("front", "books", "--under", "peak_memory=1GiB", "--json").out)
    assert (told["best"]["trial"], told["chosen_by"], told["confirmed"]) == ("T0", {"T0": 39.25}, True)


def test_an_unfinished_confirmation_changes_no_choice_and_names_what_it_lacks(
    books: SearchDirectory, tmp_path: Path
) -> None:
    confirm_by_hand(books, 0, [49.0, 51.0])  # and none of T1, which the search found best
    assert run("export", "books", "--best", "--to", tmp_path / "best").out == "T1\n"
    under = run("front", "books", "--under", "peak_memory=10.5MiB")
    assert "peak memory 11 MiB instead of 10 MiB (+10.0%) buys T1" in under.out, "what more buys is still told"
    assert "by means" not in under.out
    assert "by the search's own validations, since T1 is not confirmed yet" in under.err
    told = json.loads(run("front", "books", "--under", "peak_memory=1GiB", "--json").out)
    assert (told["best"]["trial"], told["confirmed"], told["unconfirmed"]) == ("T1", False, ["T1"])
    assert "not confirmed yet: T1" in run("front", "books").err
    assert json.loads(run("front", "books", "--json").out)["unconfirmed"] == ["T1"]


def test_there_has_to_be_a_front_to_confirm(tmp_path: Path, books: SearchDirectory) -> None:
    SearchDirectory.create(books.path.parent, "new", books.spec)
    refused(run("confirm", "new"), "no trial at its full budget yet")
    refused(run("confirm", "books", "--slurm", "here"), "slurm: 'here' is for a search")


def test_a_confirmation_of_a_paused_search_says_what_waits(
    books: SearchDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recur_tune.search.run.driver.check_runnable", lambda spec, address: None)
    monkeypatch.setattr("recur_tune.cli.confirm.run_watched", lambda directory, address, plan: directory.state())
    assert "unfinished trials of the search wait for `recur-tune resume books`: T4.\n" in run("confirm", "books").err
    books.record("end", trial=4, state="pruned")
    assert "unfinished" not in run("confirm", "books").err


def test_one_trial_is_told_with_all_that_happened_to_it(books: SearchDirectory) -> None:
    (books.trial(6)).mkdir(parents=True)
    (books.trial(6) / "error.txt").write_text("Traceback (most recent call last):\nValueError: mine\n")
    outcome = run("trial", "books", "T1")
    assert outcome.code == 0
    for words in (
        "T1 (paper): complete",
        "perplexity per word",
        "l_ins",
        "80k",
        "proposed",
        "started",
        "complete at 80k",
    ):
        assert words in outcome.out, words
    assert "run it alone:  recur-tune train --base tiny" in outcome.err
    failed = run("trial", "books", "6")
    assert "failed, its worker [rank 0] died" in failed.out and "ValueError: mine" in failed.out
    told = json.loads(run("trial", "books", "T1", "--json").out)
    assert told["params"]["l_ins"] == 2 and told["validations"] == [
        {"tokens": 80_000, "perplexity": 40.0, "bits_per_byte": 4.0}
    ]
    refused(run("trial", "books", "T99"), "trial: books has no trial 'T99'")


def test_a_trial_of_ones_own_waits_for_whoever_runs_the_search(books: SearchDirectory) -> None:
    words = ["--set", "window=32", "--set", "overlap=8", "--set", "recurrence=none"]
    outcome = run("add", "books", *words)
    assert outcome.code == 0 and "recur-tune resume books" in outcome.err
    point = {"window": 32, "overlap_of_window": 0.25, "recurrence": "none"}
    assert list(take_trials(books.open_log())) == [(point, "added")]
    assert list(take_trials(books.open_log())) == [], "what is taken is gone"
    assert run("add", "books", *words, "--may-stop").code == 0
    assert list(take_trials(books.open_log())) == [(point, "added (may stop)")]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("window=17", "set: window 17 is not in the space; the nearest is 16."),
        ("windw=16", "set: the space has no 'windw'; did you mean 'window'?"),
        ("l_ins=2", "set: l_ins 2 exists only with a choice above it"),
        ("window", "set: 'window' is not of the form KEY=VALUE"),
    ],
)
def test_a_trial_that_the_space_does_not_have_is_refused(books: SearchDirectory, setting: str, said: str) -> None:
    refused(run("add", "books", "--set", setting), said)
    assert list(take_trials(books.open_log())) == []


def test_a_trial_of_a_search_that_rests_ends_at_once(books: SearchDirectory) -> None:
    outcome = run("end", "books", "T4")
    assert (outcome.code, outcome.err) == (0, "T4 is pruned.\n")
    record = books.state().trials[4]
    assert (record.state, record.reason) == ("pruned", "ended by hand after 20000 tokens")
    refused(run("end", "books", "T4"), "trial: T4 has ended already: it is pruned")
    ask_to_end(books, 4)
    assert list(take_ends(books.open_log())) == [4]


def test_a_search_is_renamed_with_its_runs(books: SearchDirectory) -> None:
    empty_database(books.path.parent / "mlflow.db")
    Tracker(books).deliver()
    assert run("rename", "books", "tales").code == 0
    tales = SearchDirectory(books.path.with_name("tales"))
    assert not books.path.exists() and len(tales.state().trials) == 7
    tracker = Tracker(tales)
    tracker.deliver()  # finds its runs under the new name, and makes none
    from mlflow import MlflowClient

    client = MlflowClient(tracker.uri)
    experiment = client.get_experiment_by_name("recur-tune")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.data.tags["search"] for run in runs} == {"tales"}
    assert [run.info.run_name for run in runs if "mlflow.parentRunId" not in run.data.tags] == ["tales"]
    refused(run("rename", "tales", "a/b"), "name: 'a/b' is not a name")
    SearchDirectory.create(books.path.parent, "other", tales.spec)
    refused(run("rename", "tales", "other"), "name: 'other' is taken")


def test_a_search_is_removed_with_its_runs_when_that_is_meant(
    books: SearchDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_database(books.path.parent / "mlflow.db")
    tracker = Tracker(books)
    tracker.deliver()
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert "nothing was removed" in run("remove", "books").err and books.path.exists()
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    nobody = run("remove", "books")
    assert nobody.code == 2 and "--yes" in nobody.err and books.path.exists()
    assert run("remove", "books", "--yes").code == 0
    assert not books.path.exists() and not list(books.path.parent.glob(".removed*"))
    from mlflow import MlflowClient

    client = MlflowClient(tracker.uri)
    experiment = client.get_experiment_by_name("recur-tune")
    assert experiment is not None and client.search_runs([experiment.experiment_id]) == []


@pytest.mark.parametrize("command", [["remove", "books", "--yes"], ["rename", "books", "tales"], ["confirm", "books"]])
def test_what_runs_is_left_alone(books: SearchDirectory, command: list[str]) -> None:
    with books.hold_lease():
        refused(run(*command), "books is running")
    assert len(books.state().trials) == 7


def test_a_search_tells_one_time_and_its_preparation_apart(results: Path) -> None:
    times = [
        (1000.0, "search", {"status": "preparing"}), (1060.0, "search", {"status": "started"}),
        (1090.0, "search", {"status": "paused"}), (9000.0, "search", {"status": "preparing"}),
        (9005.0, "search", {"status": "started"}), (9015.0, "search", {"status": "finished"}),
        (9500.0, "search", {"status": "preparing"}), (9501.0, "search", {"status": "started", "confirming": True}),
        (9508.0, "search", {"status": "finished"}),
    ]  # fmt: skip
    made = SearchDirectory.create(results, "timed", SearchDirectory(results / "books").spec)
    with (made.path / "events.jsonl").open("w") as file:
        for time, kind, fields in times:
            file.write(json.dumps({"time": time, "kind": kind, **fields}) + "\n")
    told = json.loads(run("status", "timed", "--json").out)
    assert (told["seconds"], told["preparation_seconds"], told["status"]) == (40.0, 66.0, "finished")
    assert told["confirmation_seconds"] == 7.0, "that is no time of the search"
    row = next(line for line in lines_of(run("status").out) if line.startswith("timed"))
    assert row.split()[-1] == "40s"
    assert "preparation (torch, Ray, corpus, base), besides that time: 1m6s" in run("status", "timed").out


def test_a_log_in_earlier_words_is_read_in_todays(results: Path) -> None:
    books = SearchDirectory(results / "books")
    books.record("report", trial=4, tokens=30_000, validation={"word_perplexity": 9.0}, state="stopped")
    books.record("search", status="stopped")
    state = books.state()
    assert (state.trials[4].state, state.trials[4].value("perplexity"), state.status) == ("pruned", 9.0, "paused")
    record_report(books, 4, 30_000, 9.0)


@pytest.mark.parametrize("words", [["--slurm", "x.yaml"], ["--json"]])
def test_a_search_is_detached_from_a_terminal_of_its_own_machine(tmp_path: Path, words: list[str]) -> None:
    refused(run("search", "--detach", *words, "--results", tmp_path), "detach: ", words[0])
