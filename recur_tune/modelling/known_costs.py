"""The sampler `known-costs`: the next trial is the one whose expected hypervolume improvement is largest.

Costs are functions of the configuration and known before it is trained, so candidates are compared at their exact costs
and those over a limit are never considered. A cost that takes a simulated step, such as peak memory, is guessed for the
whole pool from the prices that are known and made exact for the winner, which has to win again with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recur_tune.errors import UserError
from recur_tune.modelling.features import Features
from recur_tune.modelling.improvement import expected_hypervolume_improvement
from recur_tune.modelling.process import NEW, LearnedKernel, rows_at
from recur_tune.searching.front import non_dominated
from recur_tune.searching.objectives import COSTS
from recur_tune.searching.spec import SearchSpec
from recur_tune.searching.state import ENDED, TrialRecord
from recur_tune.spec import TrialConfig

Price = Callable[[TrialConfig], dict[str, float]]
Fields = Mapping[str, Any]

_ANYWHERE, _NEAR_THE_FRONT = 200, 100  # candidates: from the space's prior, and points of the front with a change
_FEWEST = 4  # trials with a validation before there is something to model
_MOST_PRICED = 4  # candidates of a pool that are simulated
_BEYOND = 1.05  # the worst that was seen, for a reference that is not fixed yet


@dataclass(frozen=True)
class Seen:
    """A trial as the process sees it: its curve as (tokens, quality), and whether it may still reach its end."""

    number: int
    fields: Fields
    costs: Mapping[str, float]
    curve: tuple[tuple[int, float], ...] = ()
    complete: bool = False
    pending: bool = False


def seen(trials: Iterable[TrialRecord], quality: str) -> list[Seen]:
    """Trials of a search's log, without values that are no numbers."""
    return [
        Seen(
            one.number, one.params, one.costs,
            tuple((v.tokens, v.metrics[quality]) for v in one.validations if 0 < v.metrics.get(quality, 0) < math.inf),
            one.state == "complete", one.state not in ENDED,
        )
        for one in trials
    ]  # fmt: skip


Key = tuple[tuple[str, Any], ...]


def key_of(fields: Fields) -> Key:
    """Fields as something that can be looked up."""
    return tuple(sorted(fields.items()))


def quality_of(spec: SearchSpec) -> str:
    """The one objective that has to be measured."""
    [quality] = [name for name in spec.objectives if name not in COSTS]
    return quality


@dataclass(frozen=True)
class Chosen:
    """A point in the sampler's own names, and what it is expected to add to the hypervolume; None where nobody knows
    yet."""

    point: dict[str, Any]
    gain: float | None = None


