"""Shared views of MLflow's run list: which runs, in which order, with which columns.

MLflow keeps a shared view as a tag of the experiment, and opens it from an address with its key.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.tracking_place import Delivered
from recur_tune.tracking.mlflow.internals import VIEW_TAG
from recur_tune.tracking.mlflow.units import metric_name

TRIALS, FRONT, SEARCHES = "trials", "front", "searches"
# Which MLflow always shows; the checkboxes are named by a number that grows with every redraw.
_FIRST_COLUMNS = (*map(str, range(10)), "attributes.`Run Name`", "runDateAndNestInfo", "duration")
_STATE, _ON_FRONT = "tags.`state`", "tags.`pareto`"


def view_address(delivered: Delivered, view: str) -> str:
    """Path of a view below MLflow's address."""
    return f"{delivered.run_list}&viewStateShareKey={_key(view, delivered)}"


def view_tags(spec: SearchSpec, delivered: Delivered) -> dict[str, str]:
    """The experiment's tags that hold a search's views, and the one of all searches."""
    own = f"tags.`mlflow.parentRunId` = '{delivered.parent}'"
    quality = next(name for name in spec.objectives if OBJECTIVES[name].kind == "quality")
    objectives = [f"metrics.`{metric_name(name)}`" for name in spec.objectives]
    chosen = [f"params.`{name}`" for name in spec.parsed_space.names]
    # How the trial ended, the objectives, and the chosen parameters.
    of_trials = [_STATE, *objectives, _ON_FRONT, *chosen]
    of_searches = [_STATE, "metrics.`hypervolume`", *objectives, _ON_FRONT, "params.`base`", "params.`corpus`"]
    best_first = {"orderByKey": f"metrics.`{metric_name(quality)}`", "orderByAsc": True}
    views = {
        TRIALS: _view(own, of_trials) | best_first,
        FRONT: _view(f"tags.pareto = 'true' and {own}", of_trials) | best_first,
        SEARCHES: _view("", of_searches) | {"orderByKey": "attributes.start_time", "orderByAsc": False},
    }
    return {f"{VIEW_TAG}{_key(view, delivered)}": json.dumps(state) for view, state in views.items()}


def _key(view: str, delivered: Delivered) -> str:
    return view if view == SEARCHES else f"{view}-{delivered.parent}"


def _view(condition: str, columns: Sequence[str]) -> dict[str, Any]:
    return {
        "searchFilter": condition,
        "selectedColumns": columns,
        "columnOrder": [*_FIRST_COLUMNS, *columns],
        "runsHiddenMode": "SHOW_ALL",
    }
