"""Kernels of recurrences with their own block shapes, at sizes of real models. On a GPU alone: see `conftest.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels.window_passes import assert_as_operations

_CLOSE = 5e-2  # in half precision, over two layers
_ALONE, _SHARED = {"groups": 4, "size": 64}, {"groups": 2, "group": 3}
_FORMS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("cache", {"cache_rows": 40, "cache_join": "gate"}, _ALONE),
    ("cache", {"cache_rows": 150, "cache_join": "gate"}, _SHARED | {"size": 48}),
    ("cache", {"cache_rows": 150}, _ALONE),
    ("cache", {"cache_rows": 150, "cache_bits": 8}, _SHARED | {"size": 48}),
    ("cache", {"cache_rows": 40, "cache_keep": "keydiff"}, _SHARED | {"size": 128}),
    ("cache", {"cache_rows": 40, "cache_keep": "keydiff", "cache_bits": 4}, _ALONE),
    ("cache", {"cache_rows": 40, "cache_join": "gate", "cache_bits": 4}, _ALONE),
    ("fast_weights", {"write_rule": "linear"}, _ALONE),
    ("fast_weights", {"write_rule": "delta"}, _SHARED | {"size": 48}),
    ("fast_weights", {"write_rule": "gated"}, _SHARED | {"size": 32}),
    ("scores", {"score_heads": 4}, {"groups": 8, "size": 64}),
    ("scores", {"score_heads": 4, "dilation": 3}, _SHARED | {"size": 48}),
]


@pytest.mark.parametrize(("positions", "overlap"), [(77, 0), (130, 5)])
@pytest.mark.parametrize(("name", "fields", "heads"), _FORMS, ids=lambda one: str(one))
def test_a_window_at_the_sizes_of_a_model(name, fields, heads, positions, overlap, device):
    form = {"positions": positions, "overlap": overlap, "layers": 2, **heads}
    assert_as_operations(name, fields, torch.bfloat16, device, _CLOSE, **form)
