"""SearchView: a search read once from its directory, for reports."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.units import format_count
from recur_tune.config.fields import own_values, train_command
from recur_tune.config.trial import TrialConfig
from recur_tune.report.figures.style import hover_lines
from recur_tune.report.history import Span, Volume, spans, volumes
from recur_tune.search.record.confirmation import quality_of
from recur_tune.search.record.directory import SearchDirectory
from recur_tune.search.record.front import front, has_values, search_hypervolume
from recur_tune.search.record.objectives import OBJECTIVES, Objective
from recur_tune.search.record.spec import SearchSpec
from recur_tune.search.record.state import SearchState, TrialRecord
from recur_tune.search.record.tracking_place import DELIVERED, Delivered, is_server, tracking_uri, without_password

_MOST_OF_A_REASON = 240  # characters; the log has the rest


@dataclass(frozen=True)
class SearchView:
    """A search's specification, trials and history."""

    directory: SearchDirectory
    spec: SearchSpec
    state: SearchState
    volumes: list[Volume]
    spans: list[Span]
    links: dict[int, str]  # pages in MLflow, by the trials' numbers

    @property
    def name(self) -> str:
        """The search's name."""
        return self.directory.name

    @cached_property
    def configs(self) -> dict[int, TrialConfig]:
        """Every trial and repetition with all its fields, chosen or fixed."""
        everything = {**self.state.trials, **self.state.repeats}
        return {number: self.spec.trial_config(one.params, one.seed) for number, one in everything.items()}

    @cached_property
    def quality(self) -> Objective:
        """The first quality that the search minimises."""
        return OBJECTIVES[quality_of(self.spec)]

    @cached_property
    def costs(self) -> list[Objective]:
        """The other objectives, the usual first."""
        return costs_of(self.spec)

    @cached_property
    def best(self) -> list[TrialRecord]:
        """The front, best quality first."""
        return front(self.state.trials.values(), self.spec.objectives)

    @cached_property
    def complete(self) -> list[TrialRecord]:
        """Every trial at full budget whose objectives are finite."""
        return [trial for trial in self.known if trial.state == "complete"]

    @cached_property
    def known(self) -> list[TrialRecord]:
        """Every trial whose objectives are finite, at any budget."""
        return [trial for trial in self.state.trials.values() if has_values(trial, self.spec.objectives)]

    @property
    def hypervolume(self) -> float | None:
        """The front's, None until the reference is known."""
        return search_hypervolume(self.state, self.spec.objectives)

    @property
    def tokens(self) -> int:
        """Tokens of all trials."""
        return sum(trial.tokens for trial in self.state.trials.values())

    def kind(self, trial: TrialRecord) -> str:
        """Its recurrence, chosen by the search or fixed by the space."""
        return self.configs[trial.number].recurrence

    def params(self, trial: TrialRecord) -> dict[str, Any]:
        """The chosen parameters that apply to a trial."""
        return own_values(self.kind(trial), trial.params)

    def command(self, trial: TrialRecord) -> str:
        """The command that trains a trial again."""
        config = self.directory.with_own_base(self.configs[trial.number])
        return train_command(config, Path("runs") / f"{self.name}-{trial.name}")

    def about(self, trial: TrialRecord) -> str:
        """A trial's hover text."""
        stood = f", {format_count(trial.tokens)} tokens"
        lines = hover_lines(trial, stood, self.spec.objectives, self.params(trial))
        reason = trial.reason[:_MOST_OF_A_REASON]
        return "<br>".join(lines + [f"<i>{html.escape(line)}</i>" for line in textwrap.wrap(reason, 60)])


def costs_of(spec: SearchSpec) -> list[Objective]:
    """The objectives beside the first quality: FLOPs first, then memory, then the rest in the search's order."""
    others = [OBJECTIVES[name] for name in spec.objectives if name != quality_of(spec)]
    usual = ["flops_per_token", "peak_memory"]
    return sorted(others, key=lambda one: (usual.index(one.name) if one.name in usual else 2, one.kind))


def read_search(directory: SearchDirectory) -> SearchView:
    """Read a search; one without a trial has nothing to show."""
    spec, (events, state) = directory.spec, directory.history()
    if not state.trials:
        raise UserError(
            f"name: {directory.name} has no trial yet, so there is nothing to show; "
            f"`recur-tune status {directory.name}` shows its progress."
        )
    growth = volumes(events, spec.objectives, state.reference)
    return SearchView(directory, spec, state, growth, spans(events), run_links(directory))


def run_links(directory: SearchDirectory) -> dict[int, str]:
    """The page of every trial's run on a tracking server; a local database has none."""
    uri = tracking_uri(directory)
    if not is_server(uri):
        return {}
    delivered, place = Delivered.read(directory.path / DELIVERED, uri), without_password(uri).rstrip("/")
    return {number: f"{place}/{delivered.page(run)}" for number, run in delivered.runs.items()}
