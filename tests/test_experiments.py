"""The programs behind docs/results: what they print is what the commands would say."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import run as command
from tests.search.run.searches import make_world
from tests.series import waves, write_series

pytestmark = pytest.mark.slow


def test_a_comparison_scores_as_eval_does_and_goes_on_where_it_was(
    experiment: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path, sentences=2)  # every score reads all of them
    out, runs, corpus = tmp_path / "a.json", tmp_path / "runs", f"text:{tmp_path / 'text'}"
    words = (
        "--base", tmp_path / "base", "--corpus", corpus, "--out", out, "--runs", runs, "--readings", "16/4",
        "--set", "tokens=1k", "batch=2", "bptt_windows=2", "validation_tokens=500", "warmup_steps=1",
        "--set-recurrent", "width=8", "l_ins=1",
    )  # fmt: skip
    experiment("paper_comparison", *words, "--recurrences", "none")
    [plain] = json.loads(out.read_text())
    experiment("paper_comparison", *words)
    again, recurrent = json.loads(out.read_text())
    assert again == plain, "what is known is not trained again"
    assert [one.name.split("-")[0] for one in sorted(runs.iterdir())] == ["none", "pooled"]
    assert list(plain["scores"]["test"]) == ["own"]
    [folder] = runs.glob("pooled-*")
    for state in ("own", "none", "other"):
        said = command("eval", folder, "--split", "validation", "--state", state, "--json")
        scored = recurrent["scores"]["validation"][state]
        assert json.loads(said.out)["perplexity"] == pytest.approx(scored["perplexity"])
    assert "recurrent against plain" in capsys.readouterr().out


def test_every_mechanism_is_tried_at_every_rate_and_goes_on_with_the_best(
    experiment: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path, sentences=2)
    out, runs, corpus = tmp_path / "a.jsonl", tmp_path / "runs", f"text:{tmp_path / 'text'}"
    words = (
        "--base", tmp_path / "base", "--corpus", corpus, "--out", out, "--runs", runs, "--readings", "16/4",
        "--forms", "tokens 10", "--set", "tokens=1k", "bptt_windows=2", "validation_tokens=500", "--positions", 32,
    )  # fmt: skip
    experiment("mechanisms", *words, "--rates", 1e-4, 1e-2)
    experiment("mechanisms", *words, "--rates", 1e-4, 1e-2, "--seeds", 0, 1)
    results = [json.loads(line) for line in out.read_text().splitlines()]
    best = min(results[:2], key=lambda one: one["scores"]["validation"]["own"]["perplexity"])["rate"]
    assert [(one["rate"], one["seed"]) for one in results] == [(1e-4, 0), (1e-2, 0), (best, 1)]
    assert list(results[2]["scores"]["test"]) == ["own", "none", "other"]
    assert "1 of 1: tokens 10 16/4" in capsys.readouterr().out
    said = command("eval", runs / f"tokens-10-16-4-{best:g}-1", "--split", "test", "--json")
    assert json.loads(said.out)["perplexity"] == pytest.approx(results[2]["scores"]["test"]["own"]["perplexity"])


def test_states_without_training_are_scored_as_eval_scores_them(
    experiment: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path, sentences=2)
    out, base, corpus = tmp_path / "a.csv", tmp_path / "base", f"text:{tmp_path / 'text'}"
    experiment(
        "untrained_states", "--base", base, "--corpus", corpus, "--out", out, "--windows", 16, "--rows", 14,
        "--keep", "recent", "h2o", "--train-tokens", 200, "--train-rows", 14, "--rates", 1e-3, "--seeds", 0,
        "--set", "bptt_windows=2", "batch=2", "validation_tokens=200",
    )  # fmt: skip
    rows = list(csv.DictReader(out.read_text().splitlines()))
    caches = ["cache, recent", "cache, h2o"]
    forms = ["plain", "plain, overlap", "plain, longer", "plain, longer, overlap", *caches]
    assert [row["form"] for row in rows] == [*forms, "plain", *caches]
    assert [row["trained"] != "0" for row in rows] == [False] * 6 + [True] * 3
    assert [(row["window"], row["overlap"]) for row in rows[:4]] == [
        ("16", "0"),
        ("16", "8"),
        ("30", "0"),
        ("30", "14"),
    ]
    assert capsys.readouterr().out.count("| plain") == 5
    reading = ["--corpus", corpus, "--window", 16, "--json", "--recurrence"]
    for row, words in ((rows[0], ["none"]), (rows[5], ["cache", "--cache-rows", 14, "--cache-keep", "h2o"])):
        said = command("eval", base, *reading, *words)
        assert json.loads(said.out)["perplexity"] == pytest.approx(float(row["perplexity"]), rel=1e-5)
    assert rows[4]["perplexity"] != rows[5]["perplexity"]


def test_states_stand_untrained_trained_and_taught_and_what_is_known_is_not_trained_again(
    experiment: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path, sentences=4)
    out, base, corpus = tmp_path / "found.jsonl", tmp_path / "base", f"text:{tmp_path / 'text'}"
    words = (
        "--base", base, "--corpus", corpus, "--out", out, "--runs", tmp_path / "runs", "--forms", "plain", "cache 32",
        "--readings", "16/0", "--rates", 1e-3, "--seeds", 0, "--train-tokens", 100, "--teacher-window", 32, "--set",
        "batch=2", "bptt_windows=2", "validation_tokens=200", "--facts", 1, "--distances", 100,
    )  # fmt: skip
    experiment("states", *words, "--losses", "untrained", "--minutes", 0)
    assert "2 runs are left" in capsys.readouterr().out and not out.exists()
    experiment("states", *words, "--losses", "untrained", "distill")
    experiment("states", *words)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["form"], one["loss"]) for one in rows] == [
        (form, loss) for loss in ("untrained", "distill", "next_token") for form in ("plain", "cache 32")
    ]
    assert rows[2]["config"]["loss"] == "distill" and rows[2]["perplexity"] != rows[4]["perplexity"]
    assert all([found["asked"] for found in row["recall"]] == [1] for row in rows)
    said = command("eval", base, "--corpus", corpus, "--split", "test", "--window", 16, "--json")
    assert json.loads(said.out)["perplexity"] == pytest.approx(rows[0]["perplexity"], rel=1e-5)
    assert "against cache 128" in capsys.readouterr().out


def test_models_from_nothing_stand_beside_what_was_reported_and_are_trained_once(
    experiment: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path, sentences=2)
    out, runs, corpus = tmp_path / "a.jsonl", tmp_path / "runs", f"text:{tmp_path / 'text'}"
    words = (
        "--base", "none:1x16x4", "--corpus", corpus, "--out", out, "--runs", runs, "--readings", "16/0",
        "--steps", 3, "--windows", 4, "--chain", 2, "--rates", 1e-3, 1e-2, "--pieces", 100,
        "--set", "validation_tokens=200",
    )  # fmt: skip
    experiment("from_scratch", *words, "--forms", "plain")
    experiment("from_scratch", *words, "--forms", "plain", "RSA-XL", "--seeds", 0, 1)
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["form"] for one in results] == ["plain"] * 2 + ["RSA-XL"] * 2 + ["plain", "RSA-XL"]
    for form in ("plain", "RSA-XL"):
        *tried, again = (one for one in results if one["form"] == form)
        best = min(tried, key=lambda one: one["scores"]["validation"]["own"]["bits_per_byte"])
        assert again["rate"] == best["rate"] and again["seed"] == 1 and again["config"]["tokens"] == 3 * 4 * 16
    with pytest.raises(SystemExit, match=r"^--out: .* has runs of --steps 3; name another file\.$"):
        experiment("from_scratch", *words, "--forms", "plain", "--steps", 4)
    [folder] = runs.glob("RSA-XL-*-1")
    settings = json.loads((folder / "config.json").read_text())
    assert settings["num_hidden_layers"] == 1 and settings["recurrence"]["beside"] == "scores"

    from from_scratch import FORMS, REPORTED, print_table

    assert all(reported.keys() == FORMS.keys() - {"plain"} for reported in REPORTED.values())
    capsys.readouterr()
    print_table(results, "enwik8")
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith(" RSA")] == [
        ["RSA-XL", "5.07"]
    ]


def test_forecasts_stand_beside_what_was_reported_and_are_trained_once(
    experiment: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_series(tmp_path / "WTH.csv", waves(1000))
    words = (
        "--data", tmp_path, "--files", "WTH", "--horizons", 24, "--out", tmp_path / "a.jsonl",
        "--runs", tmp_path / "runs", "--validations", 1, "--set", "tokens=500", "validation_tokens=100",
        "body_width=8", "body_heads=2", "body_layers=1", "window=48", "label_steps=24", "batch=2",
    )  # fmt: skip
    experiment("forecasts", *words, "--forms", "Informer", "--seeds", 0)
    experiment("forecasts", *words, "--forms", "Informer", "patches, cache", "--seeds", 0, 1)
    results = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(one["form"], one["seed"]) for one in results] == [
        ("Informer", 0), ("patches, cache", 0), ("Informer", 1), ("patches, cache", 1),
    ]  # fmt: skip
    assert all(one["mse"] > 0 and one["mae"] > 0 for one in results) and not list((tmp_path / "runs").iterdir())
    said = capsys.readouterr().out
    [line] = [line for line in said.splitlines() if line.startswith(" WTH") and "0.316" in line][-1:]
    mean = statistics.fmean(one["mse"] for one in results if one["form"] == "Informer")
    assert "0.886" in line and f"{mean:.3f} ± " in line


def result(recurrence: str, losses: Sequence[float]) -> dict[str, Any]:
    scores = {"document_nll": losses, "document_words": [10, 20, 0], "document_bytes": [100, 100, 1]}
    return {"reading": "300/0", "seed": 0, "recurrence": recurrence, "scores": {"test": {"own": scores}}}


@pytest.mark.usefixtures("experiment")
def test_each_side_stands_with_the_rate_that_validation_likes_best() -> None:
    from comparison_results import METRICS, at_best_rates

    def run(recurrence: str, rate: float, seed: int, validation: float) -> dict[str, Any]:
        scores = {"validation": {"own": {"bits_per_byte": validation}}, "test": {"own": {"bits_per_byte": -validation}}}
        config = {"learning_rate": rate}
        return {"reading": "300/0", "seed": seed, "recurrence": recurrence, "config": config, "scores": scores}

    low, high = run("none", 1e-4, 0, 2.0), [run("none", 1e-3, 0, 1.0), run("none", 1e-3, 1, 2.5)]
    recurrent = [run("pooled", 1e-4, 0, 1.5), run("pooled", 1e-3, 0, 1.2)]
    assert at_best_rates([low, *high, *recurrent], METRICS["bits_per_byte"]) == [*high, recurrent[1]]


@pytest.mark.usefixtures("experiment")
def test_differences_are_of_the_same_document_by_its_own_length() -> None:
    from comparison_results import METRICS, pairs

    plain, recurrent = result("none", [50.0, 60.0, 1.0]), result("pooled", [40.0, 70.0, 2.0])
    assert pairs([recurrent, plain]) == [(plain, recurrent)]
    assert pairs([recurrent]) == []
    words, bits = METRICS["perplexity"], METRICS["bits_per_byte"]
    assert words.differences(plain, recurrent, "test", "own") == [-1.0, 0.5]  # the third has no words
    assert bits.differences(plain, recurrent, "test", "own") == pytest.approx(
        [-0.1 / math.log(2), 0.1 / math.log(2), 1 / math.log(2)]
    )
