"""Baselines of a state: its base without training and without a recurrence, at the same inference memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.config.base_shape import base_settings, base_shape
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.estimate import quick_costs
from recur_tune.tasks.registry import fields_of

_SLIDING = {  # keys and values of the last positions, in one softmax with the window's own
    "recurrence": "cache", "cache_layer": "all", "cache_join": "softmax", "cache_keep": "recent", "cache_sinks": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Baseline:
    """A way to read a base as it is.

    Attributes:
        name: In tables.
        config: Its windows, and where it has one its cache.
        costs: Those that need no simulated step.
    """

    name: str
    config: TrialConfig
    costs: dict[str, float]


def baselines_of(config: TrialConfig) -> list[Baseline]:
    """Plain windows; with half of each read again; and, with as many rows as the trial's state has bytes for, a
    sliding key-value cache, a window longer by these rows, and that with these rows read again. What does not fit into
    the base's positions is left out."""
    rows = _rows(config)
    window, longer = config.window, config.window + rows
    ways: list[tuple[str, dict[str, Any]]] = [
        ("plain windows", {"overlap": 0}),
        ("plain, half read again", {"overlap": window // 2}),
    ]
    if rows:
        ways += [
            (f"sliding cache of {rows:,} rows", {**_SLIDING, "cache_rows": rows}),
            (f"plain windows of {longer:,}", {"window": longer, "overlap": 0}),
            (f"plain windows of {longer:,}, {rows:,} read again", {"window": longer, "overlap": rows}),
        ]
    found = []
    base = base_settings(config.base, config.tokenizer)
    shape = base_shape(config.base, config.tokenizer)
    for name, fields in ways:
        try:
            one = parse(TrialConfig, {**_plain(config), **fields})
            one.check_base(shape)
        except UserError:
            continue
        found.append(Baseline(name, one, quick_costs(one, shape, base)))
    return found


def _plain(config: TrialConfig) -> dict[str, Any]:
    """What all baselines share with the trial; its task's fields too, since they decide what a window holds."""
    shared = {"base", "corpus", "tokenizer", "window", "overlap", "precision", "seed", *fields_of(config.corpus)}
    return {name: getattr(config, name) for name in shared} | {"recurrence": "none"}


def _rows(config: TrialConfig) -> int:
    """Positions whose keys and values have as many bytes as the trial's state; 0 for an encoder, which holds none."""
    if config.mechanism is None:
        return 0
    base, shape = base_settings(config.base, config.tokenizer), base_shape(config.base, config.tokenizer)
    plain = parse(TrialConfig, _plain(config))
    own, without = (quick_costs(one, shape, base)["inference_memory"] for one in (config, plain))
    if not without:
        return 0
    return max(1, round((own - without) * config.window / without))
