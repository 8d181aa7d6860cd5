"""`recur-tune budget` on two small runs: its table, its JSON and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.budget import made
from tests.cli.run import run
from tests.cli.test_bad_input import refused

NEVER = ["--more-memory", "1TB", "--more-time", 1e9]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    made(folder, "recurrent", recurrence="pooled")
    made(folder, "plain", recurrence="none")
    return folder


def test_a_table_has_costs_quality_and_a_verdict_for_each_limit(runs: Path) -> None:
    told = run("budget", runs / "recurrent", "--against", runs / "plain", "--steps", 2, *NEVER)
    assert told.code == 0, told.err
    for words in (
        "peak memory of a step",
        "time per token",
        "validation accuracy",
        "validation bits per byte",
        "pooled",
    ):
        assert words in told.out
    assert told.out.count(": kept") == 2 and "memory: +" in told.out and "timing steps" in told.err


@pytest.mark.slow
def test_the_exit_code_and_the_json_say_which_limit_is_broken(runs: Path) -> None:
    asked = ["--against", runs / "plain", "--steps", 1, "--json", "--more-time", 1e9]
    broken = run("budget", runs / "recurrent", *asked, "--more-memory", "1B")
    assert broken.code == 1
    told = json.loads(broken.out)
    assert {limit["limit"]: limit["kept"] for limit in told["limits"]} == {"memory": False, "time": True}
    more = told["run"]["peak_memory"] - told["against"]["peak_memory"]
    assert told["limits"][0]["more"] == more > 0
    ratio = told["run"]["seconds_per_token"] / told["against"]["seconds_per_token"]
    assert told["limits"][1]["more"] == pytest.approx(ratio - 1)
    kept = run("budget", runs / "recurrent", *asked, "--more-memory", f"{more}B")
    assert kept.code == 0 and json.loads(kept.out)["run"]["peak_memory"] == told["run"]["peak_memory"]
    assert 0 <= told["run"]["accuracy"] <= 1 < told["run"]["token_perplexity"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recurrent", "--against", "recurrent"], ["against:", "is the run itself"]),
        (["recurrent", "--against", "base"], ["base does not say how it was trained"]),
        (["books", "--against", "plain"], ["books holds no model"]),
        (["recurrent"], ["--against"]),
        (["recurrent", "--against", "plain", "--more-memory", "lots"], ["more_memory: 'lots'", "16GiB"]),
        (["recurrent", "--against", "plain", "--more-time", "nan"], ["more_time: nan"]),
        (["recurrent", "--against", "plain", "--steps", 0], ["--steps"]),
        (["recurrent", "--against", "plain", "--corpus", "stdlb"], ["'stdlb'", "did you mean 'stdlib'?"]),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(runs: Path, words: list[Any], said: list[str]) -> None:
    places = [runs / word if (runs / str(word)).is_dir() else word for word in words]
    refused(run("budget", *places), *said)
