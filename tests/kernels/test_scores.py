"""Scores: weights by distance, rows of heads, and heads that are mixed. Positions fill more than one block."""

from __future__ import annotations

import pytest
import torch

from recur_tune.recurrences.scores import kernels as score_kernels
from tests.kernels import Numbers, launches
from tests.kernels.window_passes import assert_as_operations


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


@launches("_rows")
def test_behind_the_last_row_are_zeros(device):
    numbers = Numbers(torch.float32, device, exactly=False)
    v_BGTD, past_BNYD = numbers.rounded(2, 2, 5, 6), numbers.summed(2, 2, 2, 6)
    rows_NXBD, values_NTBD = score_kernels.rows_of_heads(v_BGTD, past_BNYD, heads=2)
    expected = torch.cat([past_BNYD, v_BGTD, v_BGTD.new_zeros(2, 2, 1, 6)], dim=2).permute(1, 2, 0, 3)
    assert torch.equal(rows_NXBD, expected)
    assert torch.equal(values_NTBD, expected[:, 2:7])
