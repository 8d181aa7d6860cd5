"""Costs with a closed form as functions of a trial, without a simulated step or a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from recur_tune.common.known_shapes import KNOWN_SHAPES, PRESETS
from recur_tune.common.shape import FAMILIES, Shape, family_of, shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.descriptors import COSTS
from recur_tune.cost.flops import is_closed
from recur_tune.report.search_view import SearchView


def closed_form(search: SearchView, cost: str, configs: Sequence[TrialConfig]) -> Callable[[TrialConfig], float] | None:
    """A cost as a function of these trials; None where it has to be simulated, where a base's shape is not known, or
    where a recurrence has no closed form."""
    # A preset with another tokenizer is another model.
    bases = {(config.base, config.tokenizer): config for config in configs}
    shapes = {key: shape for key, config in bases.items() if (shape := _shape(search, config))}
    if len(shapes) < len(bases) or not all(map(is_closed, configs)):
        return None

    def price(config: TrialConfig) -> float | None:
        return COSTS[cost].closed_form(config, shapes[config.base, config.tokenizer])

    return None if any(price(config) is None for config in configs) else price  # type: ignore[return-value]


def _shape(search: SearchView, config: TrialConfig) -> Shape | None:
    """The base's shape, from its folder or its name; None where neither tells."""
    place = search.directory.with_own_base(config).base
    found = {"model_type": "gpt2", **named} if (named := PRESETS.get(place) or KNOWN_SHAPES.get(place)) else {}
    with suppress(OSError, ValueError):
        found = json.loads((Path(place) / "config.json").read_text())
    with suppress(KeyError):  # an incomplete configuration
        return shape_of(found) if family_of(found) in FAMILIES else None
    return None
