"""Spaces that make no sense: each is refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from recur_tune.common.errors import UserError
from recur_tune.recurrences.registry import MECHANISMS
from tests.search.record import search

KINDS = " or ".join(", ".join(repr(name) for name in ("none", *MECHANISMS)).rsplit(", ", 1))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"windw": 3}, "space.windw: there is no such field; did you mean 'window'?"),
        ({"window": []}, "space.window: it has no value to choose from; list at least one."),
        ({"window": {}}, "space.window: it has no value to choose from; list at least one."),
        ({"window": [300, "300"]}, "space.window: it lists a value twice."),
        ({"l_ins": {1: None, "1": None}}, "space.l_ins: it lists a value twice."),
        ({"window": 0}, "space.window: 0 is not greater than 0."),
        ({"window": [1, "x"]}, "space.window: 'x' is not a valid integer, unable to parse string as an integer."),
        ({"pooling": ["sum"]}, "space.pooling: 'sum' is not 'mean', 'max', 'attention' or 'recent'."),
        ({"recurrence": {"nine": None}}, f"space.recurrence: 'nine' is not {KINDS}."),
        ({"recurrence": {"pooled": {"l_inns": 1}}},
         "space.recurrence.pooled.l_inns: there is no such field; did you mean 'l_ins'?"),
        ({"recurrence": {"pooled": [1]}},
         "space.recurrence: it has [1] below 'pooled'; parameters have to stand there, or nothing."),
        ({"window": {"from": 1, "upto": 3}}, "space.window: it has an unknown key 'upto'; did you mean 'to'?"),
        ({"window": {"from": 1}}, "space.window: it is half a range and needs both from and to."),
        ({"window": {"to": 1, "log": True}}, "space.window: it is half a range and needs both from and to."),
        ({"window": {"from": 0, "to": 3}}, "space.window: 0 is not greater than 0."),
        ({"base": {"from": "a", "to": "b"}}, "space.base: it has no numbers to range over; list the values instead."),
        ({"l_ins": {"from": 1, "to": "all"}}, "space.l_ins: it has no numbers to range over; list the values instead."),
        ({"dropout": {"from": None, "to": 0.3}}, "space.dropout: it has None where a number is needed."),
        ({"clip_norm": {"from": 1, "to": float("inf")}}, "space.clip_norm: it has inf where a number is needed."),
        ({"overlap": {"from": 0, "to": "half", "of": "window"}},
         "space.overlap: it has 'half' where a number is needed."),
        ({"batch": {"from": 1, "to": float("nan"), "of": "window"}},
         "space.batch: it has nan where a number is needed."),
        ({"window": {"from": 1, "to": 9, "step": "big"}}, "space.window: it has 'big' where a number is needed."),
        ({"window": {"from": 1, "to": 9, "log": "yes"}},
         "space.window: it has log: 'yes'; it is either true or false."),
        ({"window": {"from": 9, "to": 3}}, "space.window: it goes from 9 to 3; the first has to be the smaller."),
        ({"window": {"from": 3, "to": 3}}, "space.window: it goes from 3 to 3; the first has to be the smaller."),
        ({"weight_decay": {"from": 0, "to": 1, "log": True}},
         "space.weight_decay: it begins at 0, and a log range has to begin above 0."),
        ({"window": {"from": 1, "to": 9, "log": True, "step": 2}},
         "space.window: it has the step 2; a log range takes no step."),
        ({"window": {"from": 1, "to": 9, "step": 9}},
         "space.window: it has the step 9; it has to be above 0 and at most 8."),
        ({"window": {"from": 1, "to": 9, "step": 0}},
         "space.window: it has the step 0; it has to be above 0 and at most 8."),
        ({"window": {"from": 1, "to": 9, "step": 2.5}},
         "space.window: it has the step 2.5; its values are whole numbers, give a whole step."),
        ({"overlap": {"from": 0, "to": 0.5, "of": "windw"}},
         "space.overlap: it is a share of 'windw', which is no field; did you mean 'window'?"),
        ({"overlap": {"from": 0, "to": 0.5, "of": "window"}},
         "space.overlap: it is a share of window, which the space does not have; add it."),
        ({"overlap": {"from": 0, "to": 0.5, "of": "overlap"}},
         "space.overlap: it is a share of overlap, which is a share itself; name a whole."),
        ({"l_ins": [1, "all"], "batch": {"from": 1, "to": 2, "of": "l_ins"}},
         "space.batch: it is a share of l_ins, which can be 'all', no number."),
        ({"window": 9, "overlap": {"from": 0, "to": 1, "of": "window"}},
         "space.overlap: it goes up to 1 of the window; it has to stay below 1."),
        ({"window": [50, 100], "overlap": [0, 50]},
         "space.overlap: it can be 50, which is not below a window of 50; "
         "make it a share, as {from: 0, to: 0.5, of: window}."),
        ({"overlap": 300},
         "space.overlap: it can be 300, which is not below a window of 300; "
         "make it a share, as {from: 0, to: 0.5, of: window}."),
        ({"recurrence": {"none": {"batch": [4, 8]}, "pooled": {"batch": [4]}}},
         "space: batch stands in two branches with different values; the sampler needs one set."),
        ({"bptt_windows": {"from": 1, "to": 9}},
         "space.bptt_windows: 1 leaves no second window to pass a state to; choose 2 or more for 'pooled'."),
        ({"checkpointing": ["all", "auto"]}, "space.memory_budget: 'auto' checkpointing needs one, as 16GiB."),
        ({"window": 100, "batch": {"from": 0.001, "to": 0.5, "of": "window"}}, "space.batch: 0 is not greater than 0."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        search(space=given)
    assert str(refusal.value) == sentence


def test_a_share_of_something_strange_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"space.overlap: it is a share of \[1\], which is no field; known: base, corpus, "
    ):
        search(space={"overlap": {"from": 0, "to": 0.5, "of": [1]}})
