"""Time that the sampler `known-costs` takes to propose a trial, in CPU seconds.

    python benchmarks/suggestion_time.py [--trials 300] [--known 0] [--workers 1]
    python benchmarks/suggestion_time.py --ended 2000 [--running 7] [--earlier 0]

The first is of a whole search, the second of suggestions late in one.

The quickstart's space with its real costs; peak memory takes a simulated step. Qualities are synthetic, because nothing
is trained. Every trial ends at its full budget with three validations. The first `--known` trials are drawn at random
and not timed; with several workers, all but one of the last trials are still on their way, with a first validation.

Late in a search, the space is the made-up one of the sampler's tests: FLOPs are known at once, memory is predicted.
Trials are drawn at random and end with three validations, so that their costs are all known. Those that run have a
first validation. Before the next suggestion one of them ends and the trial that was suggested begins. `--earlier` is
the number of trials of an earlier search from which the search learns. The first suggestion, in which hyperparameters
are fitted, is told beside the mean.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import time
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # seconds of one core; before NumPy is imported

import numpy as np

from recur_tune.common.parsing import parse, read_yaml
from recur_tune.common.shipped import find_space
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.candidates import NewTrial
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.propose.observations import ObservedTrial
from recur_tune.search.record.knowledge import EarlierCurve, EarlierSearch
from recur_tune.search.record.objectives import COSTS
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.run.preparation import Prices, worst_costs
from tests.search.propose.test_known_costs import OBJECTIVES, REFERENCE, SPACE, SlowPrice, quality

SHARES = (0.25, 0.5, 1.0)  # of the budget, at which trials late in a search were validated
BANDS = (0, 10, 50, 100, 200, 300, 500, 1000, 2000, 5000)


@dataclass
class Timed:
    """Prices that know how long they took."""

    prices: Prices
    count: int = 0
    seconds: float = 0.0

    def __call__(self, config: TrialConfig) -> dict[str, float]:
        return self.only(config, COSTS)

    def only(self, config: TrialConfig, names: Container[str]) -> dict[str, float]:
        began = time.process_time()
        costs = self.prices.only(config, names)
        self.count, self.seconds = self.count + 1, self.seconds + time.process_time() - began
        return costs

    def at_once(self, config: TrialConfig) -> dict[str, float]:
        return self.prices.at_once(config)


def made_up_quality(config: TrialConfig, rng: np.random.Generator) -> float:
    """One learning rate is best, overlap helps and so does a state."""
    rate = abs(math.log(config.learning_rate / 3e-4))
    return float(12 * math.exp(0.1 * rate - 0.2 * config.overlap / config.window + rng.normal(0, 0.01)))


def suggestions(trials: int, known: int, workers: int) -> list[tuple[float, float, int]]:
    """Of each suggestion: seconds, those of them that went into prices, and simulated steps."""
    spec = parse(SearchSpec, read_yaml(find_space("quickstart")))
    price, rng = Timed(Prices()), np.random.default_rng(0)
    sampler = KnownCosts(spec, price, spec.trial_config)
    reference = {"token_perplexity": 16.0, **worst_costs(spec, Prices(), lambda config: config)}
    fields: dict[str, Any] = spec.parsed_space.sample(rng)[1]
    told, found = [], []
    for number in range(trials):
        config = spec.trial_config(fields)
        end = made_up_quality(config, rng)
        curve = tuple((tokens, end * (spec.budget.tokens / tokens) ** 0.1) for tokens in spec.budget.rung_tokens)
        told.append(ObservedTrial(number, fields, price.prices(config), curve, complete=True))
        if number < known:
            fields = spec.parsed_space.sample(rng)[1]
            continue
        ended = len(told) - workers + 1
        running = [replace(one, curve=one.curve[:1], complete=False, pending=True) for one in told[ended:]]
        price.count, price.seconds, began = 0, 0.0, time.process_time()
        chosen = sampler.choose([*told[:ended], *running], reference)
        assert isinstance(chosen, NewTrial)
        found.append((time.process_time() - began, price.seconds, price.count))
        fields = spec.parsed_space.fields_of(chosen.point)
    return found


def late_suggestions(ended: int, running: int, earlier: int, count: int) -> list[float]:
    """Seconds of each suggestion late in a search."""
    budget, sampler = {"tokens": 100, "trials": 2 * ended + 1}, {"name": "known-costs"}
    spec = parse(SearchSpec, {"space": SPACE, "objectives": OBJECTIVES, "budget": budget, "sampler": sampler})
    rng, price = np.random.default_rng(0), SlowPrice()

    def curve(fields: dict[str, Any], factor: float = 1.0) -> tuple[tuple[float, float], ...]:
        luck = math.exp(rng.normal(0, 0.01))
        return tuple((share, luck * factor * quality(fields, share)) for share in SHARES)

    def drawn() -> dict[str, Any]:
        return spec.parsed_space.sample(rng)[1]

    curves = tuple(EarlierCurve(fields, curve(fields, 1.5)) for fields in (drawn() for _ in range(earlier)))
    chooser = KnownCosts(spec, price, spec.trial_config, [EarlierSearch("earlier", curves)] if earlier else [])

    def told(fields: dict[str, Any], number: int) -> ObservedTrial:
        seen = tuple((int(100 * share), value) for share, value in curve(fields))
        return ObservedTrial(number, fields, price(spec.trial_config(fields)), seen, complete=True)

    trials, found = [told(drawn(), number) for number in range(ended + running)], []
    for _ in range(count + 1):
        now = len(trials) - running
        begun = [replace(one, curve=one.curve[:1], complete=False, pending=True) for one in trials[now:]]
        began = time.process_time()
        chosen = chooser.choose([*trials[:now], *begun], REFERENCE)
        found.append(time.process_time() - began)
        assert isinstance(chosen, NewTrial)
        trials.append(told(spec.parsed_space.fields_of(chosen.point), len(trials)))
    return found


def print_late(ended: int, running: int, earlier: int, count: int) -> None:
    """A table of the time of late suggestions. The first fits hyperparameters, which is due at a tenth more trials."""
    first, *later = late_suggestions(ended, running, earlier, count)
    print("\n| ended | running | of an earlier search | first suggestion | later ones, mean | longest |")
    print("|---|---|---|---|---|---|")
    times = " | ".join(f"{one:.3f}" for one in (first, statistics.mean(later), max(later)))
    print(f"| {ended} | {running} | {earlier} | {times} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--known", type=int, default=0, help="trials before the first suggestion")
    parser.add_argument("--workers", type=int, default=1, help="trials at a time")
    parser.add_argument("--ended", type=int, help="trials that have ended: time suggestions late in a search")
    parser.add_argument("--running", type=int, default=7, help="beside them")
    parser.add_argument("--earlier", type=int, default=0, help="trials of an earlier search")
    parser.add_argument("--suggestions", type=int, default=6, help="of which late in a search the mean is told")
    given = parser.parse_args()
    if given.ended is not None:
        print_late(given.ended, given.running, given.earlier, given.suggestions)
        return
    if not (0 <= given.known < given.trials and 1 <= given.workers <= given.known + 1):
        parser.error("--known is smaller than --trials, and --workers at most one more than it.")
    trials, found = given.trials, suggestions(given.trials, given.known, given.workers)
    print("\n| trials | seconds each | of them thinking | simulated steps each |\n|---|---|---|---|")
    for low, high in itertools.pairwise(BANDS):
        if part := found[max(0, low - given.known) : max(0, high - given.known)]:
            seconds, pricing, simulated = (statistics.mean(column) for column in zip(*part, strict=True))
            name = f"{max(low, given.known) + 1} to {min(high, trials)}"
            print(f"| {name} | {seconds:.2f} | {seconds - pricing:.2f} | {simulated:.2f} |")
    print(f"| all | {statistics.mean(one[0] for one in found):.2f} | | |")


if __name__ == "__main__":
    main()
