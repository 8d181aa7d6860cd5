"""Registry: what comes with recur-tune, and what installed packages bring by entry points.

An entry point names an object that describes one mechanism, task or corpus. Importing it must not import torch: flags
and `--help` need the description.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from recur_tune.common.errors import UserError


class Named(Protocol):
    """What can be an entry of a registry: a description with a name."""

    @property
    def name(self) -> str:
        """What users write."""


Entry = TypeVar("Entry", bound=Named)


class Loaded(NamedTuple, Generic[Entry]):
    """The content of a registry.

    Attributes:
        entries: By name, the built-in ones first.
        problems: One sentence for each entry point that cannot be used.
    """

    entries: dict[str, Entry]
    problems: list[str]


@dataclass(frozen=True)
class Registry(Generic[Entry]):
    """How the entries of one kind are found.

    Attributes:
        noun: What messages call an entry; the command line has it as a field's name.
        group: The group of entry points.
        kind: The class of an entry.
        built_in: What comes with recur-tune, one line each.
        refusal: Given an entry and those that are known, why it cannot stand beside them, as the end of a sentence; or
            None. That another has its name is found without it.
    """

    noun: str
    group: str
    kind: type[Entry]
    built_in: tuple[Entry, ...]
    refusal: Callable[[Entry, Mapping[str, Entry]], str | None] = lambda entry, known: None

    def load(self, points: Iterable[EntryPoint] | None = None) -> Loaded[Entry]:
        """Import what the entry points name, by default those of all installed packages."""
        entries, problems = {one.name: one for one in self.built_in}, list[str]()
        for point in sorted(
            _installed().select(group=self.group) if points is None else points, key=lambda one: one.name
        ):
            source = point.dist.name if point.dist else point.value
            try:
                entry = point.load()
                problem = self._problem(entry, entries)
            except Exception as error:  # a foreign module may raise anything
                problem = f"cannot be loaded ({' '.join(f'{type(error).__name__}: {error}'.split())})"
            if problem:
                problems.append(f"{self.noun}: {point.name!r} of {source} {problem}; mend or uninstall it.")
            else:
                entries[entry.name] = entry
        return Loaded(entries, problems)

    def _problem(self, entry: Any, known: Mapping[str, Entry]) -> str | None:
        if not isinstance(entry, self.kind):
            return f"is a {type(entry).__name__}, not a {self.kind.__name__}"
        if entry.name in known:
            return f"wants to be called {entry.name!r}, which is the name of another"
        return self.refusal(entry, known)


def refused_fields(spec: type[BaseModel], others: Mapping[str, type[BaseModel]]) -> str | None:
    """Why fields cannot stand beside those of `others`, as the end of a sentence; or None.

    All fields are flags of one command and keys of one file, so a name may mean one thing only.
    """
    for owner, other in others.items():
        for name, field in spec.model_fields.items():
            theirs = other.model_fields.get(name)
            if theirs is not None and _meaning(field) != _meaning(theirs):
                return f"has a field {name!r} of another type, default or description than that of {owner!r}"
    for name, field in spec.model_fields.items():
        if field.is_required() or not field.description:
            return f"has a field {name!r} without a default or a description"
    return None


def check_fields(noun: str, specs: Mapping[str, type[BaseModel]], reserved: Collection[str]) -> None:
    """Refuse an entry with a field whose name is reserved for a field of every trial."""
    for owner, spec in specs.items():
        for name in spec.model_fields.keys() & set(reserved):
            raise UserError(f"{noun}: {owner!r} has a field {name!r}, which every trial has; rename it.")


def check_problems(problems: Iterable[str]) -> None:
    """Refuse to continue with an installed package that cannot be used."""
    for problem in problems:
        raise UserError(problem)


@cache
def _installed() -> Any:
    """Those of all packages: to find them takes a tenth of a second, and there are several registries."""
    return entry_points()


def _meaning(field: FieldInfo) -> tuple[Any, ...]:
    return field.annotation, field.metadata, field.default, field.description
