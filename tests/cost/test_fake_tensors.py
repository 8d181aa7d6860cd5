"""Fake tensors: a step under ours needs the bytes that it needs under torch's own, operation for operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.bptt.plan import Execution, Plan
from recur_tune.config.trial import TrialConfig
from recur_tune.cost import training_memory
from recur_tune.cost.fake_tensors import FakeTensors
from recur_tune.cost.training_memory import plan_memory
from recur_tune.models.trained import Trained
from recur_tune.recurrences.registry import MECHANISMS
from tests.conftest import small_config

pytestmark = pytest.mark.slow  # steps of every mechanism, twice


def peak(config: TrialConfig, kept: int, mode: Callable[[bool], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(training_memory, "FakeTensors", mode)
    training_memory._simulate.cache_clear()
    return plan_memory(config, small_config(n_layer=1, n_positions=144), Plan(kept), config.batch)  # room for a cache


def config_of(recurrence: str, **fields: Any) -> TrialConfig:
    usual = {"window": 16, "bptt_windows": 2, "batch": 2, "precision": "float32"}
    return TrialConfig(recurrence=recurrence, **usual | fields)


@pytest.mark.parametrize("recurrence", ["none", *MECHANISMS])
def test_a_step_has_the_peak_that_it_has_under_torchs_own(recurrence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variants: list[dict[str, Any]] = [{"precision": "bfloat16", "dropout": 0.1, "overlap": 4}]
    # Torch's own takes most of the time, and what a frozen body leaves out it leaves out beside every mechanism.
    variants += {"none": [{}], "cache": [{"trainable": "recurrence"}]}.get(recurrence, [])
    for fields in variants:
        config = config_of(recurrence, **fields)
        theirs = peak(config, 1, lambda on_gpu: FakeTensorMode(), monkeypatch)
        assert peak(config, 1, FakeTensors, monkeypatch) == theirs
        assert peak(config, 1, FakeTensors, monkeypatch) == theirs, "nor when every operation is known"


@pytest.mark.parametrize("recurrence", ["none", *MECHANISMS])
def test_what_is_kept_of_four_windows_follows_from_three(recurrence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(recurrence, bptt_windows=4)
    short = peak(config, 4, FakeTensors, monkeypatch)
    monkeypatch.setattr(training_memory, "_SIMULATED_KEPT", 4)
    assert peak(config, 4, FakeTensors, monkeypatch) == short


@pytest.mark.parametrize(
    "recurrence", ["none", *(name for name, one in MECHANISMS.items() if not one.leaves_overlap_out)]
)
def test_the_overlap_moves_no_byte_where_it_is_not_left_out(recurrence: str) -> None:
    base = small_config(n_layer=2, n_positions=64)
    peaks = set()
    for overlap in (0, 5):
        described = training_memory.recurrent_config(base, config_of(recurrence).recurrence_spec, None)
        described.overlap = overlap
        shape = described.to_json_string(use_diff=False)
        peaks.add(training_memory._simulate(shape, 16, 3, 2, "float32", Plan(2), False, Trained(), Execution()))
    assert len(peaks) == 1


def test_in_place_writes_and_views_share_their_storage() -> None:
    for _ in range(2):  # the second time from what was learned
        with FakeTensors(), MemoryTracker() as tracker:
            one = torch.zeros(8, 4)
            assert one.add_(1) is one and torch.mm(one, one.t(), out=torch.empty(8, 8)).shape == (8, 8)
            before = tracker.live
            assert one.t().shape == (4, 8) and one[2:].shape == (6, 4) and one.flatten().shape == (32,)
            assert tracker.live == before == 8 * 4 * 4
            other = one @ one.t()
            assert tracker.live == before + 8 * 8 * 4
            del other
        assert tracker.live == before


def test_the_same_shapes_with_other_numbers_are_another_operation() -> None:
    with FakeTensors():
        one = torch.zeros(6, 4)
        assert [one.sum(dim).shape for dim in (0, 1, 0)] == [(4,), (6,), (4,)]
        assert [torch.cat([one] * times).shape for times in (1, 2, 3)] == [(6, 4), (12, 4), (18, 4)]
        assert [one.to(kind).dtype for kind in (torch.bfloat16, torch.float64)] == [torch.bfloat16, torch.float64]
        assert one.t().clone().stride() == (1, 4) and one.clone().stride() == (4, 1)


def test_a_fake_tensor_is_of_no_use_outside() -> None:
    with FakeTensors():
        one = torch.zeros(2)
    with pytest.raises(RuntimeError, match="under FakeTensors alone"):
        one + 1


def test_a_view_of_a_view_begins_where_it_did() -> None:
    for _ in range(2):  # the second time from what was learned
        with FakeTensors():
            one = torch.zeros(8, 4)
            assert [one[start:][1:].storage_offset() for start in (0, 2, 4)] == [4, 12, 20]
            assert [one[start:].t()[:, 1:].stride() for start in (0, 2)] == [(1, 4), (1, 4)]
