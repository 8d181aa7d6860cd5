"""What mattered: a cost's importances against its own function, a quality's against what it was made of."""

from __future__ import annotations

import json
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recur_tune.config.trial import TrialConfig
from recur_tune.cost.descriptors import COSTS
from recur_tune.report.figures.style import Panel
from recur_tune.report.grid import Grid, axes_of
from recur_tune.report.importance import importance_panel, importances
from recur_tune.report.ridge import Columns, fitted, left_out
from recur_tune.report.search_view import SearchView, read_search
from recur_tune.report.shares import Shares
from recur_tune.search.record.space_parsing import read_space
from tests.report import begun, few, make, many, opening, params_of, validated
from tests.search.record import search as spec_of


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> SearchView:
    """Perplexity is made of the learning rate, the overlap and the recurrence; FLOPs are made up, memory is chance."""
    return read_search(make(tmp_path_factory.mktemp("big"), events=many(150)))


def bars(panel: Panel, title: str) -> dict[str, Any]:
    assert panel.figure is not None
    [trace] = [trace for trace in panel.figure["data"] if trace.get("name") == title]
    return trace


def found(search: SearchView, objective: str) -> Shares:
    shares = importances(search)[objective]
    assert isinstance(shares, Shares), shares
    return shares


def priced(tmp_path: Path, memory: Any, **space: Any) -> SearchView:
    """Trials that got a price at every point of a space of choices, and were too dear."""
    events = opening()
    for number, values in enumerate(product(*space.values())):
        params = dict(zip(space, values, strict=True))
        events += begun(number, 100, params, 4e5, memory(params))[:1]
        events.append({"time": 100.0, "kind": "end", "trial": number, "state": "infeasible", "reason": "too dear"})
    return read_search(make(tmp_path, events=events, space={"base": "tiny", **space}))


def test_an_axis_has_its_parameter_s_total_effect() -> None:
    grid = Grid.over(
        spec_of(space={"window": [16, 32], "batch": [2, 4], "seed": [0, 1]}), {"window", "batch", "seed"}, 8
    )
    window, batch = (np.array([getattr(config, name) for config in grid.configs]) for name in ("window", "batch"))
    assert grid.is_whole and len(grid.configs) == 8
    added = grid.effects(window / 16 + batch)  # 1 or 2, and 2 or 4
    assert added == pytest.approx({"window": 0.25 / 1.25, "batch": 1 / 1.25, "seed": 0})
    assert added["seed"] == 0, "exactly"
    # Of a product a factor has its own variance times the other's mean square.
    times = grid.effects(1.0 * window * batch)
    assert times == pytest.approx({"window": 64 * 10 / (64 * 10 + 640), "batch": 640 / (64 * 10 + 640), "seed": 0})
    assert grid.effects(np.full(8, 0.1)) == {"window": 0, "batch": 0, "seed": 0}


def test_a_range_has_the_mean_and_the_variance_of_all_its_values() -> None:
    space = read_space({"learning_rate": {"from": 1e-4, "to": 1e-2, "log": True}, "dropout": {"from": 0, "to": 0.5}})
    axes = axes_of(space, {"learning_rate", "dropout"})
    assert np.mean(axes["dropout"]) == pytest.approx(0.25) and np.var(axes["dropout"]) == pytest.approx(0.25 / 12)
    logs = np.log10(axes["learning_rate"])
    assert np.mean(logs) == pytest.approx(-3) and np.var(logs) == pytest.approx(4 / 12)


def test_a_grid_has_the_parameters_that_decide_its_fields() -> None:
    space = {
        "recurrence": {"none": None, "pooled": {"width": [20, 30]}}, "seed": {0: {"batch": 4}, 1: {"batch": 8}},
        "bptt_windows": [20, 40], "overlap": {"from": 0, "to": 0.2, "step": 0.1, "of": "bptt_windows"},
        "learning_rate": [1e-3, 1e-2],
    }  # fmt: skip
    assert axes_of(read_space(space), {"width"}).keys() == {"recurrence", "width"}, "with what it stands below"
    assert axes_of(read_space(space), {"batch"}) == {"seed": (0, 1)}, "it comes with another's value"
    grid = Grid.over(spec_of(space=space), {"overlap"}, 100)
    assert grid.lines.keys() == {"bptt_windows", "overlap_of_bptt_windows"}
    assert sorted(config.overlap for config in grid.configs) == [0, 2, 4, 8], "those that differ in nothing are one"


