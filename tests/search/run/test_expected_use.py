"""What a search will take, against its own arithmetic; and limits that nothing can meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import Extent
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.run.expected_use import expected_use, passes, questions, remarks
from recur_tune.search.run.preparation import Prices, check_limits
from tests.search.record import search

TEXT = {"train": Extent(3, 40_000), "validation": Extent(1, 9_000)}


def tiny(budget: dict[str, Any] | None = None, limits: dict[str, Any] | None = None, **space: Any) -> SearchSpec:
    fields = {"base": "tiny", "window": [16, 32], "batch": 2, "bptt_windows": 2, "recurrence": "none"}
    return search(
        space=fields | space, budget={"tokens": 20_000, "trials": 10, **(budget or {})}, limits=limits or {},
        resources={"cpus": 1, "gpus": 0},
    )  # fmt: skip


def test_a_pass_is_the_training_split_in_tokens() -> None:
    assert passes(tiny(), TEXT) == 0.5, "bytes"
    assert passes(tiny(base="gpt2"), TEXT) == 2.0, "four bytes a token"
    assert passes(tiny(), {}) is None, "a text that is made on the spot"


def test_numbers_that_are_hardly_meant_are_asked_about() -> None:
    assert questions(tiny(), TEXT) == []
    assert "100 passes" not in str(questions(tiny({"tokens": 4_000_000}), TEXT))
    [many] = questions(tiny({"tokens": 8_000_000}), TEXT)
    assert "budget.tokens: 8M are about 200 passes over the corpus" in many
    [absurd] = questions(tiny({"tokens": "2e22"}), {})
    assert "2e+22 tokens a trial" in absurd


def test_a_validation_beyond_its_split_is_remarked() -> None:
    assert remarks(tiny(validation_tokens=9_000), TEXT) == remarks(tiny(), TEXT) == []
    [remark] = remarks(tiny(validation_tokens="10k"), TEXT)
    assert "validation_tokens: 10k are more than the validation split has (8.79 KiB)" in remark


def test_a_series_split_is_told_in_time_steps() -> None:
    rows = {"train": Extent(1, 40_000, 800), "validation": Extent(1, 12_000, 300)}
    assert remarks(tiny(validation_tokens=300), rows) == []
    [remark] = remarks(tiny(validation_tokens=2_000), rows)
    assert "2k are more than the validation split has (300 tokens)" in remark
    assert passes(tiny(), rows) == 25


def test_disk_and_time_are_told_before_a_search() -> None:
    lines = list(expected_use(tiny({"wall_clock": "2h"}), TEXT))
    assert lines[0] == "a trial at full budget reads its 20k tokens in about 50% of a pass over the corpus"
    # 174,784 weights of four bytes, with two moments each in a checkpoint, of which two are kept.
    assert lines[1].startswith("disk: 4 MiB for the checkpoints of each unfinished trial, 682 KiB for a model")
    assert lines[2].startswith("time: roughly ") and lines[2].endswith("2h at most by budget.wall_clock")


def test_the_time_is_that_of_training_and_of_validating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recur_tune.search.run.expected_use.tokens_per_second", lambda config, cpus: 100.0)
    monkeypatch.setattr("recur_tune.search.run.expected_use._at_once", lambda spec: 2)
    kept: dict[str, Any] = {"base": "none:2x64x2", "tokenizer": "bytes", "validation_tokens": 6000}
    [line] = [line for line in expected_use(tiny({"rungs": 3}, **kept), TEXT) if line.startswith("time")]
    # 20,000 tokens, and five validations of 6000 at a third of a step's time, ten times, two at once.
    assert line.startswith("time: roughly 25m of training and validating on this machine if every trial runs to its ")
    assert line.endswith(
        "(2 trials at a time; a plain step measured 100 tokens/s), besides the starts of Ray and of each trial"
    )
    [line] = [
        line for line in expected_use(tiny({"rungs": 3}, **kept), {"validation": Extent(1, 600)}) if "time:" in line
    ]
    assert line.startswith("time: roughly 17m30s "), "no more than there is"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"flops_per_token": "1k"}, ["within FLOPs/token 1k", "the least found is FLOPs/token"]),
        ({"peak_memory": "1MiB"}, ["the least found is peak memory"]),
        ({"peak_memory": "1GiB", "parameters": 1000}, ["the least found is parameters 17"]),
    ],
)
def test_limits_that_nothing_can_meet_are_refused_with_the_least(limits: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError, match="limits: nothing in the space is within") as refusal:
        check_limits(tiny(limits=limits))
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_limits_that_a_trial_keeps_are_accepted(tmp_path: Path) -> None:
    least = min(Prices().at_once(config)["flops_per_token"] for config in tiny().corners)
    check_limits(tiny(limits={"flops_per_token": least, "peak_memory": "64MiB"}))
    check_limits(tiny())


def test_what_a_teacher_takes_is_told_before_a_search() -> None:
    taught = tiny(loss=["next_token", "distill"], teacher_top=8)
    [line] = [line for line in expected_use(taught, TEXT) if line.startswith("teacher")]
    # 40,000 bytes, each with eight tokens of two bytes and nine logarithms of two.
    assert line.startswith("teacher: its predictions of about 40k training tokens, in windows of 128, take 1.3 MiB ")
    assert line.endswith("FLOPs, once for all trials")
    assert not [line for line in expected_use(tiny(), TEXT) if line.startswith("teacher")]
