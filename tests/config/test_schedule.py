"""A schedule and its budget: steps, the warm-up's share of them, and what is said where it is too large."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from recur_tune.common.parsing import parse, write_yaml
from recur_tune.config.schedule import misfit
from recur_tune.config.trial import TrialConfig
from recur_tune.training import RESUME, TRIAL
from recur_tune.training.run_folder import stored_config

STEP = {"window": 8, "overlap": 2, "bptt_windows": 3, "batch": 5}  # 8 + 6 + 6 tokens in each of 5 chains


@pytest.mark.parametrize(
    ("tokens", "steps", "warmup"),
    [(99, 1, 0), (100, 1, 0), (101, 2, 0), (1_200, 12, 0), (2_000, 20, 1), (14_000, 140, 7), (10**6, 10_000, 100)],
)
def test_the_warm_up_is_a_twentieth_of_the_steps_and_at_most_a_hundred(tokens: int, steps: int, warmup: int) -> None:
    config = TrialConfig(**STEP, tokens=tokens)
    assert (config.step_tokens, config.steps, config.warmup) == (100, steps, warmup)
    assert TrialConfig(**STEP, tokens=tokens, warmup_steps=0).warmup == 0
    assert TrialConfig(**STEP, tokens=tokens, warmup_steps=100).warmup == 100


def test_a_run_that_was_begun_with_a_hundred_goes_on_with_a_hundred(tmp_path: Path) -> None:
    """As every run did that did not say otherwise, before the default was a share."""
    (tmp_path / RESUME).mkdir()
    before = TrialConfig(**STEP, tokens=14_000, warmup_steps=100)
    write_yaml(tmp_path / TRIAL, before.plain_values())
    assert yaml.safe_load((tmp_path / TRIAL).read_text())["warmup_steps"] == 100
    assert stored_config(tmp_path, {}) == before
    assert stored_config(tmp_path, {"tokens": "28k"}).warmup == 100


@pytest.mark.parametrize("warmup_steps", [None, 0, 70])
def test_nothing_is_said_of_a_schedule_that_fits(warmup_steps: int | None) -> None:
    assert misfit(TrialConfig(**STEP, tokens=14_000, warmup_steps=warmup_steps)) is None


def test_a_warm_up_of_more_than_half_of_the_steps_is_told() -> None:
    assert misfit(parse(TrialConfig, STEP | {"tokens": "14k", "warmup_steps": "71"})) == (
        "warmup_steps: the learning rate rises for 71 of about 140 steps (14k tokens, at a step of 100 "
        "(batch 5, bptt_windows 3, window 8, overlap 2)); choose fewer, so that more steps have the full rate."
    )


def test_a_budget_of_less_than_a_step_is_told() -> None:
    assert misfit(TrialConfig(tokens=40_000)) == (
        "tokens: the budget of 40k is less than a step of 48k (batch 8, bptt_windows 20, window 300)."
    )
    assert misfit(TrialConfig(tokens=48_000)) is None
