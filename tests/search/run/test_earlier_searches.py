"""A search that learns from others, as Ray drives it: what it knows stays with it."""

from __future__ import annotations

import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose import gaussian_process
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.warm_start import warm_start_from
from tests.search.run.driving import FIELDS, Driver, price

SPACE: dict[str, Any] = {
    "base": "tiny",
    "recurrence": "none",
    "window": [16, 32, 64],
    "learning_rate": [1e-4, 1e-3, 1e-2],
}
CHANGES: dict[str, Any] = {
    "space": SPACE, "sampler": {"name": "known-costs"}, "budget": {"tokens": 100, "trials": 8, "rungs": 2},
}  # fmt: skip


def quality(trial: dict[str, Any]) -> float:
    """One learning rate is best."""
    return 5.0 + 2 * abs(math.log10(trial["learning_rate"] / 1e-3)) + 8 / trial["window"]


def run(driver: Driver, trials: int = 100) -> list[tuple[int, float]]:
    """Windows and learning rates of the trials that are handed out, each trained as far as the search wants it."""
    found = []
    while len(found) < trials and (trial := driver.ask()):
        config = trial.config["trial"]
        found.append((config["window"], config["learning_rate"]))
        resumed = bool(driver.log.state.trials[trial.config["number"]].validations)
        if resumed or driver.report(trial, 50, 1.1 * quality(config)) == TrialScheduler.CONTINUE:
            driver.report(trial, 100, quality(config), state="complete")
    return found


def begun(tmp_path: Path, name: str) -> SearchDirectory:
    """A search that learns from one with another corpus and budget, which is gone by then."""
    before = CHANGES | {"space": SPACE | {"corpus": "recall"}, "budget": {"tokens": 50, "trials": 9, "rungs": 2}}
    earlier = SearchDirectory.create(tmp_path, "earlier", parse(SearchSpec, FIELDS | before))
    for number, (window, rate) in enumerate(itertools.product(SPACE["window"], SPACE["learning_rate"])):
        trial = {"window": window, "learning_rate": rate}
        earlier.record("trial", trial=number, params=trial, costs=price(TrialConfig(**trial)))
        for tokens, factor, end in ((25, 2.2, None), (50, 2.0, "complete")):
            report = {"token_perplexity": factor * quality(trial)}
            earlier.record("report", trial=number, tokens=tokens, validation=report, state=end)
    start = warm_start_from([earlier], parse(SearchSpec, FIELDS | CHANGES))
    shutil.rmtree(earlier.path)
    return SearchDirectory.create(tmp_path, name, start.spec, start.knowledge.as_json())


def test_the_first_choice_is_what_the_earlier_search_found(tmp_path: Path) -> None:
    assert [rate for _, rate in run(Driver(begun(tmp_path, "taught")), 3)[1:]] == [1e-3, 1e-3], "after the baseline"


def test_a_resumed_search_proposes_what_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder holds all that it knows; the earlier search's is gone."""
    monkeypatch.setattr(gaussian_process, "_GROWTH", math.nan)  # hyperparameters differ by when they are fitted
    whole, resumed = begun(tmp_path, "whole"), begun(tmp_path, "resumed")
    driver = Driver(whole)
    assert run(driver) == [*run(Driver(resumed), 3), *run(Driver(resumed), 2), *run(Driver(resumed))]
    [told, *_] = driver.log.state.notices
    assert told.startswith("of earlier searches it leans on earlier (") and "after 4 trials of its own" in told
