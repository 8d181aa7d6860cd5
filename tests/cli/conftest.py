"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.books import make_books


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one search that has a trial in every state, called `books`."""
    folder = tmp_path / "results"
    monkeypatch.setenv("RECUR_TUNE_RESULTS", str(folder))
    make_books(folder)
    return folder
