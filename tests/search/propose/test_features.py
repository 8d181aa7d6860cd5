"""Fields as numbers."""

from __future__ import annotations

import numpy as np
import pytest

from recur_tune.search.propose.features import Features, LazyRows, rows_at
from recur_tune.search.record.space_parsing import read_space

SPACE = {
    "base": "tiny",
    "recurrence": {"none": None, "memory": {"l_ins": [1, 2, "all"], "width": {"from": 8, "to": 512, "log": True}}},
    "window": [16, 32, 64],
    "bptt_windows": [2, 3],
    "overlap": {"from": 0, "to": 0.5, "of": "window"},
    "learning_rate": {"from": 1e-4, "to": 1e-2, "log": True},
}


def test_numbers_lie_between_their_ends_and_categories_have_columns() -> None:
    features = Features(read_space(SPACE))
    plain = {"recurrence": "none", "window": 32, "bptt_windows": 3, "overlap": 8, "learning_rate": 1e-3}
    pooled = {"recurrence": "pooled", "l_ins": "all", "width": 64, "window": 64, "bptt_windows": 2, "overlap": 32,
              "learning_rate": 1e-2}  # fmt: skip
    rows = features([plain, pooled])
    #                        recurrence    l_ins              width  window windows overlap rate
    assert rows[0] == pytest.approx([1, 0, 0, 0, 0, 0.5, 0.5, 1, 0.5, 0.5])
    assert rows[1] == pytest.approx([0, 1, 0, 0, 1, 0.5, 1, 0, 1, 1])
    assert features.groups.tolist() == [0, 0, 1, 1, 1, 2, 3, 4, 5, 6]


def test_true_is_not_one_and_a_single_value_says_nothing() -> None:
    features = Features(read_space({"base": "tiny", "recurrence": {"pooled": {"skip": [False, True]}}, "window": [16]}))
    assert features([{"recurrence": "pooled", "skip": True, "window": 16}]).tolist() == [[1.0, 0.0, 1.0, 0.5]]


def test_a_share_of_a_field_that_is_fixed() -> None:
    overlap = {"from": 0, "to": 0.5, "of": "window"}
    features = Features(read_space({"base": "tiny", "window": 64, "overlap": overlap}))
    assert features([{"overlap": 16}]).tolist() == [[0.5]]


def test_rows_that_are_asked_for_are_those_encoded_at_once() -> None:
    space, rng = read_space(SPACE), np.random.default_rng(0)
    features, fields = Features(space), [space.sample(rng)[1] for _ in range(4)]
    places, shares, numbers = np.array([0, 0, 2, 3, 3]), np.array([0.5, 1.0, 0.5, 0.25, 0.5]), np.array([4, 4, 6, 9, 9])
    lazy = LazyRows(features, fields, places, shares, numbers)
    whole = rows_at(features(fields)[places], shares, numbers)
    assert len(lazy) == 5
    for some in (np.arange(5), np.array([3, 0, 3]), np.arange(0)):
        assert lazy[some].tolist() == whole[some].tolist()
