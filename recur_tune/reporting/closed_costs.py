"""Costs with a closed form, as functions of a trial: they need neither a simulated step nor a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recur_tune.reporting.reading import Reading
from recur_tune.shapes import KNOWN_SHAPES, PRESETS
from recur_tune.spec import TrialConfig

_GPT2 = {"n_inner": None, "vocab_size": 50257, "n_positions": 1024}  # where a shape says nothing else


def closed_form(search: Reading, cost: str, configs: Sequence[TrialConfig]) -> Callable[[TrialConfig], float] | None:
    """A cost of these trials; None where it has to be simulated, or a base's shape is not at hand."""
    # With a tokenizer of its own a preset is another model.
    bases = {(config.base, config.tokenizer): config for config in configs}
    shapes = {key: _shape(search, config) for key, config in bases.items()}
    is_planned = any(config.checkpointing == "auto" for config in configs)  # by what memory is left
    price = _PRICES.get(cost)
    if price is None or None in shapes.values() or (cost == "training_flops_per_token" and is_planned):
        return None
    return lambda config: price(config, shapes[config.base, config.tokenizer])


def _shape(search: Reading, config: TrialConfig) -> Any:
    """As much of the base's shape as a closed form asks for, from its folder or its name; None where neither tells."""
    place = search.directory.with_own_base(config).base
    found: Any = PRESETS.get(place) or KNOWN_SHAPES.get(place)
    with suppress(OSError, ValueError):
        found = json.loads((Path(place) / "config.json").read_text())
    return SimpleNamespace(**_GPT2 | found) if found else None


def _flops(config: TrialConfig, shape: Any) -> float:
    from recur_tune.cost.flops import flops_per_token

    return flops_per_token(config, shape)


def _training_flops(config: TrialConfig, shape: Any) -> float:
    from recur_tune.cost.flops import training_flops_per_token
    from recur_tune.training.bptt import fixed_plan

    assert config.checkpointing != "auto"
    return training_flops_per_token(config, shape, fixed_plan(config.checkpointing, config.windows))


def _parameters(config: TrialConfig, shape: Any) -> float:
    import torch

    from recur_tune.cost.estimate import body_parameters, recurrence_parameters

    with torch.device("meta"):  # counts, and fills nothing
        return body_parameters(shape) + recurrence_parameters(config, shape)


_PRICES = {"flops_per_token": _flops, "training_flops_per_token": _training_flops, "parameters": _parameters}
