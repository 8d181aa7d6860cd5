"""Costs with a closed form, as functions of a trial: they need neither a simulated step nor a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from recur_tune.common.known_shapes import KNOWN_SHAPES, PRESETS
from recur_tune.common.shape import FAMILIES, Shape, family_of, shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.report.reading import SearchView


def closed_form(search: SearchView, cost: str, configs: Sequence[TrialConfig]) -> Callable[[TrialConfig], float] | None:
    """A cost of these trials; None where it has to be simulated, a base's shape is not at hand, or a recurrence has no
    closed form."""
    from recur_tune.cost.flops import is_closed

    # With a tokenizer of its own a preset is another model.
    bases = {(config.base, config.tokenizer): config for config in configs}
    shapes = {key: shape for key, config in bases.items() if (shape := _shape(search, config))}
    # A plan by what memory is left, or a frozen body: a step has to be simulated.
    is_simulated = any(config.checkpointing == "auto" or config.trainable == "recurrence" for config in configs)
    price = _PRICES.get(cost)
    if price is None or len(shapes) < len(bases) or (cost == "training_flops_per_token" and is_simulated):
        return None
    if not all(map(is_closed, configs)):
        return None
    return lambda config: price(config, shapes[config.base, config.tokenizer])


def _shape(search: SearchView, config: TrialConfig) -> Shape | None:
    """The base's shape, from its folder or its name; None where neither tells."""
    place = search.directory.with_own_base(config).base
    found = {"model_type": "gpt2", **named} if (named := PRESETS.get(place) or KNOWN_SHAPES.get(place)) else {}
    with suppress(OSError, ValueError):
        found = json.loads((Path(place) / "config.json").read_text())
    with suppress(KeyError):  # of a configuration that does not say everything
        return shape_of(found) if family_of(found) in FAMILIES else None
    return None


def _flops(config: TrialConfig, shape: Shape) -> float:
    from recur_tune.cost.flops import flops_per_token

    return flops_per_token(config, shape)


def _training_flops(config: TrialConfig, shape: Shape) -> float:
    from recur_tune.bptt.plan import fixed_plan
    from recur_tune.cost.flops import training_flops_per_token

    assert config.checkpointing != "auto"
    return training_flops_per_token(config, shape, fixed_plan(config.checkpointing, config.bptt_windows))


def _inference_memory(config: TrialConfig, shape: Shape) -> float:
    from recur_tune.cost.inference_memory import closed_state_floats, inference_memory

    return inference_memory(config, shape, closed_state_floats(config, shape) or 0)


def _parameters(config: TrialConfig, shape: Shape) -> float:
    from recur_tune.cost.estimate import recurrence_parameters

    return shape.parameters + recurrence_parameters(config, shape)


_PRICES: dict[str, Callable[[TrialConfig, Shape], float]] = {
    "flops_per_token": _flops, "training_flops_per_token": _training_flops, "inference_memory": _inference_memory,
    "parameters": _parameters,
}  # fmt: skip
