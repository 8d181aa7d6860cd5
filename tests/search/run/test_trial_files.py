"""What lies about after a driver was killed, and what of it is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from recur_tune.search.record.directory import MODEL, SearchDirectory
from recur_tune.search.run.trial_files import remove_leftovers
from recur_tune.training import RESUME
from tests.cli.books import make_books


@pytest.fixture
def books(tmp_path: Path) -> SearchDirectory:
    """T0 and T1 are on the front, T2 is beaten, T3 pruned, T4 runs, T5 and T6 ended without a report."""
    make_books(tmp_path)
    directory = SearchDirectory.open(tmp_path, "books")
    for number in range(7):
        for name in (RESUME, MODEL, ".partial-abc", f"{RESUME}/.partial-def"):
            (directory.trial(number) / name).mkdir(parents=True, exist_ok=True)
    return directory


@pytest.mark.parametrize(("keep", "models"), [("front", [0, 1]), ("all", [0, 1, 2]), ("none", [])])
def test_a_resume_keeps_checkpoints_to_continue_from_and_wanted_models(
    books: SearchDirectory, keep: str, models: list[int]
) -> None:
    remove_leftovers(books.spec.model_copy(update={"keep": keep}), books.open_log())
    with_checkpoint = [number for number in range(7) if (books.trial(number) / RESUME).exists()]
    with_model = [number for number in range(3) if (books.trial(number) / MODEL).exists()]
    assert (with_checkpoint, with_model) == ([4], models)
    assert not list(books.path.rglob(".partial-*"))
