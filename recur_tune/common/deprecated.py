"""Deprecated names: what a file, a flag or a plugin of an earlier version says is understood for two minor versions.

Every old name gives one warning a process, which names the new one and the version in which the old one goes.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, NamedTuple, TypeVar

AnyClass = TypeVar("AnyClass")


class DeprecatedName(FutureWarning):
    """An old name was used; the message is a whole sentence."""


class Renamed(NamedTuple):
    """A field that has another name today.

    Attributes:
        to: Its names of today, as a sentence has them.
        removed_in: The version that no longer understands it.
        translate: Given its value, the fields of today.
        mistaken: What else a person may have meant by it, as a sentence; empty where nothing is near.
    """

    to: str
    removed_in: str
    translate: Callable[[Any], dict[str, Any]]
    mistaken: str = ""


def renamed(to: str, removed_in: str, mistaken: str = "") -> Renamed:
    """A field whose name alone has changed."""
    return Renamed(to, removed_in, lambda value: {to: value}, mistaken)


_warned: set[str] = set()


def warn_once(old: str, new: str, removed_in: str, mistaken: str = "") -> None:
    """Say once in this process that a name is old, and what else may have been meant."""
    if old not in _warned:
        _warned.add(old)
        sentence = f"{old}: it is called {new} now; the old name goes in version {removed_in}. {mistaken}"
        warnings.warn(sentence.rstrip(), DeprecatedName, stacklevel=3)


def with_current_names(fields: Mapping[str, Any], table: Mapping[str, Renamed]) -> dict[str, Any]:
    """Fields under their names of today, in their order; a field that has both names keeps what today's says."""
    if table.keys().isdisjoint(fields):
        return dict(fields)
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if (change := table.get(name)) is None:
            found[name] = value
            continue
        warn_once(name, change.to, change.removed_in, change.mistaken)
        found |= {new: own for new, own in change.translate(value).items() if new not in fields}
    return found


def accepts_old_arguments(removed_in: str, **new_names: str) -> Callable[[type[AnyClass]], type[AnyClass]]:
    """A class whose constructor understands arguments by their old names, as `old="new"`."""

    def decorate(cls: type[AnyClass]) -> type[AnyClass]:
        construct: Any = cls.__init__

        @wraps(construct)
        def understanding(self: AnyClass, *positional: Any, **named: Any) -> None:
            for old, new in new_names.items():
                if old in named:
                    warn_once(old, new, removed_in)
                    named[new] = named.pop(old)
            construct(self, *positional, **named)

        cls.__init__ = understanding  # type: ignore[method-assign,assignment]
        return cls

    return decorate


class _OldModules(MetaPathFinder, Loader):
    """Finds modules by the names that they had, for packages and job scripts that say these."""

    def __init__(self, table: Mapping[str, str], removed_in: str) -> None:
        self._table, self._removed_in = table, removed_in
        self._packages = {name.rpartition(".")[0] for name in table}

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in self._table:
            return ModuleSpec(name, self, origin=self._table[name])  # sys.argv[0] after `python -m`
        return ModuleSpec(name, self, is_package=True) if name in self._packages else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of today in its place; a package has nothing of its own."""
        if new := self._table.get(module.__name__):
            warn_once(module.__name__, new, self._removed_in)
            sys.modules[module.__name__] = importlib.import_module(new)

    def get_code(self, name: str) -> CodeType | None:
        """For `python -m`, which a job script says that has waited in a queue since before."""
        warn_once(name, self._table[name], self._removed_in)
        spec = importlib.util.find_spec(self._table[name])
        return spec.loader.get_code(spec.name) if spec and isinstance(spec.loader, InspectLoader) else None


def understand_old_modules(table: Mapping[str, str], removed_in: str) -> None:
    """Let `import` find modules by their old names, as {old: new}."""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules(table, removed_in))
