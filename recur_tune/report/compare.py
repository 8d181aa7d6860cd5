"""Comparison of several searches, in the objectives that mean the same in all of them."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from recur_tune.common.errors import UserError
from recur_tune.common.units import format_count, format_duration
from recur_tune.config.trial import TrialConfig
from recur_tune.report.figures.front import Front, Group
from recur_tune.report.figures.style import COLOURS, SYMBOLS, Figure, MarkerStyle, Panel, layout, listed
from recur_tune.report.page import cell, page, section, table
from recur_tune.report.search_view import SearchView, read_search
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import front, has_values, hypervolume
from recur_tune.search.record.objectives import OBJECTIVES, Objective
from recur_tune.search.record.state import TrialRecord, values_of

_PER_TOKEN = ("token_perplexity", "loss")  # not comparable across tokenizers
_HEIGHT = 560
_LONGEST_FILE_NAME = 120


@dataclass(frozen=True)
class Comparison:
    """Searches, and the objectives in which they can be compared."""

    searches: list[SearchView]
    quality: Objective
    costs: list[Objective]
    remarks: list[str]  # what cannot be compared, or only with care

    @property
    def title(self) -> str:
        """The names of all searches."""
        return listed([search.name for search in self.searches])

    @property
    def objectives(self) -> list[str]:
        """The names of quality and costs."""
        return [self.quality.name, *(cost.name for cost in self.costs)]

    @cached_property
    def fronts(self) -> list[list[TrialRecord]]:
        """Each search's front in these objectives."""
        return [front(search.state.trials.values(), self.objectives) for search in self.searches]

    @cached_property
    def reference(self) -> list[float]:
        """Common reference point: the worst of the searches' own, or 5 % beyond the worst trial of any front."""
        found = []
        for name in self.objectives:
            own = [search.state.reference.get(name, math.nan) for search in self.searches]
            on_fronts = [value for best in self.fronts for value in values_of(best, OBJECTIVES[name])]
            found.append(max(own) if np.isfinite(own).all() else 1.05 * max(on_fronts))
        return found

    def volume(self, best: Sequence[TrialRecord]) -> float:
        """A front's hypervolume against the common reference."""
        return hypervolume(np.array([trial.values(self.objectives) for trial in best], dtype=float), self.reference)

    @property
    def columns(self) -> list[str]:
        """The titles of the table."""
        return [
            "search", "corpus", "trials", "on the front", f"best {self.quality.title}", "hypervolume", "tokens", "time",
        ]  # fmt: skip

    @property
    def rows(self) -> list[list[str]]:
        """The table: a row for each search."""
        return [
            [
                search.name, _corpus(search), str(len(search.state.trials)), str(len(best)),
                f"{self.quality.format(values_of(best, self.quality)[0])} ({best[0].name})", f"{self.volume(best):.4f}",
                format_count(search.tokens), format_duration(search.state.active_seconds),
            ]
            for search, best in zip(self.searches, self.fronts, strict=True)
        ]  # fmt: skip

    @cached_property
    def panel(self) -> Panel:
        """All fronts in one figure."""
        cost = self.costs[0]
        complete = [_complete(search, self.objectives) for search in self.searches]
        drawn = Front(cost, self.quality, None, [self._group(at, trials) for at, trials in enumerate(complete)])
        traces = [trace for at in range(len(complete)) for trace in self._traces(at, drawn)]
        traces.sort(key=lambda trace: "text" in trace)  # no search's beaten marks over another's front
        worst = ", ".join(
            f"{OBJECTIVES[name].title} {OBJECTIVES[name].format(value)}"
            for name, value in zip(self.objectives, self.reference, strict=True)
        )
        caption = (
            "Lower and further left is better: a shape and colour for each search, a black edge on its "
            f"own front. Common reference of the hypervolumes: {worst}."
        )
        title = f"{self.quality.title.capitalize()} against {cost.title}"
        figure = {"data": traces, "layout": layout(_HEIGHT, **drawn.axes())}
        return Panel("fronts", title, caption, figure, _HEIGHT)

    def _group(self, at: int, complete: Sequence[TrialRecord]) -> Group:
        """A search's trials in its own shape and colour."""
        colour = COLOURS[(at + at // len(SYMBOLS)) % len(COLOURS)]
        on_front = {trial.number for trial in self.fronts[at]}
        beaten = [trial for trial in complete if trial.number not in on_front]
        look = MarkerStyle(self.searches[at].name, SYMBOLS[at % len(SYMBOLS)], "solid", colour)
        return Group(look, self.fronts[at], beaten)

    def _traces(self, at: int, drawn: Front) -> list[Figure]:
        """A search's traces under its name; on a page its trials have keys of their own."""
        traces = replace(drawn, groups=[drawn.groups[at]]).traces()
        for trace in traces:
            trace.update(name=self.searches[at].name, showlegend="text" in trace)
            if "customdata" in trace:
                trace["customdata"] = [f"{at}:{number}" for number in trace["customdata"]]
        return traces


def comparison(results: Path, names: Sequence[str]) -> Comparison:
    """Read searches and find the objectives that they share; refuse where there is none."""
    if len(names) < 2:
        raise UserError("names: it takes two searches to compare; `recur-tune status` lists them.")
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise UserError(f"names: {twice[0]} is given twice; name each search once.")
    searches = [read_search(SearchDirectory.open(results, name)) for name in names]
    for search in searches:
        if not search.complete:
            raise UserError(f"names: {search.name} has no trial at full budget with values yet, so it has no front.")
    quality, remarks = _quality(searches)
    shared = [cost for cost in searches[0].costs if _all_minimise(searches, cost.name) and cost.kind == "cost"]
    return Comparison(searches, quality, shared or [OBJECTIVES["flops_per_token"]], [*remarks, *_cautions(searches)])


def compare_page(made: Comparison) -> str:
    """The comparison as a page."""
    rows = [[cell(html.escape(text), "left" if at < 2 else "") for at, text in enumerate(row)] for row in made.rows]
    known = {
        f"{at}:{number}": {"text": f"{html.escape(search.name)}: {search.about(trial)}"}
        | ({"url": search.links[number]} if number in search.links else {})
        for at, search in enumerate(made.searches)
        for number, trial in search.state.trials.items()
    }
    body = [
        f"<h1>{html.escape(made.title)}</h1>",
        "<p class=about>What each search found, measured alike.</p>",
        *(f"<p class=note>{html.escape(remark)}</p>" for remark in made.remarks),
        table(made.columns, rows, left=[1]),
        f'<div class="panels below">{section(made.panel)}</div>',
    ]
    return page(f"{made.title}: compared", body, [made.panel], known)


def default_file(names: Sequence[str]) -> str:
    """Default file name of a comparison."""
    joined = f"compare-{'-'.join(names)}"
    return f"{joined if len(joined) <= _LONGEST_FILE_NAME else f'compare-{names[0]}-and-{len(names) - 1}-more'}.html"


def _quality(searches: Sequence[SearchView]) -> tuple[Objective, list[str]]:
    """A quality that means the same in all searches, and a remark where it is not their own."""
    first = [name for name in searches[0].spec.objectives if OBJECTIVES[name].kind == "quality"]
    shared = [name for name in first if _all_minimise(searches, name)]
    why = ""
    if len({_corpus(search) for search in searches}) > 1:
        reads = ", ".join(f"{search.name} reads {_corpus(search)}" for search in searches)
        why, shared = f"perplexities of different texts cannot be compared, and even bits only with care ({reads})", []
    elif len({_tokenizers(search) for search in searches}) > 1:
        kept = [name for name in shared if name not in _PER_TOKEN]
        if kept != shared:
            why, shared = "what is counted per token cannot be compared where tokenizers may differ", kept
    if not shared and not why:
        each = ", ".join(f"{search.name}: {search.quality.title}" for search in searches)
        why = f"the searches do not minimise the same quality ({each})"
    for name in [*shared, "bits_per_byte"]:
        if all(_complete(search, [name]) for search in searches):
            instead = f"{why[:1].upper()}{why[1:]}; this page compares {OBJECTIVES[name].title} instead."
            return OBJECTIVES[name], [instead] if why else []
    raise UserError(f"names: {why or 'their values are no numbers'}; bits_per_byte could be, but not all have it.")


def _cautions(searches: Sequence[SearchView]) -> list[str]:
    """Differences between the searches that a reader should know."""
    found = []
    budgets = {search.name: search.spec.budget.tokens for search in searches}
    if len(set(budgets.values())) > 1:
        each = ", ".join(f"{format_count(tokens)} in {name}" for name, tokens in budgets.items())
        found.append(
            f"A trial's budget is not the same in all of them ({each} tokens), which alone changes the quality."
        )
    sizes = {search.name: _first_config(search).validation_size for search in searches}
    if len(set(sizes.values())) > 1:
        each = ", ".join(f"{format_count(size)} tokens in {name}" for name, size in sizes.items())
        found.append(f"They were validated on different amounts of text ({each}), so small differences are noise.")
    return found


def _complete(search: SearchView, objectives: Sequence[str]) -> list[TrialRecord]:
    trials = search.state.trials.values()
    return [trial for trial in trials if trial.state == "complete" and has_values(trial, objectives)]


def _all_minimise(searches: Sequence[SearchView], objective: str) -> bool:
    return all(objective in search.spec.objectives for search in searches)


def _first_config(search: SearchView) -> TrialConfig:
    return next(iter(search.configs.values()))


def _corpus(search: SearchView) -> str:
    return _first_config(search).corpus  # a search has one


def _tokenizers(search: SearchView) -> frozenset[str]:
    """The tokenizers of its trials; one that is not named comes with its base."""
    return frozenset(config.tokenizer or f"that of {config.base}" for config in search.configs.values())
