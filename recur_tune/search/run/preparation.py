"""Preparation of the first trial: checks, bases, tokens, prices and the reference costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from recur_tune.common.errors import Refusals, UserError
from recur_tune.common.loading import load
from recur_tune.common.shape import Shape
from recur_tune.common.units import format_size
from recur_tune.config.base_shape import base_settings, base_shape, is_preset, trial_settings, trial_shape
from recur_tune.config.batch_share import check_share
from recur_tune.config.resources import Resources
from recur_tune.config.trial import TrialConfig
from recur_tune.cost import descriptors
from recur_tune.cost.priced_trial import PricedTrial
from recur_tune.data.corpora.document import Extent, Split
from recur_tune.search.record.decision import limits_in_words
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.objectives import COSTS
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.steps import check_rungs

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class Prices:
    """Computes trials' costs, by the names of the cost objectives, and how many workers share a trial's batch.

    Args:
        resources: What a trial may have; one worker by default.
        memory: Bytes for a worker's tensors; None where that is not known.
        limit: The search's limit of `peak_memory`, which further workers may help to keep.
    """

    def __init__(
        self, resources: Resources | None = None, memory: float | None = None, limit: float | None = None
    ) -> None:
        self.counts = resources.worker_counts if resources else (1,)
        self.shard = resources is not None and resources.shard != "none"
        self.memory, self.limit = memory or math.inf, limit or math.inf
        self._priced: dict[TrialConfig, tuple[PricedTrial, dict[str, float]]] = {}  # the costs as they are asked for

    def __call__(self, config: TrialConfig) -> dict[str, float]:
        """All costs of a trial, without training; its memory is simulated, which takes a second or more."""
        return self.only(config, descriptors.COSTS.keys())

    def only(self, config: TrialConfig, names: Container[str]) -> dict[str, float]:
        """The costs of these names. A frozen body's training FLOPs take a simulated step of their own, as long as the
        memory's."""
        trial, known = self._choose(config)
        found = {}
        for name, cost in descriptors.COSTS.items():
            if name in names:
                found[name] = known[name] = known[name] if name in known else float(cost.predict(trial))
        return found

    def workers(self, config: TrialConfig) -> int:
        """The fewest workers in whose memory the trial fits, of those that it may have."""
        return self.counts[0] if len(self.counts) == 1 else self._choose(config)[0].workers

    def _choose(self, config: TrialConfig) -> tuple[PricedTrial, dict[str, float]]:
        config = config.model_copy(update={"seed": 0})  # repeats cost the same
        if config not in self._priced:
            self._priced[config] = self._fitting(config)
        return self._priced[config]

    def _fitting(self, config: TrialConfig) -> tuple[PricedTrial, dict[str, float]]:
        """The trial with the fewest workers in whose memory it fits, and its memory."""
        counts = check_share(config.batch, self.counts)
        base, shape = _settings(config), _shape(config)
        config.check_base(shape)
        for count in counts:
            trial = PricedTrial(config, base, shape, count, self.shard and count > 1)
            peak = float(descriptors.COSTS["peak_memory"].predict(trial))
            if peak <= min(self.memory, self.limit):
                break
        if peak > self.memory:
            who = f"each of {count} workers" if count > 1 else "a worker"
            raise UserError(f"peak_memory: {who} would need {format_size(peak)}, and has {format_size(self.memory)}.")
        return trial, {"peak_memory": peak}

    def at_once(self, config: TrialConfig) -> dict[str, float]:
        """The costs of a trial that need no simulated step."""
        return _quick_costs(config)


@lru_cache(maxsize=2**15)  # the corners of a large space are looked at several times
def _quick_costs(config: TrialConfig) -> dict[str, float]:
    from recur_tune.cost.estimate import quick_costs

    return quick_costs(config, _shape(config), _settings(config))


_settings_of, _shape_of = cache(base_settings), cache(base_shape)


