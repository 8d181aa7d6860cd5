"""Forecasting as a user does it: train, go on, eval with a picture, cost, and a search's dry run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.run import run
from tests.series import waves, write_series

SMALL = [
    "--recurrence", "cache", "--cache-rows", 4, "--cache-sinks", 1, "--horizon", 6, "--patch", 6, "--window", 24,
    "--bptt-windows", 4, "--batch", 2, "--body-width", 16, "--body-heads", 2, "--body-layers", 2,
    "--learning-rate", 5e-3, "--validation-tokens", 500,
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"series:{write_series(tmp_path_factory.mktemp('series') / 'a.csv', waves(600))}"


def test_a_run_learns_waves_and_its_scores_are_told_and_drawn(corpus: str, tmp_path: Path) -> None:
    trained = run("train", "--corpus", corpus, *SMALL, "--tokens", 12_000, "--out", tmp_path / "run")
    assert trained.code == 0, trained.err
    assert "patches with cache" in trained.out and "gpt2" not in trained.out
    assert "base:" not in (tmp_path / "run" / "trial.yaml").read_text()
    told = run("eval", tmp_path / "run", "--picture", tmp_path / "errors.png")
    assert told.code == 0 and "by column" in told.out and "by step ahead" in told.out, told.err
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(run("eval", tmp_path / "run", "--json").out)
    assert found["windows"] == 120 - 6 + 1 and found["by_column"].keys() == {"c0", "c1"} and len(found["by_step"]) == 6
    assert found["mse"] < 0.2, "half of the waves' variance would be 0.5"
    without = json.loads(run("eval", tmp_path / "run", "--state", "none", "--json").out)
    assert without["mse"] != found["mse"]
    wide = run("eval", tmp_path / "run", "--window", 32)
    assert wide.code == 2 and "32 time steps, 0 of them read again, are no whole number of patches of 6" in wide.err
    for words in (["generate"], ["look"], ["eval", "--baselines"]):
        refused = run(*words, tmp_path / "run")
        assert refused.code == 2 and "Traceback" not in refused.err, refused.err
    resumed = run("train", "--resume", "--tokens", 13_000, "--out", tmp_path / "run")
    assert resumed.code == 0, resumed.err


def test_a_table_of_baselines_has_a_linear_one(corpus: str, tmp_path: Path) -> None:
    words = ["--corpus", corpus, "--body", "dlinear", "--recurrence", "none", "--window", 48, "--overlap", 47]
    words += ["--horizon", 6, "--batch", 4, "--tokens", 4_000, "--learning-rate", 0.01]
    assert run("train", *words, "--out", tmp_path / "run").code == 0
    found = json.loads(run("eval", tmp_path / "run", "--json").out)
    assert found["mse"] < 0.2 and found["remarks"] == []
    short = run("eval", tmp_path / "run", "--window", 24)
    assert short.code == 2 and "window: the model reads windows of 48 time steps; leave it out" in short.err
    costs = json.loads(run("cost", *words, "--json").out)
    assert costs["flops_per_token"] == 2 * 2 * 2 * 48 * 6 and costs["parameters"] == 2 * (48 + 1) * 6


def test_data_prepare_tells_columns_and_rows(corpus: str) -> None:
    found = json.loads(run("data", "prepare", corpus, "--json").out)
    assert found["splits"]["train"] == {"columns": 2, "rows": 420}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "--horizon", 61, "--out", "{}/run"], "horizon: 61 time steps are more than the 60 rows"),
        (["train", "--window", 20, "--horizon", 6, "--out", "{}/run"], "window: 20 time steps are no whole number"),
        (["cost", "--body", "dlinear", "--horizon", 6], "which dlinear has not; choose none"),
        (["train", "--base", "gpt2-xl", "--out", "{}/run"], "leave it out"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    words: list[str], sentence: str, corpus: str, tmp_path: Path
) -> None:
    outcome = run(*(str(word).format(tmp_path) for word in words), "--corpus", corpus)
    assert outcome.code == 2 and sentence in outcome.err and "Traceback" not in outcome.err
    assert not (tmp_path / "run").exists()


def test_a_search_of_the_shipped_space_is_dry_run_on_ones_own_file(corpus: str, tmp_path: Path) -> None:
    small = ["--set", "space.horizon=6", "--set", "space.window=[24,48]", "--set", "space.bptt_windows=4"]
    small += ["--set", "first=[]"]
    outcome = run("search", "ett", "--dry-run", "--results", tmp_path / "r", "--set", f"space.corpus={corpus}", *small)
    assert outcome.code == 0 and "nothing was started" in outcome.err, outcome.err
    refused = run("search", "ett", "--dry-run", "--results", tmp_path / "r")
    assert refused.code == 2 and "ett:ETTh1.csv names no file" in refused.err