@dataclass
class _Candidate:
    point: dict[str, Any]
    fields: dict[str, Any]
    costs: dict[str, float]
    exact: bool


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
        self.curves, self.guesses = LearnedKernel(self.features.groups), LearnedKernel(self.features.groups)
        self.quick: dict[Key, dict[str, float]] = {}  # prices without what has to be simulated
        self.priced: dict[Key, dict[str, float]] = {}  # whole ones

    def choose(self, trials: Sequence[Seen], reference: Mapping[str, float]) -> Chosen | None:
        """The next trial, given those that were proposed before; None where no candidate is new and within limits."""
        rng = np.random.default_rng([self.spec.sampler.seed, len(trials)])
        for one in trials:
            if self.needed <= one.costs.keys():
                self.priced[key_of(one.fields)] = dict(one.costs)
        pool = self._pool(rng, trials)
        taught = [one for one in trials if one.curve]
        if not pool or len(taught) < _FEWEST:
            return next((Chosen(one.point) for one in pool if self._is_affordable(one)), None)
        outlook = Outlook(self, trials, self._reference(reference, pool, taught))
        for _ in range(_MOST_PRICED):
            gains = outlook.gains([one.fields for one in pool], self._matrix(pool))
            best = int(np.argmax(gains))
            winner = pool[best]
            if winner.exact:
                return Chosen(winner.point, float(gains[best]))
            if not self._is_affordable(winner):
                del pool[best]
            if not pool:
                return None
        exact = [place for place, one in enumerate(pool) if one.exact]
        best = max(exact, key=lambda place: gains[place]) if exact else best
        return Chosen(pool[best].point, float(gains[best]))

    def _pool(self, rng: np.random.Generator, trials: Sequence[Seen]) -> list[_Candidate]:
        """New candidates within the limits, as far as their costs are known."""
        known = {key_of(one.fields) for one in trials}
        finished = [one for one in trials if one.complete and one.curve]
        best = [self.space.closest(one.fields) for one in self._front(finished)]
        pool = []
        for turn in range(_ANYWHERE + (_NEAR_THE_FRONT if best else 0)):
            kept = None
            if turn >= _ANYWHERE:
                kept = dict(best[rng.integers(len(best))])
                for label in rng.choice([*kept], min(len(kept), int(rng.integers(1, 3))), replace=False):
                    del kept[label]
            point, fields = self.space.sample(rng, kept)
            if (key := key_of(fields)) not in known:
                known.add(key)
                pool.append(_Candidate(point, fields, {}, exact=False))
        return self._within_limits(pool)

    def _front(self, finished: Sequence[Seen]) -> list[Seen]:
        if not finished:
            return []
        values = np.array([[one.curve[-1][1], *(one.costs[name] for name in self.costs)] for one in finished])
        return [one for one, is_on in zip(finished, non_dominated(values), strict=True) if is_on]

    def _within_limits(self, pool: list[_Candidate]) -> list[_Candidate]:
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
        key = key_of(fields)
        if key in self.priced:
            return self.priced[key]
        if key not in self.quick:
            self.quick[key] = self.at_once(self.config(fields))
        return self.quick[key]

    def _guess(self, pool: list[_Candidate]) -> None:
        """Guess slow costs from the prices that are known, by a process of their own."""
        missing = self.needed - (pool[0].costs.keys() if pool else self.needed)
        if not missing or not self.priced:
            return
        fields, prices = [dict(key) for key in self.priced], list(self.priced.values())
        for name in sorted(missing):
            process = self.guesses.given(self._rows(fields), np.log([price[name] for price in prices]))
            mean, _ = process.predict(self._rows([one.fields for one in pool], first=len(fields)))
            for one, guess in zip(pool, np.exp(mean), strict=True):
                one.costs = {**one.costs, name: float(guess)}

    def _rows(self, trials: Sequence[Fields], first: int = 0) -> np.ndarray:
        return rows_at(self.features(trials), 1.0, np.arange(first, first + len(trials)))

    def _is_affordable(self, candidate: _Candidate) -> bool:
        """Find a candidate's exact costs; whether it meets the limits with them."""
        if not candidate.exact:
            try:
                candidate.costs = self.price(self.config(candidate.fields))
            except UserError:
                return False
            candidate.exact = True
            self.priced[key_of(candidate.fields)] = candidate.costs
        return self._keeps_limits(candidate)

    def _keeps_limits(self, candidate: _Candidate) -> bool:
        return all(candidate.costs.get(name, 0) <= limit for name, limit in self.spec.limits.items())

    def _matrix(self, pool: list[_Candidate]) -> np.ndarray:
        return np.array([[one.costs[name] for name in self.costs] for one in pool])

    def _reference(self, fixed: Mapping[str, float], pool: list[_Candidate], taught: Sequence[Seen]) -> np.ndarray:
        worst = {self.quality: max(one.curve[-1][1] for one in taught)}
        worst |= dict(zip(self.costs, self._matrix(pool).max(axis=0), strict=True))
        return np.array([fixed.get(name, _BEYOND * worst[name]) for name in (self.quality, *self.costs)])


class Outlook:
    """What further trials are expected to be worth. Trials that are on their way count as if they ended where they are
    expected to, so that parallel workers do not look for the same."""

    def __init__(self, sampler: KnownCosts, trials: Sequence[Seen], reference: np.ndarray) -> None:
        self.sampler, self.reference = sampler, reference
        taught = [one for one in trials if one.curve]
        rows, values = self._validations(taught)
        self.process = sampler.curves.given(rows, values)
        front = [[one.curve[-1][1], *self._costs(one)] for one in taught if one.complete]
        pending = [one for one in trials if one.pending]
        if pending:
            ends = rows_at(sampler.features([one.fields for one in pending]), 1.0, [one.number for one in pending])
            believed, _ = self.process.predict(ends)
            front += [[math.exp(end), *self._costs(one)] for one, end in zip(pending, believed, strict=True)]
            self.process = self.process.and_given(ends, believed)
        self.front = np.array(front).reshape(-1, 1 + len(sampler.costs))

    def gains(self, trials: Sequence[Fields], costs: np.ndarray) -> np.ndarray:
        """Expected hypervolume improvement of trials that were not proposed yet."""
        mean, std = self.predict(trials)
        return expected_hypervolume_improvement(mean, std, costs, self.front, self.reference)

    def predict(self, trials: Sequence[Fields]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of new trials' log quality at full budget."""
        return self.process.predict(rows_at(self.sampler.features(trials), 1.0, np.full(len(trials), NEW)))

    def _costs(self, trial: Seen) -> list[float]:
        return [trial.costs[name] for name in self.sampler.costs]

    def _validations(self, trials: Sequence[Seen]) -> tuple[np.ndarray, np.ndarray]:
        features = self.sampler.features([one.fields for one in trials])
        budget = self.sampler.spec.budget.tokens
        found = [
            (place, tokens / budget, one.number, quality)
            for place, one in enumerate(trials)
            for tokens, quality in one.curve
        ]
        places, shares, numbers, qualities = map(np.array, zip(*found, strict=True))
        return rows_at(features[places], shares, numbers), np.log(qualities)