def test_a_large_space_has_lines_through_some_of_its_points() -> None:
    values = list(range(1, 101))
    grid = Grid.over(spec_of(space={"width": values, "batch": values, "depth": values}), {"width", "batch", "depth"}, 5)
    assert not grid.is_whole
    assert {label: places.shape for label, places in grid.lines.items()} == dict.fromkeys(grid.lines, (5, 100))
    widths = np.array([float(config.width) for config in grid.configs])
    assert grid.effects(widths) == {"width": 1, "batch": 0, "depth": 0}


def test_a_cost_s_importances_are_its_function_s_over_the_space(tmp_path: Path) -> None:
    space = {"base": "tiny", "window": [16, 32], "overlap": [0, 8], "learning_rate": [1e-4, 1e-2], "seed": [0, 1]}
    shares = found(read_search(make(tmp_path, events=few(), space=space | {"recurrence": "none"})), "flops_per_token")
    layers, k = 3, 64
    blocks = {window: layers * (24 * k * k + 2 * k * (window + 1)) for window in (16, 32)}
    table = np.array([[blocks[window] * window / (window - overlap) for overlap in (0, 8)] for window in (16, 32)])
    left = [table.var(axis=0).mean(), table.var(axis=1).mean()]
    assert shares.is_computed and "exactly" in shares.source
    assert shares.mean == pytest.approx({"window": left[0] / sum(left), "overlap": left[1] / sum(left)})


def test_what_does_not_enter_a_cost_has_no_share_in_it(tmp_path: Path) -> None:
    """Prices that are lower by chance where the learning rate is."""
    space = {"window": [16, 32, 64], "overlap": [0, 4], "learning_rate": [1e-4, 1e-2]}
    search = priced(tmp_path, lambda params: 1e6 * params["window"] * (1 + 1e2 * params["learning_rate"]), **space)
    shares = importances(search)
    for cost in ("flops_per_token", "peak_memory"):
        one = shares[cost]
        assert isinstance(one, Shares)
        assert one.mean.keys() <= COSTS[cost].fields and sum(one.mean.values()) == pytest.approx(1.0)
    assert found(search, "peak_memory").mean == pytest.approx({"window": 1.0, "overlap": 0.0}, abs=0.01)
    panel = importance_panel(search)
    for title in ("FLOPs/token", "peak memory"):
        shown = bars(panel, title)
        assert shown["x"][shown["y"].index("learning_rate")] == 0


def test_peak_memory_is_modelled_from_every_trial_with_a_price(tmp_path: Path) -> None:
    """Prices that are a product: the model finds them, and their variance is known."""
    space = {"window": [16, 32, 64], "width": [20, 60, 180], "learning_rate": [1e-4, 1e-2]}
    search = priced(tmp_path, lambda params: 1e4 * params["window"] * params["width"] ** 0.5, **space)
    shares = found(search, "peak_memory")
    table = np.outer([16, 32, 64], np.sqrt([20, 60, 180]))
    left = [table.var(axis=0).mean(), table.var(axis=1).mean()]
    assert shares.mean == pytest.approx({"window": left[0] / sum(left), "width": left[1] / sum(left)}, abs=0.02)
    assert not shares.is_computed and all(0 < error < 0.05 for error in shares.error.values())
    assert shares.source.startswith("peak memory by a model of 18 trials, which explains 100 %")


def test_a_model_knows_a_trial_that_it_has_not_seen() -> None:
    configs = [TrialConfig(window=w, overlap=0, width=k) for w in (16, 32, 64) for k in (10, 20, 40)]
    configs += [TrialConfig(window=w, recurrence="none") for w in (16, 32, 64)]
    rows = Columns.of_trials(configs, configs, {"window", "width", "recurrence", "seed"}).rows(configs)
    values = np.log([c.window * (c.width if c.mechanism else 3.0) for c in configs])
    assert fitted(rows, values, 1e-6)(rows) == pytest.approx(values, abs=1e-4)
    others = [fitted(np.delete(rows, at, 0), np.delete(values, at), 1e-6)(rows[at]) for at in range(len(rows))]
    assert left_out(rows, values, 1e-6) == pytest.approx(values - others, abs=1e-3)


