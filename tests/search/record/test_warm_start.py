"""What a new search makes of an earlier one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from recur_tune.search.propose.optuna_study import study_storage
from recur_tune.search.record.directory import WARM_START, SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.warm_start import WarmStart, warm_start_from
from recur_tune.search.run.searcher import OptunaSearcher
from tests.search.record import search

SPACE: dict[str, Any] = {
    "corpus": "stdlib", "window": [100, 200, 300], "overlap": {"from": 0, "to": 0.5, "step": 0.25, "of": "window"},
    "recurrence": {"none": None, "pooled": {"l_ins": [1, 2]}},
}  # fmt: skip
PLAIN = {"recurrence": "none", "window": 100, "overlap": 25}
RECURRENT = {"recurrence": "pooled", "l_ins": 1, "window": 300, "overlap": 0}


def spec_of(**changes: Any) -> SearchSpec:
    return search(space=SPACE | changes.pop("space", {}), **changes)


@pytest.fixture
def earlier(tmp_path: Path) -> SearchDirectory:
    directory = SearchDirectory.create(tmp_path, "earlier", spec_of())
    costs = {"flops_per_token": 1e6, "training_flops_per_token": 3e6, "peak_memory": 1e9, "parameters": 1e6}
    for number, (params, perplexity, state) in enumerate(
        [
            (PLAIN, 30.0, "complete"),
            (RECURRENT, 20.0, "complete"),
            (PLAIN | {"window": 200, "overlap": 0}, 40.0, "pruned"),
        ]
    ):
        directory.record(
            "trial",
            trial=number,
            params=params,
            costs={name: (2 - number) * cost or cost / 2 for name, cost in costs.items()},
        )
        directory.record("running", trial=number)
        directory.record("report", trial=number, tokens=10, validation={"perplexity": perplexity}, state=state)
    return directory


def test_the_earlier_front_is_tried_first_and_its_trials_are_known(earlier: SearchDirectory) -> None:
    known = warm_start_from(earlier, spec_of())
    assert sorted(one["window"] for one in known.spec.first) == [300], "T0 is worse and dearer"
    assert [(one.name, one.state, one.values and one.values[0]) for one in known.earlier] == [
        ("T0", "complete", 30.0), ("T1", "complete", 20.0), ("T2", "pruned", None),
    ]  # fmt: skip
    assert "its sampler knows 3 trials." in known.in_words


def test_a_point_outside_of_the_new_space_is_brought_into_it_and_not_told(earlier: SearchDirectory) -> None:
    known = warm_start_from(earlier, spec_of(space={"window": [100, 250]}))
    assert known.spec.first == ({**RECURRENT, "window": 250},)
    assert [one.name for one in known.earlier] == ["T0"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"space": {"corpus": "recall"}}, "its corpus was another"),
        ({"space": {"base": "tiny"}}, "its base was another"),
        ({"budget": {"trials": 3, "tokens": 1000}}, "another budget of tokens"),
        ({"objectives": ["perplexity", "parameters"]}, "it had other objectives"),
    ],
)
def test_numbers_that_do_not_compare_are_not_told(earlier: SearchDirectory, changes: Any, why: str) -> None:
    known = warm_start_from(earlier, spec_of(**changes))
    assert known.earlier == [] and why in known.in_words
    assert known.spec.first


def test_earlier_trials_are_known_to_the_sampler_and_not_the_searchs_own(
    earlier: SearchDirectory, tmp_path: Path
) -> None:
    known: WarmStart = warm_start_from(earlier, spec_of())
    directory = SearchDirectory.create(tmp_path, "later", known.spec, known.as_json())
    assert len(json.loads((directory.path / WARM_START).read_text())["told"]) == 3
    with directory.hold_lease():
        for _ in range(2):  # whoever resumes tells nothing twice
            log = directory.open_log()
            OptunaSearcher(known.spec, log, lambda config: {})
    study = optuna.load_study(study_name="later", storage=study_storage(directory.path))
    told = [trial for trial in study.get_trials() if "earlier" in trial.user_attrs]
    assert [trial.state for trial in told] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED]
    assert told[1].values[0] == 20.0 and told[1].params["l_ins"] == 1
    waiting = [trial.user_attrs["role"] for trial in study.get_trials() if trial.state == TrialState.WAITING]
    assert waiting == ["baseline", "paper", "first 1"]
    assert directory.state().trials == {}
