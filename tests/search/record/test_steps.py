"""A search in steps: what its rungs are for the smallest and the largest step, and which are too short for one."""

from __future__ import annotations

from typing import Any

import pytest

from recur_tune.common.errors import UserError
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.steps import check_rungs, describe_steps, in_steps, search_misfit
from tests.search.record import search


def in_windows(budget: dict[str, Any], **space: Any) -> SearchSpec:
    """Steps of 100 to 800 tokens."""
    fields = {"window": [10, 20, 40], "bptt_windows": [5, 10], "batch": 2, "overlap": 0}
    return search(space=fields | space, budget={"trials": 1} | budget)


def test_rungs_are_counted_in_the_smallest_and_the_largest_steps() -> None:
    spec = in_windows({"tokens": "16k", "rungs": 3})
    assert in_steps(spec) == {"step_tokens": [100, 800], "rungs": [[5, 40], [10, 80], [20, 160]], "warmup": [1, 8]}
    assert describe_steps(spec) == (
        "in steps of 100 to 800 tokens: 5 to 40, 10 to 80 and 20 to 160 at the end; "
        "the learning rate rises over the first 1 to 8 steps"
    )


def test_steps_of_one_size_are_told_once() -> None:
    spec = in_windows({"tokens": "1.6k", "rungs": 1}, window=10, bptt_windows=10, warmup_steps=3)
    assert describe_steps(spec) == "in steps of 200 tokens: 8; the learning rate rises over the first 3 steps"


@pytest.mark.parametrize(
    ("steps", "words"), [(0, "the learning rate has no warm-up"), (1, "the learning rate rises over the first 1 step")]
)
def test_a_warm_up_is_told_in_steps(steps: int, words: str) -> None:
    spec = in_windows({"tokens": "1.6k", "rungs": 1}, window=10, bptt_windows=10, warmup_steps=steps)
    assert describe_steps(spec).endswith(f"; {words}")


def test_overlap_makes_a_step_smaller() -> None:
    spec = in_windows({"tokens": "16k"}, window=10, bptt_windows=5, overlap={"from": 0, "to": 0.5, "of": "window"})
    assert in_steps(spec)["step_tokens"] == [2 * (10 + 4 * 5), 100]


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        ({"tokens": 3196, "rungs": 3},
         "budget: the first rung comes after 799 tokens, and a single step can score 800 "
         "(batch 2, bptt_windows 10, window 40); give more tokens, fewer rungs or smaller steps."),
        ({"tokens": 799, "rungs": 1},
         "budget: the first rung comes after 799 tokens, and a single step can score 800 "
         "(batch 2, bptt_windows 10, window 40); give more tokens or smaller steps."),
    ],
)  # fmt: skip
def test_a_rung_shorter_than_a_step_is_refused(budget: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        check_rungs(in_windows(budget))
    assert str(refusal.value) == sentence
    check_rungs(in_windows(budget | {"tokens": budget["tokens"] + 4}))


def test_the_trial_with_the_largest_share_of_warm_up_is_told() -> None:
    assert search_misfit(in_windows({"tokens": "16k"})) is None
    assert search_misfit(in_windows({"tokens": "16k"}, warmup_steps=10)) is None
    remark = search_misfit(in_windows({"tokens": "16k"}, warmup_steps=[0, 11]))
    assert (
        remark is not None
        and "rises for 11 of about 20 steps" in remark
        and "(batch 2, bptt_windows 10, window 40)" in remark
    )
