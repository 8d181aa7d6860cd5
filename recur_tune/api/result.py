"""A search from Python: run it, and read its results as tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from recur_tune.api.outputs import OUTPUTS
from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.shipped import find_space
from recur_tune.search.record.directory import SearchDirectory, default_name, results_folder
from recur_tune.search.record.first_trials import changed_fields
from recur_tune.search.record.front import front_rows, search_hypervolume
from recur_tune.search.record.progress import status_of
from recur_tune.search.record.spec import SearchSpec, check_units
from recur_tune.search.record.state import SearchState
from recur_tune.search.record.warm_start import earlier_searches, warm_start_from
from recur_tune.search.run.driver import check_runnable, run_search
from recur_tune.search.run.progress_lines import ProgressLines


@dataclass(frozen=True)
class SearchResult:
    """The results of a search, read from its directory."""

    directory: SearchDirectory

    @cached_property
    def state(self) -> SearchState:
        """The state of all trials, from the log."""
        return self.directory.state()

    @property
    def status(self) -> str:
        """`finished`; `paused`, which the same call of `search` continues; or `preparing`, `running`, `interrupted`
        (its process died), `new`."""
        return status_of(self.directory, self.state)

    @cached_property
    def front(self) -> pd.DataFrame:
        """The front: one row a trial, best quality first; objectives, tokens and parameters as columns, and the
        validation before training as `untrained_perplexity` and the like."""
        rows = front_rows(self.state, self.directory.spec.objectives)
        return pd.DataFrame(
            {
                **{key: value for key, value in row.items() if key not in ("params", "untrained")},
                **{f"untrained_{metric}": value for metric, value in row.get("untrained", {}).items()},
                **row["params"],
            }
            for row in rows
        )

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Every trial, however it ended."""
        objectives = self.directory.spec.objectives
        return pd.DataFrame(
            {
                "trial": trial.name, "state": trial.state, "reason": trial.reason, "tokens": trial.tokens,
                **{name: trial.value(name) for name in objectives}, **trial.params,
            }
            for trial in self.state.trials.values()
        )  # fmt: skip

    @property
    def hypervolume(self) -> float | None:
        """The share of the box below the reference point that the front dominates."""
        return search_hypervolume(self.state, self.directory.spec.objectives)


def run(
    space: str | Path | dict[str, Any],
    name: str | None,
    results: str | Path | None,
    address: str | None,
    settings: dict[str, Any],
    progress: bool,
    earlier: Sequence[str] = (),
) -> SearchResult:
    """Run a search, or resume the one of that name. Raises KeyboardInterrupt where Ctrl-C has paused it."""
    if address is not None and "://" in address:
        raise UserError(f"address: {address!r} is for the command line; from Python give 'auto' or HOST:PORT.")
    tell = _print if progress else _ignore
    written = space if isinstance(space, dict) else read_yaml(find_space(str(space)))
    if not isinstance(space, dict):
        check_units(written)
    stem = "search" if isinstance(space, dict) else Path(space).stem
    fields, remarks = changed_fields(written, list(settings.items()), "the space" if isinstance(space, dict) else stem)
    for remark in remarks:
        tell(f"  note: {remark}")
    spec = parse(SearchSpec, fields)
    folder = results_folder(Path(results) if results else None)
    chosen = name or default_name(stem)
    check_runnable(spec, address)
    if (folder / chosen).exists():
        directory = SearchDirectory.open(folder, chosen)
        if earlier:  # it has its first trials from them
            spec = spec.model_copy(update={"first": directory.spec.first})
    elif earlier:
        start = warm_start_from(earlier_searches(folder, earlier), spec)
        for remark in start.remarks:
            tell(f"  {remark}")
        spec = start.spec
        directory = SearchDirectory.create(folder, chosen, spec, start.knowledge.as_json())
    else:
        directory = SearchDirectory.create(folder, chosen, spec)
    with ProgressLines(directory, tell) as lines:
        run_search(directory, OUTPUTS, address, lines, change=spec)
    if lines.is_pausing:
        raise KeyboardInterrupt(f"{chosen} is paused, and every trial saved; the same call continues it.")
    return SearchResult(directory)


def open_search(name: str, results: str | Path | None) -> SearchResult:
    """Open the results of a search that was begun before."""
    return SearchResult(SearchDirectory.open(results_folder(Path(results) if results else None), name))


def _print(line: str) -> None:
    print(line, file=sys.stderr)


def _ignore(line: str) -> None:
    pass