def _settings(config: TrialConfig) -> PretrainedConfig:
    """Of a trial's body; a base's are read once."""
    made = config.task.body is not None
    return trial_settings(config) if made else _settings_of(config.base, config.tokenizer)


def _shape(config: TrialConfig) -> Shape:
    return trial_shape(config) if config.task.body is not None else _shape_of(config.base, config.tokenizer)


def check_shapes(spec: SearchSpec) -> None:
    """Refuse a space of which a corner does not fit its base or the first rung, or a corpus without text to train on
    and to validate with."""
    load("recur_tune.cost.estimate")  # torch, transformers and the models: shapes need them, and prices will
    refusals, unusable = Refusals(), set[tuple[str, str | None]]()
    for check in (corpus_extents, check_rungs):
        with refusals.collecting():
            check(spec)
    for config in spec.corners:
        base = config.base, config.tokenizer
        if base in unusable:  # it may take the Hub to refuse it
            continue
        if config.task.body is None:
            unusable.add(base)
        with refusals.collecting(), _with_paths(spec):
            shape = _shape(config)
            unusable.discard(base)
            config.check_base(shape)
        with refusals.collecting():
            check_share(config.batch, spec.resources.worker_counts, "space.batch")
    if refusals:
        raise UserError(str(refusals))


@contextmanager
def _with_paths(spec: SearchSpec) -> Iterator[None]:
    """Refusals of a trial in the block name its fields as `--set` takes them."""
    try:
        yield
    except UserError as refusal:
        raise type(refusal)(spec.parsed_space.with_paths(refusal)) from None


def check_limits(spec: SearchSpec) -> None:
    """Refuse limits that nothing in the space is within, as far as its corners and random points tell."""
    if not spec.limits:
        return
    prices = Prices(spec.resources, limit=spec.limits.get("peak_memory"))
    points = [*spec.corners, *_random_configs(spec)]
    costs = {config: quick for config in points if (quick := _or_none(prices.at_once, config)) is not None}
    if not costs:
        return
    least = {name: min(quick[name] for quick in costs.values()) for name in spec.limits if name in _any(costs)}
    within = [config for config, quick in costs.items() if _keeps(spec.limits, quick)]
    simulated = spec.limits.keys() - least.keys()
    if within and not simulated:
        return
    found = []
    for config in _smallest(within, costs):
        if (limited := _or_none(lambda one: prices.only(one, spec.limits), config)) is not None:
            if _keeps(spec.limits, limited):
                return
            found.append(limited)
    least |= {name: min(limited[name] for limited in found) for name in simulated if found}
    short = {name: value for name, value in least.items() if value > spec.limits[name]}
    told = f"the least found is {limits_in_words(short)}" if short else "each alone can be kept; allow more of one"
    raise UserError(f"limits: nothing in the space is within {limits_in_words(spec.limits)}; {told}.")


def _keeps(limits: Mapping[str, float], costs: Mapping[str, float]) -> bool:
    return all(costs[name] <= limit for name, limit in limits.items() if name in costs)


def _any(costs: Mapping[TrialConfig, dict[str, float]]) -> dict[str, float]:
    return next(iter(costs.values()), {})


def _or_none(price: Callable[[TrialConfig], dict[str, float]], config: TrialConfig) -> dict[str, float] | None:
    """The costs; None where the trial cannot be trained at all."""
    try:
        return price(config)
    except UserError:
        return None


def _random_configs(spec: SearchSpec) -> Iterator[TrialConfig]:
    """Trials from inside the space: costs need not have their extremes in the corners."""
    rng = np.random.default_rng(0)
    for _ in range(_RANDOM_POINTS):
        _, fields = spec.parsed_space.sample(rng)
        try:
            yield spec.trial_config(fields)
        except UserError:
            continue


