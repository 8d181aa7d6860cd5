"""What the sampler chooses, without a study, a log or a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.candidates import NewTrial
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.propose.observations import ObservedTrial, cost_key, fields_key
from recur_tune.search.record.spec import SearchSpec

SPACE: dict[str, Any] = {
    "base": "tiny",
    "recurrence": {"none": None, "pooled": {"l_ins": [1, 2, 3], "width": {"from": 8, "to": 300, "log": True}}},
    "window": {"from": 16, "to": 128},
    "overlap": {"from": 0, "to": 0.5, "step": 0.1, "of": "window"},
    "learning_rate": {"from": 1e-4, "to": 1e-2, "log": True},
}
OBJECTIVES = ["token_perplexity", "flops_per_token", "peak_memory"]
REFERENCE = {"token_perplexity": 30.0, "flops_per_token": 300.0, "peak_memory": 300_000.0}


def price(config: TrialConfig) -> dict[str, float]:
    """Costs that pull in two directions."""
    return {"flops_per_token": config.window + config.overlap + 1.0, "peak_memory": 1000.0 * (200 - config.window)}


def quality(fields: Any, share: float = 1.0) -> float:
    """Long windows are good, and so are states; one learning rate is best."""
    rate = math.log10(fields["learning_rate"] / 2e-3)
    return (12 + 8 * rate**2 - fields["window"] / 32 - (fields["recurrence"] == "pooled")) * share**-0.1


class Search:
    """Asks the sampler and answers at once."""

    def __init__(self, price: Callable[[TrialConfig], dict[str, float]] = price, **changes: Any) -> None:
        fields = {"space": SPACE, "objectives": OBJECTIVES, "budget": {"tokens": 100, "trials": 50},
                  "sampler": {"name": "known-costs"}}  # fmt: skip
        self.spec = parse(SearchSpec, fields | changes)
        self.sampler = KnownCosts(self.spec, price, self.spec.trial_config)
        self.trials: list[ObservedTrial] = []
        self.reference = {name: REFERENCE[name] for name in self.spec.objectives}

    def ask(self) -> dict[str, Any] | None:
        chosen = self.sampler.choose(self.trials, self.reference)
        return None if chosen is None else self.spec.parsed_space.fields_of(chosen.point)

    def tell(self, fields: dict[str, Any], *shares: float, pending: bool = False, value: float | None = None) -> None:
        curve = tuple((int(100 * share), value or quality(fields, share)) for share in shares)
        complete = 1.0 in shares
        costs = price(self.spec.trial_config(fields))
        self.trials.append(ObservedTrial(len(self.trials), fields, costs, curve, complete, pending))

    def run(self, trials: int) -> list[dict[str, Any]]:
        asked = []
        while len(asked) < trials and (fields := self.ask()) is not None:
            self.tell(fields, 0.25, 0.5, 1.0)
            asked.append(fields)
        return asked


@pytest.mark.slow
def test_it_finds_the_learning_rate_and_both_ends_of_the_front() -> None:
    late = Search().run(20)[8:]
    near = [1e-3 < one["learning_rate"] < 4e-3 for one in late]
    assert sum(near) > 0.6 * len(late) and all(near[-4:]), "a draw of the prior: 30 %, and two of these explore"
    assert min(one["window"] for one in late) < 30 and max(one["window"] for one in late) > 115


@pytest.mark.slow
def test_the_same_seed_chooses_the_same_and_another_does_not() -> None:
    asked = Search().run(6)
    assert asked == Search().run(6)
    assert asked != Search(sampler={"name": "known-costs", "seed": 1}).run(6)


def test_what_is_over_a_limit_is_never_chosen() -> None:
    asked = Search(limits={"flops_per_token": 60, "peak_memory": 170_000}).run(10)
    assert len(asked) == 10
    assert all(one["window"] + one["overlap"] + 1 <= 60 and one["window"] >= 30 for one in asked)


def test_a_limit_that_nothing_meets_leaves_nothing_to_choose() -> None:
    assert Search(limits={"flops_per_token": 2}).ask() is None


def test_an_objective_may_be_constant_and_two_may_be_the_same() -> None:
    def alike(config: TrialConfig) -> dict[str, float]:
        return {"flops_per_token": float(config.window), "peak_memory": float(config.window), "parameters": 7.0}

    def asked(objectives: list[str]) -> list[dict[str, Any]]:
        search = Search(alike, objectives=OBJECTIVES)
        spec = parse(SearchSpec, search.spec.model_dump() | {"objectives": objectives})
        search.spec, search.sampler = spec, KnownCosts(spec, alike, spec.trial_config)
        found: list[dict[str, Any]] = []
        while len(found) < 6 and (fields := search.ask()) is not None:
            costs = alike(spec.trial_config(fields))
            search.trials.append(ObservedTrial(len(found), fields, costs, ((100, quality(fields)),), True))
            found.append(fields)
        return found

    with_a_constant = asked([*OBJECTIVES, "parameters"])
    assert len({fields_key(one) for one in with_a_constant}) == 6
    assert with_a_constant == asked(OBJECTIVES), "a constant cost scales all gains alike"


@pytest.mark.parametrize("value", [5.0, 1e30])
def test_a_constant_or_a_huge_quality_is_searched_on(value: float) -> None:
    search = Search()
    gains = []
    for _ in range(6):
        chosen = search.sampler.choose(search.trials, search.reference)
        assert isinstance(chosen, NewTrial)
        search.tell(search.spec.parsed_space.fields_of(chosen.point), 1.0, value=value)
        gains.append(chosen.gain)
    assert gains[0] is None and gains[3] is None, "nothing is known before the first trial, and the fourth explores"
    assert all(gain is not None and 0 <= gain < 1 for gain in gains[1:3] + gains[4:])
    assert len({fields_key(one.fields) for one in search.trials}) == 6


def test_each_fourth_of_the_first_trials_is_the_least_certain_that_is_not_slow() -> None:
    search = Search()
    search.run(3)
    pool, expected = search.sampler._candidates_and_gains(search.trials, search.reference)
    assert expected is not None
    times = [one.costs["flops_per_token"] for one in pool]
    quick = [one.fields for one, time in zip(pool, times, strict=True) if time <= 2 * np.median(times)]
    _, std = expected.predict(quick)
    assert search.ask() == quick[int(np.argmax(std))]
    _, doubt = expected.predict([one.fields for one in pool if one.fields == expected.best_of(pool)[0].fields])
    assert doubt < std.max(), "the largest gain is elsewhere"
    search.run(14)
    gains = [search.sampler.choose(search.trials[:count], search.reference) for count in (7, 15, 16, 19)]
    assert [isinstance(one, NewTrial) and one.gain is None for one in gains] == [True, True, False, False]


def test_a_space_with_one_point_is_chosen_once() -> None:
    search = Search(space={"base": "tiny", "window": 32, "recurrence": ["none"]})
    [only] = [search.ask()]
    assert only == {"recurrence": "none"}
    search.trials.append(ObservedTrial(0, only, {"flops_per_token": 1.0, "peak_memory": 1.0}))
    assert search.ask() is None


def test_categories_alone_and_conditions_three_deep_are_all_tried() -> None:
    space = {
        "base": "tiny", "window": 32, "learning_rate": 1e-3,
        "recurrence": {"none": None, "pooled": {"pooling": {"mean": {"skip": {True: None, False: {"depth": [1, 2]}}},
                                                            "max": None}}},
    }  # fmt: skip
    search = Search(space=space)
    found = []
    while fields := search.ask():
        found.append(fields)
        quality = 5.0 + len(found) % 3
        search.trials.append(
            ObservedTrial(len(found), fields, {"flops_per_token": 50.0, "peak_memory": 50.0}, ((100, quality),), True)
        )
    assert len({fields_key(one) for one in found}) == len(found) == 5  # none, max, mean: skipped, or 1 or 2 deep


@pytest.mark.slow
def test_pending_trials_count() -> None:
    """Where eight workers ask before anybody has reported, they are sent to different places."""
    search = Search()
    search.run(12)
    alone = search.ask()
    together = []
    for _ in range(8):
        fields = search.ask()
        assert fields is not None
        search.tell(fields, pending=True)
        together.append(fields)
    assert together[0] == alone
    assert len({fields_key(one) for one in together}) == 8
    assert max(one["window"] for one in together) - min(one["window"] for one in together) > 30


@pytest.mark.slow
def test_a_pending_trial_is_believed_to_end_as_its_curve_goes_on() -> None:
    search = Search()
    search.run(12)
    fields = search.ask()
    assert fields is not None
    search.tell(fields, 0.25, 0.5, pending=True)
    expected = search.sampler.expected_gains(search.trials, np.array([*REFERENCE.values()]))
    assert expected.front[-1, 0] == pytest.approx(quality(fields), rel=0.02)
    assert expected.front[-1, 1:].tolist() == list(price(search.spec.trial_config(fields)).values())


def test_candidates_are_drawn_once_for_a_front_and_reproduce() -> None:
    search = Search()
    search.run(5)
    pool = [one.point for one in search.sampler.pool(search.trials)]
    assert [one.point for one in search.sampler.pool(search.trials)] == pool
    resumed = KnownCosts(search.spec, price, search.spec.trial_config)
    assert [one.point for one in resumed.pool(search.trials)] == pool
    known = replace(search.trials[0], fields=search.spec.parsed_space.fields_of(pool[0]))
    assert pool[0] not in [one.point for one in search.sampler.pool([known, *search.trials[1:]])]


def test_a_front_point_that_was_luck_loses_its_place() -> None:
    search = Search()
    search.run(10)
    lucky = search.trials[4]
    search.trials[4] = replace(lucky, curve=((100, 0.5 * quality(lucky.fields)),))
    before = search.sampler.expected_gains(search.trials, np.array([*REFERENCE.values()]))
    for factor in (1.1, 1 / 1.1):
        again = ((50, quality(lucky.fields, 0.5)), (100, factor * quality(lucky.fields)))
        search.trials.append(replace(lucky, number=len(search.trials), curve=again, repeats=lucky.number))
    after = search.sampler.expected_gains(search.trials, np.array([*REFERENCE.values()]))
    assert len(after.front) == len(before.front) == 10, "a repetition is no candidate of its own"
    assert before.front[4, 0] == pytest.approx(0.5 * quality(lucky.fields))
    assert after.front[4, 0] == pytest.approx(quality(lucky.fields)), "the mean of its further seeds"
    assert after.predict([lucky.fields])[0] > before.predict([lucky.fields])[0], "and the model has learned of them"


class SlowPrice:
    """As a search's own: memory takes a simulated step, FLOPs do not."""

    def __init__(self) -> None:
        self.simulated = 0

    def __call__(self, config: TrialConfig) -> dict[str, float]:
        self.simulated += 1
        return price(config)

    def at_once(self, config: TrialConfig) -> dict[str, float]:
        return {"flops_per_token": price(config)["flops_per_token"]}

    def only(self, config: TrialConfig, names: Container[str]) -> dict[str, float]:
        return {name: value for name, value in self(config).items() if name in names}


