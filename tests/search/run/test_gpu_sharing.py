"""Trials of a search that share cards: who is asked for, what each gets, and what becomes of one that needs more."""

from __future__ import annotations

from concurrent.futures import wait
from pathlib import Path
from unittest import mock

import pytest
import torch

from recur_tune.cluster.gpu_packing import Card
from recur_tune.config.trial import TrialConfig
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.state import CROWDED
from recur_tune.search.run.gpu_sharing import SharedCards
from recur_tune.search.run.trainable import run_trial
from tests.search.run.driving import Driver, RayTrial, changed, price

GIB = 2**30
OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


def in_gibibytes(config: TrialConfig) -> dict[str, float]:
    """Windows of 16, 32 and 64 take one, three and all eighths of a card of 64 GiB."""
    return price(config) | {"peak_memory": {16: 4.0, 32: 15.0, 64: 60.0}[config.window] * GIB}


def on_one_card(directory: SearchDirectory) -> Driver:
    driver = Driver(directory, in_gibibytes)
    driver.searcher.shared = SharedCards(Card(64 * GIB), lambda: 1)
    return driver


def with_windows(folder: Path, *windows: int) -> SearchDirectory:
    """A search of plain trials: the baseline, whose window is 64, and these."""
    space = {"base": "tiny", "recurrence": "none", "window": [16, 32, 64], "learning_rate": {"from": 1e-4, "to": 1e-2}}
    first = [{"window": window, "learning_rate": 0.001 * (1 + at)} for at, window in enumerate(windows)]
    return changed(folder, space=space, first=first, budget={"tokens": 100, "trials": len(windows) + 1, "rungs": 1})


def asked(driver: Driver) -> RayTrial | None:
    """The next trial, which has not started yet; None where nobody is asked for."""
    driver.asked += 1
    while (job := driver.searcher.suggest(f"ray{driver.asked}")) is None and (proposal := driver.searcher.proposal):
        wait([proposal.costs])
    return None if job is None else RayTrial(f"ray{driver.asked}", job)


def start(driver: Driver, trial: RayTrial | None) -> RayTrial:
    assert trial is not None
    driver.log.record("running", trial=trial.config["number"])
    return trial


def part(trial: RayTrial | None) -> tuple[int, float]:
    assert trial is not None
    return trial.config["trial"]["window"], trial.config["gpus"]


def test_large_and_small_trials_share_a_gpu_and_one_too_large_waits(tmp_path: Path) -> None:
    driver = on_one_card(with_windows(tmp_path, 16, 32, 64, 16))
    baseline = start(driver, asked(driver))
    assert part(baseline) == (64, 1.0)
    small = asked(driver)
    assert part(small) == (16, 0.125)
    assert asked(driver) is None, "it waits for the card, and nobody is let past it"
    driver.report(baseline, 100, 5.0, state="complete")
    large = start(driver, start(driver, small) and asked(driver))
    assert part(large) == (32, 0.375)
    whole = asked(driver)
    assert part(whole) == (64, 1.0)
    for ending in (small, large):
        assert asked(driver) is None, "the card empties for it"
        assert ending is not None
        driver.report(ending, 100, 5.0, state="complete")
    assert part(asked(driver)) == (16, 0.125)


def test_a_trial_that_needs_more_than_predicted_gets_a_whole_gpu(tmp_path: Path) -> None:
    directory = with_windows(tmp_path, 16)
    driver = on_one_card(directory)
    driver.report(start(driver, asked(driver)), 100, 5.0, state="complete")
    trial = start(driver, asked(driver))
    assert trial.config["tensors_share"] == 1 / 8 - 1 / 64
    driver.report(trial, 50, state="paused", cause=CROWDED, replace_actor=True)
    assert trial.max_failures == 0, "Ray would try the same again"
    driver.searcher.on_trial_complete(trial.trial_id, error=True)
    again = start(driver, asked(driver))
    assert part(again) == (16, 1.0) and again.config["number"] == trial.config["number"]
    assert again.config["tensors_share"] is None
    reopened = on_one_card(directory)  # after a crash
    assert part(asked(reopened)) == (16, 1.0)


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
@pytest.mark.parametrize(("share", "state"), [(0.109, "paused"), (None, "infeasible")])
def test_only_who_has_a_card_alone_ends_when_its_memory_does(
    error: Exception, share: float | None, state: str, tmp_path: Path
) -> None:
    folder = tmp_path / "s" / "trials" / "0"
    folder.mkdir(parents=True)
    trial = TrialConfig(base="tiny", corpus="stdlib", recurrence="none", window=16, tokens=100).plain_values()
    said: list[dict[str, object]] = []
    with (
        mock.patch("recur_tune.search.run.trainable.set_up", side_effect=error),  # as the device would raise it
        pytest.raises(type(error)),
    ):
        run_trial({"folder": str(folder), "trial": trial, "tensors_share": share}, said.append)
    assert said[-1]["state"] == state and said[-1]["replace_actor"]
