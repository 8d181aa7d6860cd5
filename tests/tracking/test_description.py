"""A search and its trials in words: made from a log, without MLflow."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.subject import bases_of, corpus_of
from recur_tune.search.record.tracking_place import Delivered
from recur_tune.tracking.mlflow.description import search_note, trial_note
from tests.report import begun, few, make, opening, params_of, validated
from tests.tracking.tracked import search

RUNS = {number: f"run{number}" for number in range(1000)}
ROW = re.compile(r"\| \[T(\d+)\]\(#/experiments/3/runs/(run\d+)\)")


def note(directory: SearchDirectory, pictured: bool = False) -> str:
    delivered = Delivered("uri", "3", "parent", runs=RUNS, pictured=pictured)
    return search_note(directory, directory.spec, directory.state(), delivered)


def trial_words(directory: SearchDirectory, number: int, best: bool = False) -> str:
    return trial_note(directory, directory.spec, directory.state().trials[number], best, "#/parent")


def test_it_says_what_is_searched_how_far_it_is_and_what_to_type(tmp_path: Path) -> None:
    directory = make(tmp_path / "my results", events=few())
    text = note(directory)
    assert "A search for perplexity per word, FLOPs/token and peak memory over window, batch, overlap" in text
    assert ": `tiny` on `stdlib`, 4k tokens a trial, 500 trials." in text
    assert "Finished: 6 of 500 trials (4 complete, 1 pruned, 1 failed), 17k tokens trained on, hypervolume 0." in text
    commands = [line for line in text.splitlines() if line.startswith("recur-tune ")]
    assert [shlex.split(line)[:5] for line in commands] == [
        ["recur-tune", command, "books", "--results", str(tmp_path / "my results")]
        for command in ("status", "report", "resume")
    ]


def test_every_row_of_the_front_leads_to_its_run(tmp_path: Path) -> None:
    text = note(make(tmp_path, events=few()))
    assert ROW.findall(text) == [("1", "run1"), ("0", "run0"), ("2", "run2")], "best quality first"
    assert "| 50 | 400k | 64 MiB | recurrence pooled, l_ins 2, width 100, window 64, batch 8 |" in text
    assert "learning_rate" not in text[text.index("| trial") :], "all of the front have the same"
    assert "runs=%5B%22run1%22%2C%22run0%22%2C%22run2%22%5D&experiments=%5B%223%22%5D" in text


def test_a_picture_is_shown_once_there_is_one(tmp_path: Path) -> None:
    directory = make(tmp_path, events=few())
    image = "![The front](get-artifact?path=front-small.png&run_uuid=parent)"
    assert image not in note(directory)
    assert image in note(directory, pictured=True)
    assert "(#/experiments/3/runs/parent/artifacts/front.html)" in note(directory, pictured=True)


def test_before_the_first_trial_there_is_no_front_to_show(tmp_path: Path) -> None:
    text = note(search(tmp_path), pictured=True)
    assert "Running: 0 of 5 trials, 0 tokens trained on" in text
    assert "No trial is on the front yet." in text
    assert "front-small" not in text and "| trial" not in text
    assert "recur-tune stop first" in text


def test_a_front_of_hundreds_is_cut_to_what_mlflow_takes(tmp_path: Path) -> None:
    events = opening()
    for number in range(300):
        events += begun(number, 100, params_of(rate=number / 1e6), 1e5 + number, 1e6)
        events.append(validated(number, 101, 4000, 90 - number / 10, "complete"))
    text = note(make(tmp_path, events=events), pictured=True)
    rows = ROW.findall(text)
    assert len(text) <= 8000
    assert len(rows) > 20 and rows[0] == ("299", "run299")
    assert f"… and {300 - len(rows)} more on the front." in text
    assert "compare-runs" not in text, "nobody compares three hundred side by side"
    assert text.endswith("*recur-tune rewrites this while the search runs.*")


def test_a_trial_says_what_it_is_and_how_it_ended(tmp_path: Path) -> None:
    directory = make(tmp_path, events=few())
    first, pruned, failed = (trial_words(directory, number) for number in (0, 4, 5))
    assert first.startswith("Trial T0 (baseline) of [books](#/parent): recurrence none, window 64, batch 8, overlap 0,")
    assert "Complete: 4k tokens, perplexity per word 60, FLOPs/token 400k, peak memory 32 MiB." in first
    assert "Pruned (`others were better at its cost`): 1k tokens" in pruned
    assert "Failed (`its worker <died>`): FLOPs/token" in failed
    assert not any("recur-tune train" in text for text in (first, pruned, failed))


def test_a_trial_on_the_front_says_how_to_have_it(tmp_path: Path) -> None:
    directory = make(tmp_path, events=few())
    text = trial_words(directory, 1, best=True)
    assert "; **on the front**." in text
    train, export = (shlex.split(line) for line in text.splitlines() if line.startswith("recur-tune "))
    flags = dict(zip(train[2::2], train[3::2], strict=True))
    assert flags.pop("--out") == "runs/books-T1"
    fields = {flag[2:].replace("-", "_"): value for flag, value in flags.items()}
    assert TrialConfig(**fields) == directory.spec.trial_config(directory.state().trials[1].params)
    assert export == shlex.split(f"recur-tune export books --results {tmp_path} --trial T1 --to models/books-T1")


def test_who_keeps_no_models_is_not_told_to_take_one(tmp_path: Path) -> None:
    text = trial_words(make(tmp_path, events=few(), keep="none"), 1, best=True)
    assert "recur-tune train" in text and "recur-tune export" not in text


@pytest.mark.parametrize("end", ["two\nlines", "`code` | table", "x" * 5000])
def test_no_reason_breaks_its_line(tmp_path: Path, end: str) -> None:
    directory = make(tmp_path, events=few())
    directory.record("end", trial=5, state="failed", reason=end)
    _, line = trial_words(directory, 5).split("\n\n")
    assert re.fullmatch(r"Failed \(`[^`|\n]{1,240}`\): [^\n]*", line)


def test_a_space_names_its_bases_and_its_corpus_or_has_the_usual(tmp_path: Path) -> None:
    given = search(tmp_path, "given", space={"base": ["tiny", "gpt2"], "corpus": "recall:lag=2", "window": [32, 64]})
    assert (bases_of(given.spec), corpus_of(given.spec)) == (["tiny", "gpt2"], "recall:lag=2")
    assert "`tiny`, `gpt2` on `recall:lag=2`" in note(given)
    usual = search(tmp_path, "usual", space={"window": [32, 64]})
    assert (bases_of(usual.spec), corpus_of(usual.spec)) == (["gpt2"], "stdlib")
