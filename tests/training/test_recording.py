"""Recordings need CUDA; what they do before one is made can be watched without it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from recur_tune.training import recording
from recur_tune.training.bptt import Chain, Plan
from tests.conftest import small_model
from tests.model import full_batch


@pytest.fixture
def made_streams(monkeypatch):
    """Streams that were made; `benchmarks/check_gpu.py` prints what recordings leave behind on real ones."""
    streams: list[Mock] = []

    def make(device: int) -> Mock:
        streams.append(Mock())
        return streams[-1]

    monkeypatch.setattr(torch, "cuda", SimpleNamespace(
        Stream=make, stream=lambda stream: nullcontext(), current_stream=Mock(), current_device=lambda: 0
    ))  # fmt: skip
    recording._side_stream.cache_clear()
    yield streams
    recording._side_stream.cache_clear()


def test_all_recordings_of_a_process_work_beside_one_stream(made_streams):
    batch = full_batch(2, 3, 6)
    for _ in range(2):
        chain = Chain(small_model(None, n_layer=1), Plan(2), "replayed")
        for _ in range(2):  # the steps before the recording
            chain.differentiate(batch)
    assert len(made_streams) == 1
