"""What the next trials are expected to add: in closed form where there is one, and what holds of any outlook."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.search.propose.acquisition import expected_improvement
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.propose.look_ahead import look_ahead
from recur_tune.search.propose.observations import ObservedTrial, cost_key
from recur_tune.search.propose.outlook import Options, Outlook, outlook
from recur_tune.search.record.front import hypervolume
from tests.search.propose.test_known_costs import Search, SlowPrice, price

REFERENCE_POINT = np.array([20.0, 200.0])  # quality and cost
NO_FRONT = np.empty((0, 2))
CERTAIN = 1e-9  # a standard deviation


def options(*trials: tuple[float, float, float], running: int = 0, slowness: tuple[float, ...] = ()) -> Options:
    """Independent trials by their expected quality, its logarithm's standard deviation and their cost."""
    quality, std, cost = np.array(trials).T
    return Options(
        np.log(quality), np.diag(std**2), cost[:, None], np.ones(len(trials)),
        np.array(slowness or [1.0] * len(trials)), np.arange(len(trials)) >= running, running,
    )  # fmt: skip


def test_one_trial_in_closed_form() -> None:
    """It adds (1 - y / 20) * (1 - 80 / 200) where it beats the reference, and log y is normal. In the interval the
    variance of the common error is added to its own."""
    mean, std, worlds = math.log(18), 0.1, 2000
    found = outlook(options((18, std, 80)), NO_FRONT, REFERENCE_POINT, 1, 2.0, worlds, (0.9, 1, 2))
    share = 1 - 80 / 200
    expected = float(expected_improvement(np.array(20.0), np.array(mean), np.array(std))) / 20 * share
    wide = NormalDist(mean, std * math.sqrt(1 + 2**2))
    low, high = (max(0.0, 1 - math.exp(wide.inv_cdf(chance)) / 20) * share for chance in (0.9, 0.1))
    assert found.expected == pytest.approx([0, expected, expected], rel=0.03)
    assert found.low == [0, 0, 0] and low == 0
    assert found.high == pytest.approx([0, high, high], rel=0.03)


def test_the_error_is_common_to_all() -> None:
    """Of two alike the better one counts: their own errors are drawn here once more, and what they have in common."""
    random = np.random.default_rng(1)
    own, common = random.normal(size=(2, 100_000)), 2 * random.normal(size=100_000)
    gains = 0.6 * np.maximum(0, 1 - np.exp(math.log(15) + 0.1 * (own + common).min(axis=0)) / 20)
    two = options((15, 0.1, 80), (15, 0.1, 80), running=2)
    found = outlook(two, NO_FRONT, REFERENCE_POINT, 0, 2.0, 2000, (2,))
    assert [*found.low, *found.high] == pytest.approx(np.quantile(gains, [0.1, 0.9]).tolist(), rel=0.05)


def test_trials_gain_when_they_end() -> None:
    """Two at a time, the second three times as slow, and a third that begins when the first has ended, with the same
    pace: they end after 1, 3 and 2 units of time, when 1 + 1/3, 2 + 2/3 and 3 tokens of whole trials are spent."""
    trials = options((10, CERTAIN, 150), (10, CERTAIN, 120), (10, CERTAIN, 40), running=2, slowness=(1, 3, 1))
    found = outlook(trials, NO_FRONT, REFERENCE_POINT, ahead=(1.3, 1.34, 2.6, 2.7, 2.9, 3))
    first, third = 0.5 * (1 - 150 / 200), 0.5 * (1 - 40 / 200)  # the second is dominated by the third
    assert found.expected == pytest.approx([0, first, first, third, third, third], abs=1e-6)
    alone = outlook(replace(trials, running=1), NO_FRONT, REFERENCE_POINT, ahead=(0.9, 1, 2, 3))
    assert alone.expected == pytest.approx([0, first, third, third], abs=1e-6), "then the one that gains most"


def test_no_more_trials_begin_than_the_budget_has_left() -> None:
    trials = options((10, CERTAIN, 150), (10, CERTAIN, 120), (10, CERTAIN, 40), running=1)
    for new, gain in ((0, 0.125), (1, 0.4)):
        assert outlook(trials, NO_FRONT, REFERENCE_POINT, new).expected[-1] == pytest.approx(gain, abs=1e-6)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(0, 3), st.integers(0, 4))