def test_a_slow_cost_is_simulated_for_few_and_exact_for_the_chosen() -> None:
    slow = SlowPrice()
    search = Search(slow, limits={"peak_memory": 150_000})
    asked = search.run(12)
    assert slow.simulated <= 3 * len(asked)
    assert all(one["window"] >= 50 for one in asked), "none is over the limit"
    assert {cost_key(one) for one in asked} <= search.sampler.priced.keys()


def test_predicted_costs_follow_the_prices() -> None:
    search = Search(SlowPrice())
    search.run(4)
    expected = [one.costs["peak_memory"] for one in search.sampler.pool(search.trials) if not one.exact]
    assert [one.costs["peak_memory"] for one in search.sampler.pool(search.trials) if not one.exact] == expected
    other = next(one for one in search.sampler.pool(search.trials) if not one.exact)
    search.sampler.priced[cost_key({**other.fields, "window": 77})] = {**other.costs, "peak_memory": 7.0}
    assert [one.costs["peak_memory"] for one in search.sampler.pool(search.trials) if not one.exact] != expected


def test_an_earlier_searchs_trials_bring_no_prices() -> None:
    search = Search(SlowPrice())
    fields = [search.spec.parsed_space.sample(np.random.default_rng(seed))[1] for seed in range(6)]
    search.trials = [ObservedTrial(-2 - place, one, {}, ((100, quality(one)),)) for place, one in enumerate(fields)]
    assert len(search.run(3)) == 3


def test_what_cannot_be_trained_is_left_out() -> None:
    def refuse(config: TrialConfig) -> dict[str, float]:
        if config.window > 40:
            raise UserError("window: too large for it.")
        return price(config)

    assert all(one["window"] <= 40 for one in Search(refuse).run(6))
