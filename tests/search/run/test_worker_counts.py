"""How many workers train a trial: the fewest in whose memory it fits, and none where it fits nowhere."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recur_tune.cluster.gpu_packing import Card
from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.config.resources import Resources
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.descriptors import COSTS
from recur_tune.cost.priced_trial import PricedTrial
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.run.gpu_sharing import SharedCards
from recur_tune.search.run.preparation import Prices
from tests.search.run.driving import Driver, RayTrial, changed

GIB = 2**30
TRIAL = TrialConfig(base="tiny", corpus="stdlib", recurrence="none", window=16, tokens=100, batch=8)


@pytest.fixture(autouse=True)
def _memory_in_gibibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain takes as many as its window has tokens; a shard saves a quarter."""

    def peak(trial: PricedTrial) -> float:
        return trial.config.window * trial.config.batch / trial.workers * (0.75 if trial.shards > 1 else 1) * GIB

    monkeypatch.setitem(COSTS, "peak_memory", replace(COSTS["peak_memory"], predict=peak))


def prices(memory: float | None, limit: float | None = None, **fields: Any) -> Prices:
    scaled = [None if one is None else one * GIB for one in (memory, limit)]
    return Prices(parse(Resources, fields), *scaled)


@pytest.mark.parametrize(
    ("memory", "fields", "workers"),
    [
        (200, {"workers": [1, 2, 4]}, 1),
        (64, {"workers": [1, 2, 4]}, 2),
        (63, {"workers": [1, 2, 4]}, 4),
        (63, {"workers": [1, 2, 4], "shard": "optimizer"}, 2),
        (120, {"workers": [1, 3, 4]}, 4),  # three cannot share eight chains
        (None, {"workers": [2, 4]}, 2),
        (1000, {"workers": 4}, 4),
    ],
)
def test_a_trial_gets_the_fewest_workers_in_whose_memory_it_fits(
    memory: float | None, fields: dict[str, Any], workers: int
) -> None:
    found = prices(memory, **fields)
    shard = 0.75 if "shard" in fields else 1
    assert found.workers(TRIAL) == workers
    assert found(TRIAL)["peak_memory"] == 128 / workers * shard * GIB, "the memory of each of them"


def test_a_limit_of_memory_is_kept_by_more_workers_or_else_by_the_searcher() -> None:
    assert prices(200, limit=70, workers=[1, 2, 4]).workers(TRIAL) == 2
    found = prices(200, limit=20, workers=[1, 2, 4])
    assert found(TRIAL)["peak_memory"] == 32 * GIB, "it is told, and over the limit"


@pytest.mark.parametrize(
    ("memory", "fields", "words"),
    [
        (31, {"workers": [1, 2, 4]}, "peak_memory: each of 4 workers would need 32 GiB, and has 31 GiB."),
        (100, {}, "peak_memory: a worker would need 128 GiB, and has 100 GiB."),
        (
            100,
            {"workers": [3, 5]},
            "batch: 8 chains cannot be shared evenly by 3 or 5 workers; choose a multiple of 3.",
        ),
        (100, {"workers": 16}, "batch: 8 chains are fewer than 16 workers; choose a multiple of 16."),
    ],
)
def test_a_trial_that_fits_nowhere_says_why(memory: float, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as refused:
        prices(memory, **fields)(TRIAL)
    assert str(refused.value) == words


def with_batches(folder: Path, *batches: int, **fields: Any) -> SearchDirectory:
    """A search of trials with these, in some order."""
    space = {"base": "tiny", "recurrence": "none", "window": 16, "batch": list(batches), "learning_rate": 1e-3}
    return changed(folder, space=space, first=[{"batch": batch} for batch in batches], **fields)


def driver(directory: SearchDirectory, memory: float) -> Driver:
    prices = Prices(directory.spec.resources, memory * GIB)
    found = Driver(directory, prices)
    found.searcher.workers = prices.workers
    return found


def asked(driver: Driver) -> RayTrial | None:
    """The next trial, which has not started yet; None where nobody is asked for."""
    driver.asked += 1
    while (job := driver.searcher.suggest(f"ray{driver.asked}")) is None and (proposal := driver.searcher.proposal):
        wait([proposal.costs])
    return None if job is None else RayTrial(f"ray{driver.asked}", job)


def start(driver: Driver) -> dict[str, Any]:
    """The next trial's job; it starts at once."""
    trial = asked(driver)
    assert trial is not None
    driver.log.record("running", trial=trial.config["number"])
    return trial.config


def workers_of(*jobs: RayTrial | None) -> dict[int, int]:
    """By their chains."""
    return {job.config["trial"]["batch"]: job.config["workers"] for job in jobs if job}


def test_the_job_and_the_log_have_a_trials_workers_and_one_that_fits_nowhere_takes_none(tmp_path: Path) -> None:
    resources = {"workers": [1, 2, 4], "shard": "optimizer"}
    search = driver(with_batches(tmp_path, 8, 32, 4, resources=resources), memory=64)
    jobs = [search.ask() for _ in range(2)]
    assert workers_of(*jobs) == {8: 2, 4: 1}
    assert all(job.config["shard"] == (job.config["workers"] > 1) for job in jobs if job)
    trials = {trial.params["batch"]: trial for trial in search.log.state.trials.values()}
    assert {batch: trial.workers for batch, trial in trials.items() if batch != 32} == workers_of(*jobs)
    assert trials[32].state == "infeasible" and "each of 4 workers would need 96 GiB" in trials[32].reason


def test_a_search_that_is_resumed_on_smaller_cards_gives_a_trial_more_workers_or_ends_it(tmp_path: Path) -> None:
    directory = with_batches(tmp_path, 8, 16, resources={"workers": [1, 2, 4]})
    before = driver(directory, memory=256)
    assert workers_of(before.ask(), before.ask()) == {8: 1, 16: 1}
    after = driver(directory, memory=60)
    assert workers_of(asked(after), asked(after)) == {8: 4}
    trials = {trial.params["batch"]: trial for trial in after.log.state.trials.values()}
    assert (trials[8].workers, trials[16].state) == (4, "infeasible")
    assert "each of 4 workers would need 64 GiB" in trials[16].reason


def test_trials_with_several_workers_get_cards_to_themselves_beside_those_that_share_one(tmp_path: Path) -> None:
    search = driver(with_batches(tmp_path, 8, 1, 2, resources={"workers": [1, 2]}), memory=64)
    search.searcher.shared = SharedCards(Card(136 * GIB), lambda: 3)
    jobs = {job["trial"]["batch"]: job for job in (start(search) for _ in range(3))}
    assert (jobs[8]["workers"], jobs[8]["gpus"]) == (2, 1.0) and "tensors_share" not in jobs[8]
    assert (jobs[1]["gpus"], jobs[2]["gpus"]) == (2 / 8, 3 / 8), "on the third card, both of them"


def test_nobody_is_asked_for_behind_a_trial_that_waits_for_more_workers_than_others(tmp_path: Path) -> None:
    search = driver(with_batches(tmp_path, 8, 1, 2, resources={"workers": [1, 2]}), memory=64)
    while (waiting := asked(search)) is not None and waiting.config["workers"] == 1:
        search.log.record("running", trial=waiting.config["number"])
    assert waiting is not None and waiting.config["workers"] == 2
    assert asked(search) is None
    search.log.record("running", trial=waiting.config["number"])
    assert asked(search) is not None
