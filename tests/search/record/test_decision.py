"""The best within limits and what the next step buys, against a plain look at all trials."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest

from recur_tune.common.errors import UserError
from recur_tune.search.record.decision import decide, limits_in_words, qualities, read_limits, refuse_limits
from tests.search.record import trial

TRIALS = [
    trial(0, 50, 1e6, 4e9), trial(1, 40, 2e6, 4e9), trial(2, 30, 2e6, 8e9), trial(3, 20, 4e6, 8e9),
    trial(4, 1, 1e3, 1e3, state="pruned"), trial(5, None, 1e3, 1e3, state="failed"),
]  # fmt: skip


def test_limits_choose_and_steps_say_what_more_would_buy() -> None:
    known = qualities(TRIALS, "perplexity", None)
    found = decide(TRIALS, known, {"flops_per_token": 3e6, "peak_memory": 5e9})
    assert found is not None and found.best.name == "T1"
    assert [(step.cost, step.trial.name) for step in found.upgrades] == [("peak_memory", "T2")]
    assert decide(TRIALS, known, {"flops_per_token": 1.0}) is None


def test_a_cost_that_the_trials_were_not_told_is_no_limit() -> None:
    with pytest.raises(UserError, match="under: some trials were priced before there was inference_memory"):
        decide(TRIALS, qualities(TRIALS, "perplexity", None), {"inference_memory": 1e9})


sides = st.integers(1, 6)


@hypothesis.given(st.lists(st.tuples(sides, sides, sides), min_size=1, max_size=8), sides, sides)
def test_a_decision_is_what_a_look_at_all_trials_finds(
    values: list[tuple[int, int, int]], flops: int, ram: int
) -> None:
    trials = [trial(number, *value) for number, value in enumerate(values)]
    known = qualities(trials, "perplexity", None)
    found = decide(trials, known, {"flops_per_token": flops, "peak_memory": ram})
    within = [value for value in values if value[1] <= flops and value[2] <= ram]
    assert (found is None) == (not within)
    if found is None:
        return
    best = min(within)[0]
    assert found.best.value("perplexity") == best
    steps = {step.cost: step.trial.costs[step.cost] for step in found.upgrades}
    more_flops = [value[1] for value in values if value[0] < best and value[2] <= ram]
    more_ram = [value[2] for value in values if value[0] < best and value[1] <= flops]
    assert steps.get("flops_per_token") == min(more_flops, default=None)
    assert steps.get("peak_memory") == min(more_ram, default=None)


def test_limits_are_read_in_peoples_units() -> None:
    assert read_limits("flops_per_token=55M, peak_memory=10GiB") == {"flops_per_token": 55e6, "peak_memory": 10 * 2**30}


def test_limits_are_repeated_as_they_were_written() -> None:
    limits = read_limits("flops_per_token=0.33M, peak_memory=20MB")
    assert limits_in_words(limits) == "FLOPs/token 0.33M and peak memory 20MB"
    assert limits_in_words(dict.fromkeys(limits, 2.0**20)) == "FLOPs/token 1.05M and peak memory 1 MiB"
    assert "within FLOPs/token 1" in str(refuse_limits(TRIALS, read_limits("flops_per_token=1")))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("flops=5M", "'flops' is no cost; "),
        ("perplexity=5", "'perplexity' is no cost"),
        ("peak_memory", "'peak_memory' is not of the form COST=VALUE"),
        ("peak_memory=", "is not of the form COST=VALUE"),
        ("peak_memory=lots", "peak_memory: 'lots'"),
        ("peak_memory=0", "leaves nothing"),
        ("peak_memory=1GiB,peak_memory=2GiB", "stands twice"),
        ("", "names no cost"),
    ],
)
def test_limits_that_make_no_sense_are_refused(given: str, said: str) -> None:
    with pytest.raises(UserError, match=r"^under: ") as refused:
        read_limits(given)
    assert said in str(refused.value)


def test_a_refusal_says_the_least_that_is_needed() -> None:
    assert "the least at full budget is FLOPs/token 1M" in str(refuse_limits(TRIALS, {"flops_per_token": 10.0}))
    both = {"flops_per_token": 1e6, "peak_memory": 1e9}
    assert "the least at full budget is peak memory" in str(refuse_limits(TRIALS, both))
    apart = [trial(0, 1, 1e6, 4e9), trial(1, 1, 4e6, 1e9)]
    assert "at once" in str(refuse_limits(apart, both))
    assert "no trial has reached" in str(refuse_limits([], both))
