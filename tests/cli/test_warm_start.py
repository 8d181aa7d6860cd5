"""`recur-tune search --from`: what is said of earlier searches, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from recur_tune.search.record.directory import SearchDirectory
from tests.cli.books import make_books, refused
from tests.cli.run import run
from tests.search.record import search


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A space beside a folder of results with two earlier searches."""
    monkeypatch.setenv("RECUR_TUNE_RESULTS", str(tmp_path / "results"))
    for name in ("books", "tales"):
        make_books(tmp_path / name)
        (tmp_path / "results").mkdir(exist_ok=True)
        (tmp_path / name / "books").rename(tmp_path / "results" / name)
    fields: dict[str, Any] = {
        "space": {"base": "tiny", "corpus": "recall", "recurrence": "none", "window": [16, 32], "batch": 2},
        "budget": {"tokens": "8k", "trials": 3},
    }
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(fields))
    return tmp_path / "space.yaml"


def test_a_dry_run_says_what_it_learns_from_whom(space: Path) -> None:
    shown = run("search", space, "--dry-run", "--from", "books", "--from", "tales", "--json")
    assert shown.code == 0, shown.err
    learned = json.loads(shown.out)["learned"]
    assert [line.partition(":")[0] for line in learned] == ["books", "tales"]
    assert all("expects from 4 learning curves of it (its corpus was another)" in line for line in learned), learned


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["book"], ["from: there is no search 'book'", "there are: books, tales"]),
        (["books", "tales", "books"], ["from: books stands twice"]),
        (["books", "empty"], ["from: no trial of empty has ended yet", "recur-tune status empty"]),
        (["other"], ["from: other varied lora_rank", "this space varies window", "share no field"]),
    ],
)
def test_what_teaches_nothing_is_refused(space: Path, names: list[str], words: list[str]) -> None:
    results = space.parent / "results"
    SearchDirectory.create(results, "empty", search())
    other = SearchDirectory.create(results, "other", search(space={"lora_rank": [2, 4]}))
    other.record("trial", trial=0, params={"lora_rank": 2}, costs={})
    other.record("report", trial=0, tokens=9, validation={"perplexity": 9.0}, state="complete")
    flags = [word for name in names for word in ("--from", name)]
    refused(run("search", space, "--name", "x", *flags), *words)
    assert not (results / "x").exists()
