"""`recur-tune report` and `compare` on the command line."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from recur_tune.report.compare import comparison, default_file
from recur_tune.search.record.front import search_hypervolume
from recur_tune.search.record.state import Event
from tests.cli.run import Outcome, run
from tests.report import SPACE, begun, few, make, opening, params_of, validated
from tests.search.record import OBJECTIVES


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "results"
    monkeypatch.setenv("RECUR_TUNE_RESULTS", str(folder))
    make(folder, "books", few())
    return folder


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2 and outcome.out == "" and len(outcome.err.strip().splitlines()) == 1, outcome
    for word in words:
        assert word in outcome.err, outcome.err


def better(perplexity: float = 40.0) -> list[Event]:
    """A search of two trials, the first of them good."""
    return [
        *opening({"perplexity": 200.0, "flops_per_token": 8e5, "peak_memory": 2.0**27}),
        *begun(0, 100, params_of("pooled", 32), 3e5, 2.0**25), validated(0, 110, 4000, perplexity, "complete"),
        *begun(1, 110, params_of("none", 32), 3e5, 2.0**25), validated(1, 120, 4000, 100.0, "complete"),
    ]  # fmt: skip


def test_a_report_lies_in_its_search_and_says_where(results: Path) -> None:
    outcome = run("report", "books")
    assert outcome.code == 0 and outcome.out == f"{results / 'books' / 'report.html'}\n" and outcome.err == ""
    assert (results / "books" / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_a_report_with_pictures_elsewhere(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "new folder" / "mine.html"
    outcome = run("report", "books", "--out", page, "--png", "--pdf")
    assert outcome.out.splitlines() == [str(page.with_suffix(ending)) for ending in (".html", ".png", ".pdf")]
    assert sorted(file.name for file in page.parent.iterdir()) == ["mine.html", "mine.pdf", "mine.png"]
    assert not (results / "books" / "report.html").exists()


@pytest.mark.parametrize("last", [70.0, math.nan])
def test_a_search_of_one_trial_has_a_report(results: Path, tmp_path: Path, last: float) -> None:
    make(
        results,
        "one",
        [*opening(), *begun(0, 100, params_of(), 4e5, 2.0**25), validated(0, 101, 4000, last, "complete")],
    )
    outcome = run("report", "one", "--png")
    assert outcome.code == 0 and "Traceback" not in outcome.err
    assert "takes 20 trials at full budget" in (results / "one" / "report.html").read_text().split("<script")[0]


def test_what_cannot_be_reported_is_a_sentence(results: Path, tmp_path: Path) -> None:
    refused(run("report", "missing"), "there is no search 'missing'", "there are: books")
    make(results, "empty")
    refused(run("report", "empty"), "empty has no trial yet", "recur-tune status empty")
    refused(run("report", "books", "--out", tmp_path), "out:", "is a folder")
    refused(run("report", "books", "--out", tmp_path / "a.png", "--png"), "out:", ".html")
    (tmp_path / "file").write_text("")
    refused(run("report", "books", "--out", tmp_path / "file" / "report.html"), "could not be written", "--out FILE")


def test_a_folder_that_cannot_be_written_suggests_another(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(**where: Any) -> str:
        raise PermissionError(13, "Permission denied", str(where["dir"]))

    monkeypatch.setattr(tempfile, "mkdtemp", read_only)
    for arguments in (("report", "books"), ("report", "books", "--png")):
        refused(run(*arguments), "Permission denied", "--out FILE")


def test_two_searches_are_compared_against_one_reference(results: Path) -> None:
    make(results, "other", better())
    outcome = run("compare", "books", "other", "--png")
    assert outcome.code == 0
    header, books, other = (line.split() for line in outcome.out.splitlines() if line.strip())
    assert header[:3] == ["search", "corpus", "trials"]
    assert books[:6] == ["books", "stdlib", "6", "3", "50", "(T1)"] and other[:6] == [
        "other",
        "stdlib",
        "2",
        "1",
        "40",
        "(T0)",
    ]
    page = results / "compare-books-other.html"
    assert outcome.err.splitlines() == [str(page), str(page.with_suffix(".png"))]
    made = comparison(results, ["books", "other"])
    assert made.reference == [200.0, 1e6, 2.0**27] and made.remarks == []
    state = made.searches[0].state
    state.reference = dict(zip(OBJECTIVES, made.reference, strict=True))
    assert made.volume(made.fronts[0]) == pytest.approx(search_hypervolume(state, OBJECTIVES))
    symbols = [t["marker"]["symbol"] for t in (made.panel.figure or {})["data"] if t.get("text")]
    assert symbols == ["circle", "triangle-up"]


def test_different_texts_are_compared_in_bits_per_byte_and_it_says_so(results: Path) -> None:
    make(results, "wiki", better(), space=SPACE | {"corpus": "enwik8"})
    outcome = run("compare", "books", "wiki", "--out", results / "both.html")
    assert outcome.code == 0
    said = "Perplexities of different texts cannot be compared, and even bits only with care "
    said += "(books reads stdlib, wiki reads enwik8); "
    assert f"note: {said}this page compares bits per byte instead." in outcome.err
    assert said in (results / "both.html").read_text()
    assert comparison(results, ["books", "wiki"]).quality.name == "bits_per_byte"


def test_other_tokenizers_measures_and_budgets_are_noticed(results: Path) -> None:
    per_token = ["token_perplexity", "flops_per_token"]
    make(results, "tokens", better(), objectives=per_token)
    make(results, "bytes", better(), objectives=per_token, space=SPACE | {"tokenizer": "bytes"})
    assert "where tokenizers may differ" in comparison(results, ["tokens", "bytes"]).remarks[0]
    mixed = comparison(results, ["books", "tokens"])
    assert mixed.quality.name == "bits_per_byte" and [cost.name for cost in mixed.costs] == ["flops_per_token"]
    assert "(books: perplexity per word, tokens: perplexity per token)" in mixed.remarks[0]
    make(results, "longer", better(), budget={"tokens": "4M", "trials": 3})
    assert any("4k in books, 4M in longer" in remark for remark in comparison(results, ["books", "longer"]).remarks)


def test_what_cannot_be_compared_is_a_sentence(results: Path) -> None:
    refused(run("compare"), "two searches")
    refused(run("compare", "books"), "two searches")
    refused(run("compare", "books", "books"), "books is given twice")
    refused(run("compare", "books", "missing"), "there are: books")
    make(results, "unfinished", few()[:8])
    refused(run("compare", "books", "unfinished"), "unfinished has no trial at full budget")
    log = better()
    for event in log:
        event.get("validation", {}).pop("bits_per_byte", None)
    make(results, "old", log, space=SPACE | {"corpus": "enwik8"})
    refused(run("compare", "books", "old"), "different texts", "not all have it")


def test_a_comparison_of_many_has_a_short_name() -> None:
    assert default_file(["a", "b"]) == "compare-a-b.html"
    assert default_file(["x" * 90, "y" * 90, "z"]) == f"compare-{'x' * 90}-and-2-more.html"


@pytest.mark.parametrize("name", ["report", "compare"])
def test_the_help_explains_itself(name: str) -> None:
    outcome = run(name, "--help")
    assert outcome.code == 0 and "NAME" in outcome.out and "--out" in outcome.out


@pytest.mark.slow
def test_reports_need_neither_mlflow_nor_ray_nor_optuna(results: Path) -> None:
    code = (
        "import sys; from recur_tune.cli.main import cli; cli.main(['report', 'books'], standalone_mode=False)\n"
        "assert not {'mlflow', 'ray', 'torch', 'optuna'} & sys.modules.keys(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
