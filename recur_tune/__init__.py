"""Search recurrent configurations of a pretrained language model for the front of quality against compute and memory.

import recur_tune

result = recur_tune.search("quickstart", name="first")
result.front  # a pandas DataFrame
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from recur_tune.common.deprecated import understand_old_modules

if TYPE_CHECKING:
    from recur_tune.api.result import SearchResult

# What packages with a recurrence of their own import, what jobs run that wait or started before an update, and where a
# pickled SearchResult says that its class is.
understand_old_modules(
    {
        "recur_tune.corpus.windows": "recur_tune.common.windowing",
        "recur_tune.errors": "recur_tune.common.errors",
        "recur_tune.model.recurrence": "recur_tune.recurrences.seam",
        "recur_tune.search.run.result": "recur_tune.api.result",
        "recur_tune.shape": "recur_tune.common.shape",
        "recur_tune.sites.ray.command": "recur_tune.cluster.command",
        "recur_tune.slurm.job": "recur_tune.sites.slurm.job",
    },
    removed_in="0.4.0",
)


def search(
    space: str | Path | dict[str, Any],
    name: str | None = None,
    results: str | Path | None = None,
    address: str | None = None,
    settings: dict[str, Any] | None = None,
) -> SearchResult:
    """Run a search to its end and give what it found.

    `space` is a YAML file, the name of a shipped space, or the same as a dict; `settings` changes fields by their
    dotted names, {"budget.trials": 50}. A search of that name that exists already is continued, if it is the same.
    """
    from recur_tune.api.result import run  # torch, Ray and pandas take seconds to import

    return run(space, name, results, address, settings or {})


class _CallablePackage(ModuleType):
    """The package `recur_tune.search` as a function. Python puts a package that is imported in the place of a function
    of the same name, so `recur_tune.search(...)` has to work with either."""

    __call__ = staticmethod(search)


import_module("recur_tune.search").__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    """`SearchResult`, when it is asked for: pandas takes a second to import."""
    if name != "SearchResult":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from recur_tune.api.result import SearchResult

    return SearchResult


__all__ = ["SearchResult", "search"]
