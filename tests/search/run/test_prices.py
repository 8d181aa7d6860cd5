"""Prices of a search's trials: each cost is computed when it is asked for, and is the same however it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recur_tune.common.parsing import parse
from recur_tune.config.base_shape import base_settings
from recur_tune.config.trial import TrialConfig
from recur_tune.cost import counted_flops
from recur_tune.cost.estimate import estimate
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.run.driver import _simulate_worst_costs
from recur_tune.search.run.preparation import Prices, worst_costs

SPACE: dict[str, Any] = {
    "base": "tiny", "recurrence": ["none", "gated_delta"], "window": 16, "batch": 2, "trainable": "lora",
    "lora_rank": [2, 4], "learning_rate": {"from": 1e-4, "to": 1e-3, "log": True},
}  # fmt: skip


def spec_of(**fields: Any) -> SearchSpec:
    return parse(
        SearchSpec,
        {
            "space": SPACE,
            "objectives": ["token_perplexity", "peak_memory"],
            "budget": {"tokens": 100, "trials": 9},
            **fields,
        },
    )


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What training FLOPs were counted for, each by a simulated step."""
    steps: list[Any] = []
    count = counted_flops.frozen_training_flops

    def noted(config: TrialConfig, *given: Any) -> float:
        steps.append(config)
        return count(config, *given)

    monkeypatch.setattr(counted_flops, "frozen_training_flops", noted)
    return steps


def test_costs_are_the_same_one_at_a_time_and_all_at_once(counted: list[Any]) -> None:
    for config in spec_of().corners[::3]:
        expected = estimate(config, base_settings(config.base, None)).costs
        counted.clear()
        prices = Prices()
        assert prices.only(config, {"peak_memory"}) == {"peak_memory": expected["peak_memory"]} and not counted
        assert prices(config) == prices(config) == expected and len(counted) == 1
        assert list(prices(config)) == list(expected), "in the order in which they are told"


def test_neither_the_reference_nor_a_choice_counts_training_flops(counted: list[Any]) -> None:
    spec, prices = spec_of(), Prices()
    sampler = KnownCosts(spec, prices, spec.trial_config)
    reference = worst_costs(spec, prices, lambda config: config)
    [candidate] = sampler.pool([])[:1]
    assert not candidate.exact and sampler._is_affordable(candidate)
    assert not counted and candidate.exact
    assert candidate.costs == prices.only(spec.trial_config(candidate.fields), {*candidate.costs})
    assert 0 < candidate.costs["peak_memory"] <= reference["peak_memory"]


def test_the_reference_is_computed_beside_other_work_and_once(tmp_path: Path) -> None:
    spec = spec_of()
    log = SearchDirectory.create(tmp_path, "one", spec).open_log()
    found = _simulate_worst_costs(spec, log)
    assert found is not None and found.result() == worst_costs(spec, Prices(), lambda config: config)
    log.record("reference", values=found.result())
    assert _simulate_worst_costs(spec, log) is None