def _smallest(configs: list[TrialConfig], costs: Mapping[TrialConfig, dict[str, float]]) -> list[TrialConfig]:
    """A few of the smallest configurations: by the tokens whose activations are kept, and by each known cost."""
    orders: list[Callable[[TrialConfig], float]] = [_kept_tokens]
    orders += [lambda config, name=name: costs[config][name] for name in _any(costs)]  # type: ignore[misc]
    chosen = [config for order in orders for config in sorted(configs, key=order)[:_SMALLEST]]
    return list(dict.fromkeys(chosen))


def _kept_tokens(config: TrialConfig) -> int:
    return config.window * config.batch * (1 if config.checkpointing == "all" else config.bptt_windows)


_RANDOM_POINTS, _SMALLEST = 100, 3


def corpus_extents(spec: SearchSpec) -> dict[Split, Extent]:
    """The extents of the splits that a search reads; a corpus that cannot be read is refused."""
    from recur_tune.data.corpora.registry import check_corpus

    with _with_paths(spec):
        return check_corpus(spec.corners[0].corpus)  # the same in all of them


def missing_bases(directory: SearchDirectory, spec: SearchSpec) -> list[TrialConfig]:
    """A trial for each preset base of which the search has no pretrained copy yet."""
    configs = _distinct(spec, "base", "corpus", "tokenizer")
    return [config for config in configs if is_preset(config.base) and not directory.own_base(config).is_dir()]


def tokenise(
    directory: SearchDirectory, spec: SearchSpec, splits: Iterable[str], progress: Callable[[str, int], None]
) -> None:
    """Tokenise the corpus for every base, so that no worker waits for it."""
    from recur_tune.data.tokenizers import load_tokenizer
    from recur_tune.models.pretrained import base_tokenizer

    for config in _distinct(spec, "base", "corpus", "tokenizer"):
        if config.task.body is not None:
            continue  # numbers, which have no tokens
        named = "base" if config.tokenizer is None else "tokenizer"
        name = base_tokenizer(directory.with_own_base(config).base, config.tokenizer)
        tokenizer, task = load_tokenizer(name, field=named), config.task.build(config.task_spec)
        for split in splits:
            title = f"{config.corpus} {split}"
            task.prepare(config.corpus, split, tokenizer, lambda tokens, title=title: progress(title, tokens))


def worst_costs(
    spec: SearchSpec, prices: Prices, own_base: Callable[[TrialConfig], TrialConfig], simulated: int = 4
) -> dict[str, float]:
    """The reference costs of the hypervolume, by objective: what the search says, a limit, or the most expensive corner
    of the space. Of costs that take a simulated step, so many corners are tried, the largest first."""
    corners = [own_base(config) for config in spec.corners]
    worst = dict(spec.reference)
    for name in spec.objectives:
        if name not in COSTS or name in worst:
            continue
        if name in spec.limits:
            worst[name] = spec.limits[name]
        elif name in prices.at_once(corners[0]):
            worst[name] = _BEYOND * max(prices.at_once(config)[name] for config in corners)
        else:
            largest = _largest(corners, prices, simulated)
            worst[name] = _BEYOND * max(prices.only(config, {name})[name] for config in largest)
    return worst


_BEYOND = 1.01  # so that the most expensive configuration itself can count


def _largest(configs: list[TrialConfig], prices: Prices, at_most: int) -> list[TrialConfig]:
    """The largest configurations; to simulate the memory of all of them would take minutes."""

    def size(config: TrialConfig) -> tuple[float, ...]:
        # Of a whole window, whatever the overlap.
        window_flops = round(prices.at_once(config)["flops_per_token"] * config.windowing.stride)
        return _kept_tokens(config), window_flops, config.bptt_windows

    distinct = {size(config): config for config in configs}
    return [distinct[key] for key in sorted(distinct, reverse=True)[:at_most]]


def _distinct(spec: SearchSpec, *fields: str) -> list[TrialConfig]:
    return list({tuple(getattr(config, field) for field in fields): config for config in spec.corners}.values())
