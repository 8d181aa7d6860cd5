"""A registry: what entry points name stands beside what is built in, or is refused in a sentence."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from recur_tune.data.corpora.registry import CORPORA, REGISTRY

TEXT = CORPORA["text"]
GIVEN: dict[str, Any] = {
    "songs": replace(TEXT, name="songs"), "taken": TEXT, "colon": replace(TEXT, name="text:songs"), "class": str,
}  # fmt: skip


class Given(EntryPoint):
    """An entry point whose object is at hand."""

    def load(self) -> Any:
        return GIVEN[self.value]


def load(*names: str) -> Any:
    return REGISTRY.load(Given(name, name, REGISTRY.group) for name in names)


def test_foreign_entries_come_behind_the_built_in_ones() -> None:
    assert [*load("songs").entries] == [*CORPORA, "songs"] and not load("songs").problems


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("taken", "wants to be called 'text', which is the name of another"),
        ("colon", "has a colon in its name 'text:songs'"),
        ("class", "is a type, not a CorpusKind"),
        ("missing", "cannot be loaded (KeyError: 'missing')"),
    ],
)
def test_one_that_cannot_be_used_leaves_the_others(name: str, problem: str) -> None:
    found = load(name, "songs")
    assert [*found.entries] == [*CORPORA, "songs"]
    assert found.problems == [f"corpus: {name!r} of {name} {problem}; mend or uninstall it."]
