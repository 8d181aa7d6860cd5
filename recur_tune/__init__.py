"""Search recurrent configurations of a pretrained language model for the front of quality against compute and memory.

import recur_tune

result = recur_tune.search("quickstart", name="first")
result.front  # a pandas DataFrame
result = recur_tune.open_search("first")  # later
"""

from __future__ import annotations

from collections.abc import Sequence
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
    progress: bool = True,
    from_: str | Sequence[str] = (),
) -> SearchResult:
    """Run a search to its end and give its results. A search of that name that exists already is continued.

    Ctrl-C pauses it, and KeyboardInterrupt is raised once every trial is saved; the same call continues it. Where it
    is paused otherwise, as by its time budget or `recur-tune stop`, it returns, and `result.status` is "paused".

    Args:
        space: A YAML file, the name of a space that comes with recur-tune, or the file's fields as a dict.
        name: The search's name. Default: the file's name and the time.
        results: The folder of all searches. Default: $RECUR_TUNE_RESULTS or ./results.
        address: A Ray cluster, "auto" or "HOST:PORT". Default: one is started on this machine.
        settings: Fields to change, by their dotted names: {"budget.trials": 50}. To continue a search with more
            trials, raise "budget.trials".
        progress: Whether to print a line on stderr for each stage and each trial.
        from_: Names of earlier searches, from which a new one learns. One that is continued knows of them already.
    """
    from recur_tune.api.result import run  # torch, Ray and pandas take seconds to import

    earlier = (from_,) if isinstance(from_, str) else from_
    return run(space, name, results, address, settings or {}, progress, earlier)


def open_search(name: str, results: str | Path | None = None) -> SearchResult:
    """Open a search that was begun before, also while another process runs it: its status, front and trials.

    Args:
        name: The search's name, or its default name.
        results: The folder of all searches. Default: $RECUR_TUNE_RESULTS or ./results.
    """
    from recur_tune.api.result import open_search

    return open_search(name, results)


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


__all__ = ["SearchResult", "open_search", "search"]
