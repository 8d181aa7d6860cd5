"""The fields that a search's first trials leave open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.search.propose.first_round import completed
from recur_tune.search.record.space_parsing import read_space

SPACE = read_space(
    {
        "base": ["slim", "middle", "wide"], "corpus": "stdlib", "window": 32, "learning_rate": [1e-3, 4e-3],
        "recurrence": {"none": None, "cache": {"cache_rows": [16, 64]}},
    }
)  # fmt: skip
POINTS = {role: SPACE.closest({"recurrence": kind}) for role, kind in (("baseline", "none"), ("xl", "cache"))}
TIMES = {"slim": 1.0, "middle": 10.0, "wide": 100.0}


def time(fields: Mapping[str, Any]) -> float | None:
    return TIMES[fields["base"]]


def test_they_take_the_median_time_and_differ_in_the_rest() -> None:
    points = POINTS | {"first 1": SPACE.point({"recurrence": "none"}), "first 2": SPACE.point({"recurrence": "none"})}
    found = completed(points, SPACE, time, np.random.default_rng(0))
    assert all(point["base"] == "middle" for point in found.values())
    assert Counter(point["learning_rate"] for point in found.values()) == {1e-3: 2, 4e-3: 2}
    assert all(found[role].items() >= point.items() for role, point in points.items())


@given(st.integers(0, 2**31))
def test_every_point_is_whole_and_keeps_what_it_had(seed: int) -> None:
    found = completed(POINTS, SPACE, time, np.random.default_rng(seed))
    for role, point in found.items():
        assert point.items() >= POINTS[role].items()
        kind = {"baseline": "none", "xl": "cache"}[role]
        assert SPACE.point(SPACE.fields_of(point)) == point and SPACE.fields_of(point)["recurrence"] == kind
    assert found == completed(POINTS, SPACE, time, np.random.default_rng(seed)), "the same seed, the same points"


def test_what_is_not_allowed_is_not_taken_and_where_nothing_is_the_point_stays() -> None:
    found = completed(POINTS, SPACE, lambda fields: None if fields["base"] != "wide" else 1.0, np.random.default_rng(0))
    assert [point["base"] for point in found.values()] == ["wide", "wide"]
    assert completed(POINTS, SPACE, lambda fields: None, np.random.default_rng(0)) == POINTS


@pytest.mark.parametrize("given", [{"base": "wide"}, {"base": "slim", "learning_rate": 1e-3}])
def test_a_field_that_is_given_stays(given: dict[str, Any]) -> None:
    point = SPACE.point({"recurrence": "none", **given})
    [found] = completed({"first 1": point}, SPACE, time, np.random.default_rng(1)).values()
    assert found.items() >= given.items()
