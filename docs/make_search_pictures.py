"""The two pictures of how-it-searches.md: what the sampler models, and what it chooses.

    python docs/make_search_pictures.py

A search of a few trials is played on benchmarks/recorded_trials.csv, whose curves and costs were measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.search.propose.candidates import NewTrial
from recur_tune.search.propose.features import rows_at
from recur_tune.search.propose.known_costs import KnownCosts
from recur_tune.search.propose.observations import ObservedTrial
from recur_tune.search.record.front import non_dominated
from recur_tune.search.record.spec import SearchSpec

DOCS = Path(__file__).parent
TRIALS = 10
QUALITY, COST = "token_perplexity", "flops_per_token"
FIELDS = ["learning_rate", "recurrence", "window", "overlap", "bptt_windows", "l_ins", "width"]


def read() -> pd.DataFrame:
    """The recorded trials, a row for each validation."""
    table = pd.read_csv(DOCS.parent / "benchmarks" / "recorded_trials.csv")
    table["recurrence"] = table["recurrence"].replace("memory", "pooled")
    table["overlap"] = (table["overlap_of_window"] * table["window"] + 1e-9).astype(int)
    return table


def search_spec(table: pd.DataFrame) -> SearchSpec:
    """A search whose every trial was recorded."""

    def choices(name: str) -> list[Any]:
        return sorted(table[name].dropna().astype(float if name == "learning_rate" else int).unique().tolist())

    shares = sorted(table["overlap_of_window"].unique().tolist())
    space = {
        "base": "tiny",
        "recurrence": {"none": None, "pooled": {name: choices(name) for name in ("l_ins", "width")}},
        **{name: choices(name) for name in ("window", "bptt_windows", "learning_rate")},
        "overlap": {"from": shares[0], "to": shares[-1], "step": shares[1] - shares[0], "of": "window"},
    }
    budget = {"tokens": int(table["tokens"].max()), "trials": TRIALS}
    return parse(SearchSpec, {"space": space, "objectives": [QUALITY, COST], "budget": budget,
                              "sampler": {"name": "known-costs"}})  # fmt: skip


class Recorded:
    """Recorded trials by their fields."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.curves: dict[Any, list[tuple[int, float]]] = {}
        self.costs: dict[Any, dict[str, float]] = {}
        for row in table.to_dict("records"):
            key = self.key(row)
            self.curves.setdefault(key, []).append((row["tokens"], row[QUALITY]))
            self.costs[key] = {COST: row[COST]}

    @staticmethod
    def key(fields: dict[str, Any]) -> Any:
        """What a trial is looked up by; a plain model has no state."""
        own = fields["recurrence"] == "pooled"
        return tuple(None if name in ("l_ins", "width") and not own else fields[name] for name in FIELDS)

    def price(self, config: TrialConfig) -> dict[str, float]:
        """What it cost."""
        return self.costs[self.key(config.model_dump())]

    def seen(self, number: int, config: TrialConfig, params: dict[str, Any]) -> ObservedTrial:
        """How it went, to its end."""
        key = self.key(config.model_dump())
        return ObservedTrial(number, params, self.costs[key], tuple(self.curves[key]), complete=True)


def play(spec: SearchSpec, recorded: Recorded) -> tuple[KnownCosts, list[ObservedTrial], np.ndarray]:
    """The sampler after some trials, and the reference point."""
    sampler, trials = KnownCosts(spec, recorded.price, spec.trial_config), list[ObservedTrial]()
    worst = {
        QUALITY: max(c[0][1] for c in recorded.curves.values()),
        COST: max(c[COST] for c in recorded.costs.values()),
    }
    while len(trials) < TRIALS:
        chosen = sampler.choose(trials, worst)
        assert isinstance(chosen, NewTrial), "nothing is paused here"
        fields = spec.parsed_space.fields_of(chosen.point)
        trials.append(recorded.seen(len(trials), spec.trial_config(fields), fields))
    return sampler, trials, np.array([worst[QUALITY], worst[COST]])


def draw_model(sampler: KnownCosts, trials: list[ObservedTrial], reference: np.ndarray) -> None:
    """Curves of some trials; of one only the first validation is known, of another nothing."""
    begun, never = trials[-2], trials[-1]
    known = [*trials[:-2], ObservedTrial(begun.number, begun.fields, begun.costs, begun.curve[:1], pending=True)]
    expected = sampler.expected_gains(known, reference)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for one in trials[:-2]:
        axes.plot(*zip(*one.curve, strict=True), color="0.75", lw=1, marker=".", zorder=1)
    budget = sampler.spec.budget.tokens
    tokens = np.geomspace(begun.curve[0][0], budget, 40)
    process = sampler.curve_kernel.posterior(*expected.validations([one for one in known if one.curve]))
    for one, colour, what in ((never, "C1", "nothing is known of it yet"), (begun, "C0", "after its first validation")):
        rows = rows_at(np.repeat(sampler.features([one.fields]), len(tokens), axis=0), tokens / budget, one.number)
        mean, std = process.predict(rows)
        axes.fill_between(tokens, np.exp(mean - 2 * std), np.exp(mean + 2 * std), color=colour, alpha=0.2, lw=0)
        axes.plot(tokens, np.exp(mean), color=colour, label=what)
        axes.plot(*zip(*one.curve, strict=True), color=colour, ls="", marker="o", mfc="white")
    axes.plot(*begun.curve[0], color="C0", marker="o")
    axes.set(xscale="log", xlabel="tokens", ylabel="perplexity per token")
    axes.legend(frameon=False)
    save(figure, "what-is-modelled")


def draw_choice(sampler: KnownCosts, trials: list[ObservedTrial], reference: np.ndarray, recorded: Recorded) -> None:
    """All candidates at their exact costs, by what each is expected to add."""
    pool = [one.fields for one in sampler.pool(trials)]
    costs = np.array([[recorded.price(sampler.spec.trial_config(fields))[COST]] for fields in pool])
    expected = sampler.expected_gains(trials, reference)
    gains, (mean, std) = expected.gains(pool, costs), expected.predict(pool)
    best = int(np.argmax(gains))
    ended = np.array([[one.curve[-1][1], one.costs[COST]] for one in trials])
    front = ended[non_dominated(ended)]
    front = front[np.argsort(front[:, 1])]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    shown = axes.scatter(costs[:, 0], np.exp(mean), c=gains, cmap="viridis", s=14, zorder=2)
    axes.errorbar(
        costs[best, 0], np.exp(mean[best]), np.exp(mean[best]) * 2 * std[best], color="C3", marker="o", zorder=4
    )
    axes.annotate("chosen", (costs[best, 0], np.exp(mean[best])), (8, -12), textcoords="offset points", color="C3")
    axes.plot(ended[:, 1], ended[:, 0], "x", color="0.5", zorder=1)
    axes.step(front[:, 1], front[:, 0], where="post", color="black", zorder=3, label="the front so far")
    axes.set(xlabel="FLOPs per token, exact", ylabel="perplexity per token, expected at full budget")
    axes.legend(frameon=False)
    figure.colorbar(shown, label="expected hypervolume improvement")
    save(figure, "what-is-chosen")


def save(figure: Any, name: str) -> None:
    """As a small file beside the other pictures."""
    figure.savefig(DOCS / "pictures" / f"{name}.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    table = read()
    recorded = Recorded(table)
    sampler, trials, reference = play(search_spec(table), recorded)
    draw_model(sampler, trials, reference)
    draw_choice(sampler, trials, reference, recorded)
