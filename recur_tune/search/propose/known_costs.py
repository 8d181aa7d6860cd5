"""The sampler `known-costs`: the next trial is the one whose expected hypervolume improvement is largest.

Costs are functions of the configuration and known before it is trained, so candidates are compared at their exact costs
and those over a limit are never considered. A cost that takes a simulated step, such as peak memory, is guessed for the
whole pool from the prices that are known and made exact for the winner, which has to win again with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from recur_tune.common.errors import UserError
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.candidates import Candidate, NewTrial, ResumeCandidate
from recur_tune.search.propose.expected_gains import ExpectedGains
from recur_tune.search.propose.features import Features, rows_at
from recur_tune.search.propose.observations import Fields, Key, ObservedTrial, cost_key, fields_key, quality_of
from recur_tune.search.record.front import non_dominated
from recur_tune.search.record.objectives import COSTS
from recur_tune.search.record.spec import SearchSpec

if TYPE_CHECKING:
    from recur_tune.search.propose.gaussian_process import FittedKernel

Price = Callable[[TrialConfig], dict[str, float]]
_Drawn = tuple[dict[str, Any], dict[str, Any]]  # a point in the sampler's own names, and its fields

_ANYWHERE, _NEAR_THE_FRONT = 200, 100  # candidates: from the space's prior, and points of the front with a change
_MOST_PRICED = 3  # candidates of a pool that are simulated, unless all of them are over a limit
_MIN_GAIN_RATIO = 0.01  # of what a new trial promises for each token: below it a trial is paused
_BEYOND = 1.05  # the worst that was seen, for a reference that is not fixed yet


class KnownCosts:
    """Chooses trials for a search; `config` makes a trial of fields, and a `price` whose simulated part takes long has
    a method `at_once` for the rest."""

    def __init__(self, spec: SearchSpec, price: Price, config: Callable[[dict[str, Any]], TrialConfig]) -> None:
        self.spec, self.space, self.price, self.config = spec, spec.parsed_space, price, config
        self.at_once: Price = getattr(price, "at_once", price)
        self.features = Features(self.space)
        self.quality = quality_of(spec)
        self.costs = [name for name in spec.objectives if name in COSTS]
        self.needed = {*self.costs, *spec.limits}
        self.quick: dict[Key, dict[str, float]] = {}  # by form: prices without what has to be simulated
        self.priced: dict[Key, dict[str, float]] = {}  # whole ones
        self.drawn: tuple[Any, list[_Drawn]] = (None, [])  # the last candidates, and for which trials and front

    @cached_property
    def curve_kernel(self) -> FittedKernel:
        """Of learning curves."""
        return self._kernel()

    @cached_property
    def cost_kernel(self) -> FittedKernel:
        """Of costs that take long to find."""
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

    def choose(
        self, trials: Sequence[ObservedTrial], reference: Mapping[str, float]
    ) -> NewTrial | ResumeCandidate | None:
        """The next trial, given those that were proposed before: a new one, or one of the paused where that buys more
        for its tokens. None where no candidate is new and within limits, and no paused trial may reach the front."""
        pool, expected = self._candidates_and_gains(trials, reference)
        if expected is None:
            return next((NewTrial(one.point) for one in pool if self._is_affordable(one)), None)
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
        """Whether a trial that has come to a rung shall be trained further; else it is paused.

        It goes on where that buys, for its tokens, at least a hundredth of what the best new trial would: curves cross,
        and the new one's promise is the largest of many guesses. Once all trials are spent it does while it may reach the
        front. What no other trial undercuts always does, so that the cheap corner of a front is certain.
        """
        [trial] = [one for one in trials if one.number == number]
        if not trial.curve:  # nothing but values that are no numbers
            return False
        if not self._is_matched_on_costs(trial, trials):
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
        """The paused trials, the one that buys most for its tokens first."""
        _, expected = self._candidates_and_gains(trials, reference)
        return [] if expected is None else self._rank_paused(expected, trials)

    def next_resume(self, trials: Sequence[ObservedTrial], reference: Mapping[str, float]) -> ResumeCandidate | None:
        """Which paused trial to continue when no new one may begin; None where none may reach the front."""
        return next((one for one in self.rank_paused(trials, reference) if one.may_reach_front), None)

    def _candidates_and_gains(
        self, trials: Sequence[ObservedTrial], reference: Mapping[str, float]
    ) -> tuple[list[Candidate], ExpectedGains | None]:
        """New candidates, and what they and the paused trials are worth; None while no price is known."""
        for one in trials:
            if self.needed <= one.costs.keys():
                self.priced[cost_key(one.fields)] = dict(one.costs)
        pool = self.pool(trials)
        if not self.priced:  # an earlier search's trials bring none
            return pool, None
        return pool, self.expected_gains(trials, self._reference(reference, pool, trials))

    def _best_new(self, expected: ExpectedGains, pool: list[Candidate]) -> tuple[Candidate, float] | None:
        """The candidate that is worth most at its exact costs, and its gain."""
        simulated = 0
        while pool:
            exact = [one for one in pool if one.exact] if simulated >= _MOST_PRICED else []
            best, gain = expected.best_of(exact or pool)
            if best.exact:
                return best, gain
            simulated += 1
            if not self._is_affordable(best):  # nor, perhaps, are others like it: guess again
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
        """Whether another trial that ended, or is on its way, costs no more."""
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
            new.pop(fields_key(one.fields), None)
        return self._within_limits([Candidate(*pair, {}, exact=False) for pair in reversed(new.values())])

    def _draw(self, rng: np.random.Generator, front: Sequence[ObservedTrial]) -> list[_Drawn]:
        """Points and their fields. Trials that are judged until the next one is chosen are compared with the same ones:
        to draw them and to find their costs takes longer than to see what they are worth."""
        best = [self.space.closest(one.fields) for one in front]
        pairs = [self.space.sample(rng, None) for _ in range(_ANYWHERE)]
        for _ in range(_NEAR_THE_FRONT if best else 0):
            kept = dict(best[rng.integers(len(best))])
            for label in rng.choice([*kept], min(len(kept), int(rng.integers(1, 3))), replace=False):
                del kept[label]
            pairs.append(self.space.sample(rng, kept))
        return pairs

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
            except UserError:  # it cannot be trained at all
                continue
            one.exact = self.needed <= one.costs.keys()
            priced.append(one)
        self._guess([one for one in priced if not one.exact])
        return [one for one in priced if self._keeps_limits(one)]

    def _known_price(self, fields: dict[str, Any]) -> dict[str, float]:
        form = cost_key(fields)
        if form in self.priced:
            return self.priced[form]
        if form not in self.quick:
            self.quick[form] = self.at_once(self.config(fields))
        return self.quick[form]

    def _guess(self, pool: list[Candidate]) -> None:
        """Guess slow costs from the prices that are known, by a process of their own."""
        missing = self.needed - (pool[0].costs.keys() if pool else self.needed)
        if not missing or not self.priced:
            return
        known = list(self.priced.items())  # another thread may add to them meanwhile
        forms, prices = [dict(form) for form, _ in known], [price for _, price in known]
        for name in sorted(missing):
            process = self.cost_kernel.posterior(self._rows(forms), np.log([price[name] for price in prices]))
            mean, _ = process.predict(self._rows([dict(cost_key(one.fields)) for one in pool], first=len(forms)))
            for one, guess in zip(pool, np.exp(mean), strict=True):
                one.costs = {**one.costs, name: float(guess)}

    def _rows(self, trials: Sequence[Fields], first: int = 0) -> np.ndarray:
        return rows_at(self.features(trials), 1.0, np.arange(first, first + len(trials)))

    def _is_affordable(self, candidate: Candidate) -> bool:
        """Find a candidate's exact costs; whether it meets the limits with them."""
        if not candidate.exact:
            try:
                candidate.costs = self.price(self.config(candidate.fields))
            except UserError:
                return False
            candidate.exact = True
            self.priced[cost_key(candidate.fields)] = candidate.costs
        return self._keeps_limits(candidate)

    def _keeps_limits(self, candidate: Candidate) -> bool:
        return all(candidate.costs.get(name, 0) <= limit for name, limit in self.spec.limits.items())

    def _reference(
        self, fixed: Mapping[str, float], pool: list[Candidate], trials: Sequence[ObservedTrial]
    ) -> np.ndarray:
        """What is fixed; else the worst that was seen, and for a quality that nobody has seen any number will do."""
        worst = {self.quality: max((one.curve[-1][1] for one in trials if one.curve), default=1.0)}
        prices = [*(one.costs for one in pool), *self.priced.values()]
        worst |= {name: max(price[name] for price in prices) for name in self.costs}
        return np.array([fixed.get(name, _BEYOND * worst[name]) for name in (self.quality, *self.costs)])
