"""The sampler `known-costs`: the next trial is the one whose expected hypervolume improvement is largest, but for a few
of the first, which explore.

Costs are functions of the configuration and known before training, so candidates are compared at their exact costs and
those over a limit are left out. A cost that takes a simulated step, such as peak memory, is predicted for the whole
pool from the prices that are known. It is made exact for the best candidate, which then has to be the best again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from recur_tune.common.errors import UserError
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.candidates import Candidate, NewTrial, ResumeCandidate
from recur_tune.search.propose.expected_gains import ExpectedGains
from recur_tune.search.propose.features import NEW, Features, LazyRows, rows_at
from recur_tune.search.propose.first_round import completed
from recur_tune.search.propose.observations import TIME, Fields, Key, ObservedTrial, cost_key, fields_key
from recur_tune.search.record.confirmation import quality_of
from recur_tune.search.record.front import non_dominated
from recur_tune.search.record.knowledge import EarlierSearch
from recur_tune.search.record.objectives import COSTS
from recur_tune.search.record.spec import SearchSpec

if TYPE_CHECKING:
    from recur_tune.search.propose.earlier_searches import LeaningKernel
    from recur_tune.search.propose.gaussian_process import CurvePosterior, FittedKernel

Price = Callable[[TrialConfig], dict[str, float]]
PriceOnly = Callable[[TrialConfig, Container[str]], dict[str, float]]
_Drawn = tuple[dict[str, Any], dict[str, Any]]  # a point in the sampler's own names, and its fields

_ANYWHERE, _NEAR_THE_FRONT = 200, 100  # candidates: random points, and points of the front with a change
_NEAR_EARLIER = 50  # points of earlier searches' fronts with a change, beside those points themselves
_MOST_PRICED = 3  # candidates of a pool whose costs are simulated, unless all of them are over a limit
_EXPLORE_EVERY, _EXPLORE_UNTIL = 4, 16  # each fourth of the first sixteen trials is there to learn from
_EXPLORE_FOR = 2  # times the median candidate's time, at most
_MIN_GAIN_RATIO = 0.1  # of a new trial's expected gain per token: a trial with less is paused at its rung
_FIRST_ROUND = 1_000_003  # of the seed, beside numbers of trials
_BEYOND = 1.05  # factor on the worst value so far, for a reference that is not fixed yet


class KnownCosts:
    """Chooses trials for a search. `config` makes a trial from fields. `price` computes all costs of a trial; it may
    have a method `at_once` for those that need no simulation, and `only` for those of some names. `earlier` searches
    say what to expect of trials."""

    def __init__(
        self,
        spec: SearchSpec,
        price: Price,
        config: Callable[[dict[str, Any]], TrialConfig],
        earlier: Sequence[EarlierSearch] = (),
    ) -> None:
        self.earlier = earlier
        self.spec, self.space, self.price, self.config = spec, spec.parsed_space, price, config
        self.at_once: Price = getattr(price, "at_once", price)
        self.only: PriceOnly = getattr(price, "only", lambda config, names: price(config))
        self.features = Features(self.space)
        self.quality = quality_of(spec)
        self.costs = [name for name in spec.objectives if name in COSTS]
        self.needed = {*self.costs, *spec.limits}
        # What is known of trials by their numbers, since to sort the fields of all at every choice takes long.
        self.keys: dict[int, tuple[Fields, Key]] = {}
        self.told: dict[int, Mapping[str, float]] = {}  # costs that are among the prices
        self.quick: dict[Key, dict[str, float]] = {}  # by cost key: the costs that need no simulation
        self.priced: dict[Key, dict[str, float]] = {}  # by cost key: all costs
        self.cost_process: dict[str, tuple[CurvePosterior, int]] = {}  # of a simulated cost, and the prices it has seen
        self.drawn: tuple[Any, list[_Drawn]] = (None, [])  # the trials and front of the last draw, and its points

    @cached_property
    def curve_kernel(self) -> FittedKernel | LeaningKernel:
        """The kernel of learning curves."""
        if not self.earlier:
            return self._kernel()
        from recur_tune.search.propose.earlier_searches import LeaningKernel

        return LeaningKernel(self.features, self.earlier)

    @property
    def leanings(self) -> str:
        """Which earlier searches the model leans on, in words; empty where there are none, or no choice was made."""
        return getattr(self.__dict__.get("curve_kernel"), "in_words", "")

    @cached_property
    def cost_kernel(self) -> FittedKernel:
        """The kernel of costs that are simulated."""
        return self._kernel()

    def _kernel(self) -> FittedKernel:
        from recur_tune.search.propose.gaussian_process import (
            FittedKernel,  # scikit-learn loads in seconds: not before it is needed
        )

        return FittedKernel(self.features.groups)

    def expected_gains(self, trials: Sequence[ObservedTrial], reference: np.ndarray) -> ExpectedGains:
        """The acquisition function, given these trials."""
        budget = self.spec.budget.tokens
        return ExpectedGains(self.features, self.curve_kernel, self.costs, budget, trials, reference)

    def completed(self, points: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The search's first points, by role, with the fields that they leave open."""

        def time(fields: Mapping[str, Any]) -> float | None:
            try:
                costs = self._known_price(dict(fields))
            except UserError:  # this configuration cannot be trained
                return None
            return costs.get(TIME, 1.0) if self._keeps_limits(costs) else None

        return completed(points, self.space, time, np.random.default_rng([self.spec.sampler.seed, _FIRST_ROUND]))

    def choose(
        self, trials: Sequence[ObservedTrial], reference: Mapping[str, float]
    ) -> NewTrial | ResumeCandidate | None:
        """The next trial: a new one, or a paused one whose expected gain per remaining token is larger.

        None where no candidate is new and within limits, and no paused trial may reach the front.
        """
        pool, expected = self._candidates_and_gains(trials, reference)
        if expected is None:
            return next((NewTrial(one.point) for one in pool if self._is_affordable(one)), None)
        if self._explores(trials) and (unknown := self._least_certain(expected, pool)):
            return NewTrial(unknown.point)
        new, paused = self._best_new(expected, pool), self._rank_paused(expected, trials)
        if new is None:
            return next((one for one in paused if one.may_reach_front), None)
        best, gain = new
        if paused and paused[0].rate > gain / self.spec.budget.tokens:
            return paused[0]
        return NewTrial(best.point, gain)

    def should_continue(
        self, trials: Sequence[ObservedTrial], reference: Mapping[str, float], number: int, spent: bool = False
    ) -> bool:
        """Whether a trial at a rung is trained further; otherwise it is paused.

        It continues unless its expected gain per token is under a tenth of the best new trial's. The bound is low
        because learning curves cross, and the new trial's gain is the maximum of many estimates. Once the budget of
        trials is `spent`, it continues while it may reach the front. A trial that no other matches on every cost always
        continues, so that the cheap end of the front is measured.
        """
        [trial] = [one for one in trials if one.number == number]
        if not trial.curve:  # no finite value
            return False
        if not (self.earlier or self._is_matched_on_costs(trial, trials)):
            return True
        trials = [replace(one, pending=False, paused=True) if one is trial else one for one in trials]
        pool, expected = self._candidates_and_gains(trials, reference)
        if expected is None:
            return True
        [own] = [one for one in self._rank_paused(expected, trials) if one.trial == number]
        if spent or not pool:
            return own.may_reach_front
        _, gain = expected.best_of(pool)
        return own.rate >= _MIN_GAIN_RATIO * gain / self.spec.budget.tokens

    def rank_paused(self, trials: Sequence[ObservedTrial], reference: Mapping[str, float]) -> list[ResumeCandidate]:
        """The paused trials, the largest expected gain per remaining token first."""
        _, expected = self._candidates_and_gains(trials, reference)
        return [] if expected is None else self._rank_paused(expected, trials)

    def next_resume(self, trials: Sequence[ObservedTrial], reference: Mapping[str, float]) -> ResumeCandidate | None:
        """The paused trial to resume when no new one may begin; None where none may reach the front."""
        return next((one for one in self.rank_paused(trials, reference) if one.may_reach_front), None)

    def survey(
        self, trials: Sequence[ObservedTrial], reference: Mapping[str, float]
    ) -> tuple[list[Candidate], ExpectedGains | None]:
        """New candidates and the acquisition function, as far as trials have been trained: running ones are not
        believed to end as expected. No kernel is fitted, so that later choices are the same."""
        fixed = copy(self)
        fixed.curve_kernel, fixed.cost_kernel = self.curve_kernel.as_it_is(), self.cost_kernel.as_it_is()
        fixed.cost_process = dict(self.cost_process)
        return fixed._candidates_and_gains([replace(one, pending=False) for one in trials], reference)

    def _candidates_and_gains(
        self, trials: Sequence[ObservedTrial], reference: Mapping[str, float]
    ) -> tuple[list[Candidate], ExpectedGains | None]:
        """New candidates, and the acquisition function; None while no price is known."""
        for one in trials:
            if self.told.get(one.number) is not one.costs and self.needed <= one.costs.keys():
                self.priced[cost_key(one.fields)] = dict(one.costs)
                self.told[one.number] = one.costs
        pool = self.pool(trials)
        if not self.priced:  # the trials of an earlier search have none
            return pool, None
        return pool, self.expected_gains(trials, self._reference(reference, pool, trials))

    def _explores(self, trials: Sequence[ObservedTrial]) -> bool:
        """Whether the next trial is there to learn from. A search whose first trials are alike takes what it has seen
        for all that there is, and stays near the best of them; earlier searches have seen more."""
        place = len(trials) + 1
        return place <= _EXPLORE_UNTIL and place % _EXPLORE_EVERY == 0 and not self.earlier

    def _least_certain(self, expected: ExpectedGains, pool: Sequence[Candidate]) -> Candidate | None:
        """Uncertainty sampling: the candidate with the largest standard deviation of its end, of those that take at
        most so many times the median time."""
        times = [one.costs.get(TIME, 1.0) for one in pool]
        if not times:
            return None
        most = _EXPLORE_FOR * np.median(times)
        quick = [one for one, time in zip(pool, times, strict=True) if time <= most]
        _, std = expected.predict([one.fields for one in quick])
        by_doubt = [quick[int(place)] for place in np.argsort(-std, kind="stable")]
        return next((one for one in by_doubt if self._is_affordable(one)), None)

    def _best_new(self, expected: ExpectedGains, pool: list[Candidate]) -> tuple[Candidate, float] | None:
        """The candidate with the largest gain at exact costs, and its gain."""
        simulated = 0
        while pool:
            exact = [one for one in pool if one.exact] if simulated >= _MOST_PRICED else []
            best, gain = expected.best_of(exact or pool)
            if best.exact:
                return best, gain
            simulated += 1
            if not self._is_affordable(best):  # others like it may be too dear as well: predict again
                pool = self._within_limits([one for one in pool if one is not best])
        return None

    def _rank_paused(self, expected: ExpectedGains, trials: Sequence[ObservedTrial]) -> list[ResumeCandidate]:
        paused = [one for one in trials if one.paused and one.curve]
        if not paused:
            return []
        left = [max(1, self.spec.budget.tokens - one.curve[-1][0]) for one in paused]
        worth = zip(paused, left, *expected.ends_of(paused), strict=True)
        found = [ResumeCandidate(one.number, gain, gain / rest, chance) for one, rest, gain, chance in worth]
        return sorted(found, key=lambda one: -one.rate)

    def _is_matched_on_costs(self, trial: ObservedTrial, trials: Sequence[ObservedTrial]) -> bool:
        """Whether a complete or pending trial costs no more in every cost."""
        rivals = [one for one in trials if (one.complete or one.pending) and one is not trial and one.costs]
        return any(all(one.costs[name] <= trial.costs[name] for name in self.costs) for one in rivals)

    def pool(self, trials: Sequence[ObservedTrial]) -> list[Candidate]:
        """New candidates within the limits, as far as their costs are known."""
        finished = [one for one in trials if one.complete and one.curve and one.repeats is None]
        front = self._front(finished)
        of = len(trials), [one.number for one in front]
        drawn, pairs = self.drawn
        if drawn != of:
            pairs = self._draw(np.random.default_rng([self.spec.sampler.seed, len(trials)]), front)
            self.drawn = of, pairs
        new = {fields_key(fields): (point, fields) for point, fields in reversed(pairs)}
        for one in trials:
            new.pop(self._key(one), None)
        return self._within_limits([Candidate(*pair, {}, exact=False) for pair in reversed(new.values())])

    def _draw(self, rng: np.random.Generator, front: Sequence[ObservedTrial]) -> list[_Drawn]:
        """Random points, changed points of the front and of earlier fronts, and the fields of all. They are kept until
        a trial is added or the front changes: to draw and price them takes longer than to compute their gains."""
        best = [self.space.closest(one.fields) for one in front]
        pairs = [self.space.sample(rng, None) for _ in range(_ANYWHERE)]
        pairs += self._changed(rng, best, _NEAR_THE_FRONT)
        before = [dict(point) for one in self.earlier for point in one.front]
        return [*pairs, *(self.space.sample(rng, one) for one in before), *self._changed(rng, before, _NEAR_EARLIER)]

    def _changed(self, rng: np.random.Generator, best: Sequence[dict[str, Any]], count: int) -> list[_Drawn]:
        """So many of these points with one or two parameters drawn again."""
        pairs = []
        for _ in range(count if best else 0):
            kept = dict(best[int(rng.integers(len(best)))])
            for label in rng.choice([*kept], min(len(kept), int(rng.integers(1, 3))), replace=False):
                del kept[label]
            pairs.append(self.space.sample(rng, kept))
        return pairs

    def _key(self, trial: ObservedTrial) -> Key:
        """The key of a trial's fields."""
        fields, key = self.keys.get(trial.number, (None, ()))
        if fields is not trial.fields:
            key = fields_key(trial.fields)
            self.keys[trial.number] = trial.fields, key
        return key

    def _front(self, finished: Sequence[ObservedTrial]) -> list[ObservedTrial]:
        if not finished:
            return []
        values = np.array([[one.curve[-1][1], *(one.costs[name] for name in self.costs)] for one in finished])
        return [one for one, is_on in zip(finished, non_dominated(values), strict=True) if is_on]

    def _within_limits(self, pool: list[Candidate]) -> list[Candidate]:
        priced = []
        for one in pool:
            try:
                one.costs = self._known_price(one.fields)
            except UserError:  # this configuration cannot be trained
                continue
            one.exact = self.needed <= one.costs.keys()
            priced.append(one)
        self._predict_costs([one for one in priced if not one.exact])
        return [one for one in priced if self._keeps_limits(one.costs)]

    def _known_price(self, fields: dict[str, Any]) -> dict[str, float]:
        key = cost_key(fields)
        if key in self.priced:
            return self.priced[key]
        if key not in self.quick:
            self.quick[key] = self.at_once(self.config(fields))
        return self.quick[key]

    def _predict_costs(self, pool: list[Candidate]) -> None:
        """Predict simulated costs from the prices that are known, with a Gaussian process."""
        missing = self.needed - (pool[0].costs.keys() if pool else self.needed)
        if not missing or not self.priced:
            return
        known = list(self.priced.items())  # another thread may add to them meanwhile
        of_pool = rows_at(self.features([dict(cost_key(one.fields)) for one in pool]), 1.0, NEW)
        for name in sorted(missing):
            process, told = self.cost_process.get(name, (None, 0))
            if process is None or told < len(known):
                numbers = np.arange(len(known))
                rows = LazyRows(self.features, [dict(key) for key, _ in known], numbers, np.ones(len(known)), numbers)
                process = self.cost_kernel.posterior(rows, np.log([price[name] for _, price in known]))
                self.cost_process[name] = process, len(known)
            mean = process.mean(of_pool)
            for one, cost in zip(pool, np.exp(mean), strict=True):
                one.costs = {**one.costs, name: float(cost)}

    def _is_affordable(self, candidate: Candidate) -> bool:
        """Make a candidate's costs exact, those that matter here; whether they are within the limits."""
        if not candidate.exact:
            try:
                simulated = self.only(self.config(candidate.fields), self.needed)
            except UserError:
                return False
            candidate.costs, candidate.exact = {**self._known_price(candidate.fields), **simulated}, True
            self.priced[cost_key(candidate.fields)] = candidate.costs
        return self._keeps_limits(candidate.costs)

    def _keeps_limits(self, costs: Mapping[str, float]) -> bool:
        return all(costs.get(name, 0) <= limit for name, limit in self.spec.limits.items())

    def _reference(
        self, fixed: Mapping[str, float], pool: list[Candidate], trials: Sequence[ObservedTrial]
    ) -> np.ndarray:
        """The fixed reference, else the worst values so far; before the first quality any number will do."""
        worst = {self.quality: max((one.curve[-1][1] for one in trials if one.curve), default=1.0)}
        prices = [*(one.costs for one in pool), *self.priced.values()]
        worst |= {name: max(price[name] for price in prices) for name in self.costs}
        return np.array([fixed.get(name, _BEYOND * worst[name]) for name in (self.quality, *self.costs)])
