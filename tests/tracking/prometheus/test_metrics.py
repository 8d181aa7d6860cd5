"""A search's state as numbers."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from recur_tune.search.record.front import search_hypervolume
from recur_tune.search.record.state import Event, replay
from recur_tune.tracking.prometheus.dashboards import DASHBOARDS, metric, queries
from recur_tune.tracking.prometheus.metrics import METRICS, PREFIX, Sample, samples_of
from tests.report import RUNGS, begun, few, make, opening, params_of, validated
from tests.search.record import search


def told(events: list[Event], folder: Path, **fields: object) -> dict[tuple[str, ...], float]:
    """All that is said of a search with these events, by name and labels."""
    spec = make(folder, events=events, **fields).spec
    return {(sample.name, *sample.by): sample.value for sample in samples_of(replay(events), spec)}


def test_every_sample_has_the_labels_of_its_measure(tmp_path: Path) -> None:
    events = [
        *few(),
        *begun(9, 130, params_of(), 4e5, 2.0**25),
        {"time": 131.0, "kind": "report", "trial": 9, "tokens": 10, "loss": 3.0, "tokens_per_second": 7.0,
         "device_flops": 1e9, "measured_peak_memory": 5},
    ]  # fmt: skip
    directory = make(tmp_path, events=events, limits={"peak_memory": "1GiB"})
    samples = list(samples_of(replay(events), directory.spec))
    for sample in samples:
        assert len(sample.by) == len(METRICS[sample.name].by), sample
    assert len({(sample.name, sample.by) for sample in samples}) == len(samples)
    from_slurm, before_trials = {"allocations", "allocation_seconds_left"}, {"base_share", "base_loss"}
    assert {sample.name for sample in samples} == set(METRICS) - from_slurm - before_trials


def test_a_base_that_is_being_pretrained_in_numbers(tmp_path: Path) -> None:
    preparing: list[Event] = [
        {"time": 0.0, "kind": "search", "status": "preparing"},
        {"time": 1.0, "kind": "stage", "text": "pretraining …", "share": 0.25, "loss": 3.5, "tokens": 1000},
    ]
    said = told(preparing, tmp_path / "during")
    assert (said["base_share",], said["base_loss",]) == (0.25, 3.5)
    started: Event = {"time": 2.0, "kind": "search", "status": "started"}
    assert ("base_share",) not in told([*preparing, started], tmp_path / "after")


def test_a_search_in_numbers(tmp_path: Path) -> None:
    events = few()
    said = told(events, tmp_path, budget={"tokens": 4000, "trials": 12, "rungs": 3})
    state = replay(events)
    counts = {name: said["trials", name] for name in ("complete", "pruned", "failed", "running", "waiting")}
    assert counts == {"complete": 4, "pruned": 1, "failed": 1, "running": 0, "waiting": 0}
    assert said["budget_share",] == 6 / 12
    assert said["tokens",] == sum(trial.tokens for trial in state.trials.values())
    assert said["hypervolume",] == search_hypervolume(state, ("perplexity", "flops_per_token", "peak_memory"))
    assert said["front_trials",] == 3
    assert said["seconds_left",] == pytest.approx(state.active_seconds)  # six of twelve have ended
    assert said["quality", "T1", "perplexity"] == 50.0


def test_rungs_count_who_was_pruned_there_and_who_went_on(tmp_path: Path) -> None:
    said = told(few(), tmp_path)
    state = replay(few())
    first, second, _ = RUNGS
    pruned = next(state.in_state("pruned"))
    assert pruned.tokens == first
    reached = sum(bool(trial.validations) for trial in state.trials.values())
    assert said["rung_decisions", str(first), "pruned"] == 1
    assert said["rung_decisions", str(first), "went on"] == reached - 1
    assert said["rung_decisions", str(second), "pruned"] == 0


@pytest.mark.parametrize(("cause", "paused"), [("frozen", 1), ("", 0)])
def test_a_rung_counts_the_trials_that_it_paused_itself(cause: str, paused: int, tmp_path: Path) -> None:
    report = {"time": 101.0, "kind": "report", "trial": 0, "tokens": RUNGS[0], "validation": {"perplexity": 50.0}}
    end = {"time": 102.0, "kind": "end", "trial": 0, "state": "paused", "cause": cause}
    said = told([*opening(), *begun(0, 100, params_of(), 4e5, 2.0**25), report, end], tmp_path)
    assert said["trials", "paused"] == 1
    assert said["rung_decisions", str(RUNGS[0]), "paused"] == paused
    assert said["rung_decisions", str(RUNGS[0]), "went on"] == 1 - paused


def test_a_running_trial_tells_its_speed_and_an_ended_one_does_not(tmp_path: Path) -> None:
    report = {"time": 101.0, "kind": "report", "trial": 0, "tokens": 1000, "loss": 3.0, "tokens_per_second": 500.0}
    running = [*opening(), *begun(0, 100, params_of(), 4e5, 2.0**25), report | {"device_flops": 1e10}]
    said = told(running, tmp_path / "a")
    assert said["tokens_per_second", "T0"] == 500.0 and said["trial_share", "T0"] == 0.25
    assert said["flops_utilisation", "T0"] == pytest.approx(500.0 * 4 * 4e5 / 1e10)
    assert said["peak_memory_bytes", "T0", "predicted"] == 2.0**25
    ended = told([*running, validated(0, 110, 4000, 60.0, "complete")], tmp_path / "b")
    assert {name for name, *_ in ended} & {"tokens_per_second", "flops_utilisation", "trial_share"} == set()


def test_failures_are_counted_by_cause(tmp_path: Path) -> None:
    events = list(opening())
    for number, (state, cause) in enumerate([("failed", "diverged")] * 2 + [("infeasible", "limit"), ("failed", "")]):
        events += begun(number, 100 + number, params_of(), 4e5, 2.0**25)
        events.append({"time": 110.0, "kind": "end", "trial": number, "state": state, "reason": "x", "cause": cause})
    said = told(events, tmp_path)
    assert said["failures", "diverged"] == 2 and said["failures", "limit"] == 1 and said["failures", "unknown"] == 1


def test_a_search_that_just_began_says_what_it_can(tmp_path: Path) -> None:
    said = told([], tmp_path, budget={"tokens": 4000, "trials": 5, "rungs": 1})
    assert said["budget_share",] == 0 and ("seconds_left",) not in said and ("hypervolume",) not in said
    assert all(math.isfinite(value) for value in said.values())


def test_time_is_a_budget_too(tmp_path: Path) -> None:
    spec = search(budget={"tokens": 4000, "trials": 100, "wall_clock": "40s", "rungs": 1})
    state = replay(few())
    shares = [sample for sample in samples_of(state, spec) if sample.name == "budget_share"]
    assert shares == [Sample("budget_share", min(1.0, state.active_seconds / 40))]


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_no_panel_asks_for_what_nothing_exports(board: object) -> None:
    for query in queries(board):  # type: ignore[arg-type]
        names = re.findall(r"[a-z_]*recur_tune_[a-z_]+", query)
        assert names, query
        for name in names:
            assert name.removeprefix(f"ray_{PREFIX}") in METRICS
        for labels in re.findall(r"by \(([a-z, ]+)\)", query):
            known = {label for name in names for label in METRICS[name.removeprefix(f"ray_{PREFIX}")].labels}
            assert set(labels.split(", ")) <= known


def test_every_measure_is_on_a_board() -> None:
    asked = " ".join(query for board in DASHBOARDS for query in queries(board))
    assert [name for name in METRICS if f"{PREFIX}{name}{{" not in asked] == []


def test_a_name_that_nothing_exports_is_refused() -> None:
    with pytest.raises(KeyError):
        metric("perplexities")


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_a_legend_names_labels_that_the_query_leaves(board: object) -> None:
    for panel in board.to_json()["panels"]:  # type: ignore[attr-defined]
        for target in panel["targets"]:
            [name] = re.findall(rf"ray_{PREFIX}([a-z_]+)", target["expr"])
            grouped = re.search(r"by \(([a-z, ]+)\)", target["expr"])
            left = set(grouped[1].split(", ")) if grouped else set(METRICS[name].labels)
            if target["expr"].startswith("sum("):
                continue
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left, target


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_panels_lie_side_by_side_and_have_numbers_of_their_own(board: object) -> None:
    panels = board.to_json()["panels"]  # type: ignore[attr-defined]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
