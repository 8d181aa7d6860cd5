"""What a new search makes of earlier ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from recur_tune.common.errors import UserError
from recur_tune.search.propose.features import Features
from recur_tune.search.propose.optuna_study import study_storage
from recur_tune.search.propose.study_agreement import observed_earlier_trials
from recur_tune.search.record.directory import WARM_START, SearchDirectory
from recur_tune.search.record.knowledge import EarlierTrial, Knowledge, read_knowledge
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.warm_start import warm_start_from
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
    start = warm_start_from([earlier], spec_of())
    assert sorted(one["window"] for one in start.spec.first) == [300], "T0 is worse and dearer"
    assert [(one.name, one.state, one.values and one.values[0], one.curve) for one in start.knowledge.told] == [
        ("T0", "complete", 30.0, ((10.0, 30.0),)), ("T1", "complete", 20.0, ((10.0, 20.0),)),
        ("T2", "pruned", None, ((10.0, 40.0),)),
    ]  # fmt: skip
    assert start.knowledge.searches == (), "they are told already"
    assert start.remarks == (
        "earlier: the search begins with 1 trial from its front, knows 3 trials of it as its own.",
    )


def test_a_point_outside_of_the_new_space_is_not_told_but_expected_from(earlier: SearchDirectory) -> None:
    start = warm_start_from([earlier], spec_of(space={"window": [100, 250]}))
    assert start.spec.first == ({**RECURRENT, "window": 250},)
    assert [one.name for one in start.knowledge.told] == ["T0"]
    [search] = start.knowledge.searches
    assert [one.fields for one in search.curves] == [RECURRENT, {**PLAIN, "window": 200, "overlap": 0}]
    assert [one["window"] for one in search.front] == [250]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"space": {"corpus": "recall"}}, "its corpus was another"),
        ({"space": {"base": "tiny"}}, "its base was another"),
        ({"budget": {"trials": 3, "tokens": 1000}}, "another budget of tokens"),
        ({"objectives": ["perplexity", "parameters"]}, "it had other objectives"),
    ],
)
def test_numbers_that_do_not_compare_are_not_told_but_expected_from(
    earlier: SearchDirectory, changes: Any, why: str
) -> None:
    start = warm_start_from([earlier], spec_of(**changes))
    assert start.knowledge.told == () and start.spec.first == ()
    [search] = start.knowledge.searches
    assert [one.fields for one in search.curves] == [PLAIN, RECURRENT, {**PLAIN, "window": 200, "overlap": 0}]
    assert [one.curve for one in search.curves] == [((10 / 20_000_000, value),) for value in (30.0, 20.0, 40.0)]
    [remark] = start.remarks
    assert remark.startswith("earlier: the search expects from 3 learning curves of it (") and f"{why}), as" in remark


def test_a_sampler_that_cannot_expect_begins_with_the_front(earlier: SearchDirectory) -> None:
    start = warm_start_from([earlier], spec_of(space={"corpus": "recall"}, sampler={"name": "tpe"}))
    assert len(start.spec.first) == 1 and start.knowledge == Knowledge()
    assert "begins with 1 trial from its front, knows none of its trials (its corpus was another)" in start.remarks[0]


def test_a_field_keeps_its_value_where_the_new_space_has_no_such(earlier: SearchDirectory) -> None:
    """A number may lie outside of a range, a share is of its own window, and a word may be unknown: it is as far from
    each known one."""
    space = {"corpus": "recall", "window": 50, "recurrence": ["tokens", "cache"],
             "overlap": {"from": 0, "to": 0.1, "of": "window"}}  # fmt: skip
    spec = search(space=space)
    [known] = warm_start_from([earlier], spec).knowledge.searches
    assert known.curves[0].fields == {"recurrence": "none", "overlap": 25, "window": 100}
    features = Features(spec.parsed_space)([one.fields for one in known.curves])
    assert features.tolist() == [[0, 0, 2.5], [0, 0, 0], [0, 0, 0]]


def test_several_searches_teach_and_each_once(earlier: SearchDirectory, tmp_path: Path) -> None:
    earlier.path.rename(tmp_path / "one")
    one = SearchDirectory.open(tmp_path, "one")
    shutil.copytree(one.path, tmp_path / "other")
    other = SearchDirectory.open(tmp_path, "other")
    start = warm_start_from([one, other], spec_of(space={"corpus": "recall"}))
    assert [search.name for search in start.knowledge.searches] == ["one", "other"] and len(start.remarks) == 2
    with pytest.raises(UserError, match=r"^from: one stands twice; "):
        warm_start_from([one, other, one], spec_of())


def test_what_teaches_nothing_is_refused(earlier: SearchDirectory, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^from: earlier varied .*, and this space varies lora_rank; they share no"):
        warm_start_from([earlier], search(space={"lora_rank": [2, 4]}))
    empty = SearchDirectory.create(tmp_path, "empty", spec_of())
    with pytest.raises(UserError, match=r"^from: no trial of empty has ended yet"):
        warm_start_from([earlier, empty], spec_of())


def test_knowledge_reads_as_it_was_written_and_that_of_earlier_versions(earlier: SearchDirectory) -> None:
    for changes in ({}, {"window": [100, 250]}):
        knowledge = warm_start_from([earlier], spec_of(space=changes)).knowledge
        assert read_knowledge(knowledge.as_json()) == knowledge
    old: dict[str, Any] = {"name": "T0", "point": {"window": 100}, "state": "complete", "values": [30.0, 1e6, 1e9]}
    [told] = read_knowledge(json.dumps({"source": "earlier", "told": [old]})).told
    assert told == EarlierTrial(**old)
    [observed] = observed_earlier_trials([told], spec_of())
    assert observed.curve == ((20_000_000, 30.0),)


def test_earlier_trials_are_known_to_the_sampler_and_not_the_searchs_own(
    earlier: SearchDirectory, tmp_path: Path
) -> None:
    known = warm_start_from([earlier], spec_of())
    directory = SearchDirectory.create(tmp_path, "later", known.spec, known.knowledge.as_json())
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
