"""Shares: how much of an objective's variance over the space is due to each parameter.

A cost with a closed form is computed over the whole space, and its shares are exact. Quality and peak memory are
predicted by a model fitted to the trials. A field that a cost does not depend on has no share in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recur_tune.common.from_scratch import known_settings
from recur_tune.common.shape import FAMILIES, Shape, family_of, shape_of
from recur_tune.config.base_shape import trial_shape
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.descriptors import COSTS
from recur_tune.cost.flops import is_closed
from recur_tune.report.figures.style import usual_top
from recur_tune.report.grid import Grid
from recur_tune.report.ridge import Columns, best_ridge, fitted, left_out
from recur_tune.report.search_view import SearchView
from recur_tune.search.record.objectives import Objective
from recur_tune.search.record.state import TrialRecord, values_of

ENOUGH = {"quality": 20, "cost": 10}  # trials that a model needs
_LEAST = 0.2  # a model has to explain this share of the variance of left-out trials
_RESAMPLES = 30
_MOST_POINTS, _MODELLED_POINTS = 20_000, 100


@dataclass(frozen=True)
class Shares:
    """Each parameter's share in an objective, by the sampler's names; a missing one is 0."""

    mean: Mapping[str, float]
    error: Mapping[str, float]  # standard deviation; 0 where the share is exact
    source: str  # how they were computed, as part of a sentence

    @property
    def is_computed(self) -> bool:
        """Whether all shares are exact."""
        return not any(self.error.values())


def shares_of(search: SearchView, objective: Objective) -> Shares | str:
    """The shares in an objective; or why there are none, as part of a sentence."""
    if objective.kind == "cost":
        fields = COSTS[objective.name].fields
        grid = Grid.over(search.spec, fields, _MOST_POINTS)
        if price := _closed_form(search, objective.name, grid.configs):
            shares = grid.effects(np.array([price(config) for config in grid.configs]))
            exactly = "exactly, by its own function" if grid.is_whole else "by its own function at many points"
            return Shares(shares, dict.fromkeys(shares, 0.0), f"{objective.title} {exactly}")
        trials = [trial for trial in search.state.trials.values() if trial.costs.get(objective.name, 0) > 0]
    else:
        fields, trials = frozenset(search.spec.parsed_space.names), search.complete
    return _modelled(search, objective, fields, trials)


def _modelled(
    search: SearchView, objective: Objective, fields: frozenset[str], trials: list[TrialRecord]
) -> Shares | str:
    """Shares by a model, with their spread over bootstrap resamples of the trials."""
    enough = ENOUGH[objective.kind]
    reached = " at full budget" if objective.kind == "quality" else ""
    if len(trials) < enough:
        there = "is one" if len(trials) == 1 else f"are {len(trials) or 'none'}"
        return f"{objective.title} takes {enough} trials{reached}, and there {there}"
    values = np.log(values_of(trials, objective))
    if objective.kind == "quality":  # an outlier must not outweigh the rest
        values = np.minimum(values, np.log(usual_top(np.exp(values).tolist())))
    if not np.ptp(values):
        return f"{objective.title} is the same in all trials"
    grid = Grid.over(search.spec, fields, _MODELLED_POINTS)
    configs = [search.configs[trial.number] for trial in trials]
    columns = Columns.of_trials(configs, grid.configs, fields)
    rows, everywhere = columns.rows(configs), columns.rows(grid.configs)
    ridge = best_ridge(rows, values)
    told = 1 - float((left_out(rows, values, ridge) ** 2).mean() / values.var())
    if told < _LEAST:
        return f"{objective.title}, which a model of {len(trials)} trials{reached} does not explain"

    def shares(chosen: np.ndarray) -> dict[str, float]:
        return grid.effects(np.exp(fitted(rows[chosen], values[chosen], ridge)(everywhere)))

    rng, count = np.random.default_rng(0), len(trials)
    resamples = [shares(rng.integers(0, count, count)) for _ in range(_RESAMPLES)]
    mean = shares(np.arange(count))
    error = {label: float(np.std([one[label] for one in resamples])) for label in mean}
    explains = f"which explains {100 * told:.0f} % of trials left out of it"
    return Shares(mean, error, f"{objective.title} by a model of {count} trials{reached}, {explains}")


def _closed_form(
    search: SearchView, cost: str, configs: Sequence[TrialConfig]
) -> Callable[[TrialConfig], float] | None:
    """A cost as a function of these trials; None where it has to be simulated, where a base's shape is not known, or
    where a recurrence has no closed form."""
    bases = {_body(config): config for config in configs}
    shapes = {key: shape for key, config in bases.items() if (shape := _shape(search, config))}
    if len(shapes) < len(bases) or not all(map(is_closed, configs)):
        return None

    def price(config: TrialConfig) -> float | None:
        return COSTS[cost].closed_form(config, shapes[_body(config)])

    return None if any(price(config) is None for config in configs) else price  # type: ignore[return-value]


def _body(config: TrialConfig) -> Hashable:
    """Of two trials with the same, the bodies have one shape; a preset with another tokenizer is another model."""
    return (config.base, config.tokenizer) if config.task.body is None else config


def _shape(search: SearchView, config: TrialConfig) -> Shape | None:
    """The base's shape, from its folder or its name, or that of a body which is made; None where neither tells."""
    if config.task.body is not None:
        return trial_shape(config)
    place = search.directory.with_own_base(config).base
    found = known_settings(place, config.tokenizer) or {}
    with suppress(OSError, ValueError):
        found = json.loads((Path(place) / "config.json").read_text())
    with suppress(KeyError):  # an incomplete configuration
        return shape_of(found) if family_of(found) in FAMILIES else None
    return None
