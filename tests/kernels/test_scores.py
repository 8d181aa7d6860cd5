"""Scores: weights by distance, rows of heads, and heads that are mixed. Positions fill more than one block."""

from __future__ import annotations

import pytest
import torch

from recur_tune.model import score_kernels
from tests.kernels import launches
from tests.kernels.passages import assert_as_operations


@pytest.mark.parametrize(
    ("kind", "fields", "block", "form"),
    [
        (torch.float32, {"score_heads": 3, "dilation": 3}, 16, {"group": 2}),
        (torch.bfloat16, {"score_heads": 2}, 32, {"layers": 2}),
    ],
    ids=["dilated", "half"],
)
@launches("_weights", "_weights_backward", "_rows", "_rows_backward", "_mix", "_mix_backward")
def test_weights_by_distance(kind, fields, block, form, device, monkeypatch):
    monkeypatch.setattr(score_kernels, "_ROWS", block)
    monkeypatch.setattr(score_kernels, "_COLUMNS", block)
    assert_as_operations("scores", fields, kind, device, positions=17, overlap=3, **form)
