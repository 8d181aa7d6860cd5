"""MLflow's run list as a search is best read in it: which runs, in which order, with which columns.

MLflow keeps a view that somebody shares as a tag of the experiment, and opens it from an address that has its key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from recur_tune.searching.objectives import OBJECTIVES
from recur_tune.searching.spec import SearchSpec
from recur_tune.tracking.places import Delivered

_VIEW_TAG = "mlflow.sharedViewState."
TRIALS, FRONT = "trials", "front"
# Which MLflow always shows; the boxes to tick have no name, and a number by how often a list was drawn.
_FIRST_COLUMNS = (*map(str, range(10)), "attributes.`Run Name`", "runDateAndNestInfo", "duration")


def view_address(delivered: Delivered, view: str) -> str:
    """Where a search's view is shown below MLflow's own address."""
    return f"{delivered.run_list}&viewStateShareKey={view}-{delivered.parent}"


def view_tags(spec: SearchSpec, delivered: Delivered) -> dict[str, str]:
    """The experiment's tags that hold a search's views."""
    own = f"tags.`mlflow.parentRunId` = '{delivered.parent}'"
    conditions = {TRIALS: own, FRONT: f"tags.pareto = 'true' and {own}"}
    return {
        f"{_VIEW_TAG}{view}-{delivered.parent}": json.dumps(_view(spec, condition))
        for view, condition in conditions.items()
    }


def _view(spec: SearchSpec, condition: str) -> Mapping[str, Any]:
    quality = next(name for name in spec.objectives if OBJECTIVES[name].kind == "quality")
    columns = list(_columns(spec))
    return {
        "searchFilter": condition,
        "orderByKey": f"metrics.`{quality}`",
        "orderByAsc": True,
        "selectedColumns": columns,
        "columnOrder": [*_FIRST_COLUMNS, *columns],
        "runsHiddenMode": "SHOW_ALL",
    }


def _columns(spec: SearchSpec) -> Iterator[str]:
    """What a person decides by: the objectives, what the search chose, and how the trial ended."""
    yield from (f"metrics.`{name}`" for name in spec.objectives)
    yield from (f"params.`{name}`" for name in spec.parsed_space.names)
    yield from (f"tags.`{name}`" for name in ("pareto", "recur_tune.state"))