def test_a_base_s_shape_is_read_without_a_network(tmp_path: Path) -> None:
    space = {"base": "my/own", "window": [16, 32], "recurrence": "none"}
    unknown = read_search(make(tmp_path / "unknown", events=few(), space=space))
    assert importances(unknown)["flops_per_token"] == "FLOPs/token takes 10 trials, and there are 6"
    folder = tmp_path / "base"
    folder.mkdir()
    settings = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_inner": 16}
    (folder / "config.json").write_text(json.dumps(settings))
    known = read_search(make(tmp_path / "known", events=few(), space=space | {"base": str(folder)}))
    assert found(known, "flops_per_token").mean == {"window": 1.0}


def test_every_cost_with_a_closed_form_is_computed(tmp_path: Path) -> None:
    costs = ["flops_per_token", "training_flops_per_token", "inference_memory", "parameters"]
    space = {"base": "gpt2", "recurrence": {"none": None, "pooled": {"width": [100, 200]}}, "window": [100, 200]}
    search = read_search(make(tmp_path, events=few(), space=space, objectives=["perplexity", *costs]))
    shares = importances(search)
    for cost in costs:
        one = shares[cost]
        assert isinstance(one, Shares) and one.is_computed and sum(one.mean.values()) == pytest.approx(1.0)
    assert {field for field, share in found(search, "parameters").mean.items() if share} == {"recurrence", "width"}
    assert found(search, "inference_memory").mean.keys() == {"recurrence", "window"}


def test_a_quality_s_importances_are_its_true_ones_with_errors(big: SearchView) -> None:
    panel, shares = importance_panel(big), found(big, "perplexity")
    assert sum(shares.mean.values()) == pytest.approx(1.0)
    made_of = {"overlap_of_window", "recurrence", "learning_rate"}
    assert set(sorted(shares.mean, key=lambda label: -shares.mean[label])[:3]) == made_of
    assert sum(shares.mean[label] for label in made_of) > 0.8
    assert shares.mean["l_ins"] == 0, "which no trial varied"
    assert all(0 < shares.error[label] < 0.3 for label in made_of)
    shown = bars(panel, "perplexity per word")
    assert shown["error_x"]["array"][shown["y"].index("learning_rate")] == shares.error["learning_rate"]
    assert f"perplexity per word by a model of {len(big.complete)} trials at full budget" in panel.caption
    assert "± are a standard deviation over bootstrap resamples" in panel.caption
    assert "For perplexity per word " in panel.caption
    assert "Not here: peak memory, which a model of 150 trials does not explain." in panel.caption


def test_from_few_trials_stands_how_many_it_takes(tmp_path: Path) -> None:
    panel = importance_panel(read_search(make(tmp_path, events=few())))
    assert "Not here: perplexity per word takes 20 trials at full budget, and there are 4; " in panel.caption
    assert "peak memory takes 10 trials, and there are 6." in panel.caption
    assert bars(panel, "FLOPs/token")["x"], "which needs none"


def test_a_plain_trial_has_no_part_in_what_a_recurrence_s_width_did(tmp_path: Path) -> None:
    """The space lists the width beside the recurrence, so the sampler decides it for plain trials too."""
    events = opening()
    for number in range(40):
        kind = ("none", "pooled")[number % 2]
        params = {"recurrence": kind, "width": 16 + 6 * number, "window": (16, 32)[number // 2 % 2]}
        events += begun(number, 100, params, 4e5, 2.0**25)
        quality = 50 + number * (kind == "none") + params["window"]
        events.append(validated(number, 101, 4000, quality, "complete"))
    space: dict[str, Any] = {"base": "tiny", "recurrence": ["none", "pooled"], "width": {"from": 16, "to": 256}}
    search = read_search(make(tmp_path, events=events, space=space | {"window": [16, 32]}))
    assert found(search, "perplexity").mean["width"] < 0.02


def test_equal_trials_have_nothing_to_tell(tmp_path: Path) -> None:
    events = opening()
    for number in range(20):
        events += begun(number, 100, params_of(), 4e5, 2.0**25) + [validated(number, 101, 4000, 50.0, "complete")]
    shares = importances(read_search(make(tmp_path, events=events)))
    assert shares["perplexity"] == "perplexity per word is the same in all trials"


def test_nobody_warns_of_anything(tmp_path: Path) -> None:
    events = opening()
    for number in range(20):  # of a parameter that too few trials have Optuna would
        params = params_of("none" if number else "pooled", rate=10 ** (-2 - number / 10))
        events += begun(number, 100, params, 4e5 + number, 2.0**25 + number)
        events.append(validated(number, 101, 4000, 50.0 + number, "complete"))
    search = read_search(make(tmp_path, events=events))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        importance_panel(search)
    assert [str(one.message) for one in said] == []