def test_what_holds_of_any_outlook(seed: int, trials: int, running: int, ended: int) -> None:
    random = np.random.default_rng(seed)
    root = 0.2 * random.normal(size=(trials, 2))  # alike: the covariance is singular
    some = Options(
        np.log(random.uniform(5, 25, trials)), root @ root.T, random.uniform(10, 190, (trials, 1)),
        random.uniform(0.1, 1, trials), random.uniform(1, 9, trials), np.arange(trials) >= running,
        min(running, trials),
    )  # fmt: skip
    front = np.column_stack([random.uniform(5, 19, ended), random.uniform(10, 190, ended)])
    found = outlook(some, front, REFERENCE_POINT, worlds=16)
    room = 1 - hypervolume(front, REFERENCE_POINT.tolist())
    for low, expected, high in zip(found.low, found.expected, found.high, strict=True):
        assert -1e-12 <= low <= expected <= high <= room
    for gains in (found.low, found.expected, found.high):
        assert all(less <= more + 1e-12 for less, more in pairwise(gains)), "more trials add no less"


@pytest.fixture(scope="module")
def search() -> Search:
    """Four trials have ended."""
    search = Search()
    search.run(4)
    return search


def test_nothing_is_expected_where_nothing_is_left(search: Search) -> None:
    found = look_ahead(search.sampler, search.trials, search.reference, {}, new_trials=0)
    assert found == Outlook.of_nothing() and set(found.high) == {0.0}
    unpriced = [replace(one, costs={}, complete=False) for one in search.trials]
    before = KnownCosts(search.spec, price, search.spec.trial_config)
    assert look_ahead(before, unpriced, search.reference, {}) is None, "as trials of an earlier search"


def test_tokens_since_the_last_validation_count(search: Search) -> None:
    """Two running trials have three quarters left at their last validation, which are more than one whole trial."""
    running = [
        ObservedTrial(number, {**one.fields, "learning_rate": 2e-3}, {**one.costs, "flops_per_token": 100.0},
                      ((25, 5.0),), pending=True)
        for number, one in enumerate(search.trials[:2], start=4)
    ]  # fmt: skip
    trials = [*search.trials, *running]
    validated, nearly_done = (
        look_ahead(search.sampler, trials, search.reference, trained, 0) for trained in ({}, {4: 70, 5: 70})
    )
    assert validated is not None and nearly_done is not None
    assert validated.expected[0] == 0 < nearly_done.expected[0]
    assert validated.expected[1:] == nearly_done.expected[1:], "after two whole trials both have ended either way"


def test_an_outlook_leaves_the_sampler_as_it_is(search: Search) -> None:
    """So later choices are the same, though a choice after as many validations would have fitted the kernels again."""
    more = [replace(one, number=number) for number, one in enumerate(search.trials, start=4)]
    kernels = search.sampler.curve_kernel, search.sampler.cost_kernel
    before = [(kernel.rows, *kernel.kernel.theta) for kernel in kernels], search.sampler.drawn
    assert look_ahead(search.sampler, [*search.trials, *more], search.reference, {}) is not None
    assert before == ([(kernel.rows, *kernel.kernel.theta) for kernel in kernels], search.sampler.drawn)
    search.sampler.choose([*search.trials, *more], search.reference)
    assert before[0] != [(kernel.rows, *kernel.kernel.theta) for kernel in kernels]


def test_an_outlook_leaves_predicted_costs_to_the_next_choice() -> None:
    """The process of a simulated cost is kept until a price is new; the outlook's own is of kernels as they were."""
    search = Search(SlowPrice())
    search.run(4)
    (fields, costs), *_ = search.sampler.priced.items()
    search.sampler.priced[cost_key({**dict(fields), "window": 77})] = {**costs, "peak_memory": 7.0}
    before = dict(search.sampler.cost_process)
    assert look_ahead(search.sampler, search.trials, search.reference, {}) is not None
    assert search.sampler.cost_process == before
    search.sampler.choose(search.trials, search.reference)
    assert search.sampler.cost_process != before
