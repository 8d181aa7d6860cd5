"""The spec of a search: space, objectives, limits, budget, resources and sampler."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from recur_tune.common.deprecated import with_current_names
from recur_tune.common.errors import Refusals, UserError
from recur_tune.common.parsing import nearest
from recur_tune.common.units import exact_size, parse_duration
from recur_tune.config.resources import Resources
from recur_tune.config.trial import RENAMED, Count, TrialConfig
from recur_tune.recurrences.registry import canonical
from recur_tune.search.record.objectives import COSTS, OBJECTIVES
from recur_tune.search.record.space import RECURRENCE, Space, same_parameter
from recur_tune.search.record.space_parsing import read_space
from recur_tune.tasks.registry import task_of

Duration = Annotated[PositiveFloat, BeforeValidator(parse_duration)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Budget(_Section):
    """The budget of a trial and of the search."""

    tokens: Count = Field(20_000_000, description="tokens that a trial trains on when nothing stops it")
    trials: PositiveInt | None = Field(None, description="trials to train; those over a limit do not count")
    wall_clock: Duration | None = Field(None, description="time for the whole search, as 90s, 30m, 8h or 2d")
    rungs: PositiveInt = Field(
        3, le=100, description="times that a trial is compared with the others, its end included"
    )
    reduction: float = Field(2, gt=1, le=100, description="each rung has so many times the tokens of the one before")

    plateau: float | None = Field(
        None, gt=0, lt=1, description="the search ends when its next trial is expected to add less than this share"
    )

    @model_validator(mode="after")
    def _bounded(self) -> Budget:
        if self.trials is None and self.wall_clock is None:
            raise ValueError("budget: it has no end; give trials, wall_clock or both.")
        if self.tokens / self.reduction ** (self.rungs - 1) < 1:
            raise ValueError(f"budget: {self.rungs} rungs leave less than a token for the first; give fewer.")
        return self

    @property
    def rung_tokens(self) -> list[int]:
        """The rungs in tokens; the last is the full budget."""
        return [int(self.tokens / self.reduction**left) for left in reversed(range(self.rungs))]


KNOWN_COSTS = "known-costs"


class Sampler(_Section):
    """The sampler, which proposes trials."""

    name: Literal["known-costs", "tpe", "nsga2", "nsga3", "gp", "random"] = Field(
        "known-costs", description="ours, which models quality alone and knows the costs, or one of Optuna's"
    )
    seed: NonNegativeInt = Field(0, le=2**31 - 1, description="the same seed proposes the same, one trial at a time")


class SearchSpec(_Section):
    """A search; `space` has a trial's fields, each fixed, a choice or a range."""

    space: dict[str, Any]
    objectives: tuple[str, ...] = ("perplexity", "flops_per_token", "peak_memory")
    limits: dict[str, float] = Field(default_factory=dict, description="the most that a cost may be")
    reference: dict[str, float] = Field(
        default_factory=dict, description="by objective, the worst value that counts in the hypervolume"
    )
    first: tuple[dict[str, Any], ...] = Field((), description="trials to begin with, each as the fields that it fixes")
    budget: Budget
    resources: Resources = Resources.model_validate({})
    sampler: Sampler = Sampler.model_validate({})
    keep: Literal["front", "all", "none"] = Field("front", description="whose models stay on disk")
    tracking: str | None = Field(None, description="MLflow's tracking URI; default: SQLite in the results folder")

    @field_validator("space")
    @classmethod
    def _located(cls, space: dict[str, Any]) -> dict[str, Any]:
        """Make paths absolute: trials run in folders of their own, and a search may be resumed from another one."""
        return {name: located(name, value) if name in _PATHS else value for name, value in space.items()}

    @field_validator("first", mode="before")
    @classmethod
    def _trials(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple) or not all(isinstance(one, dict) for one in given):
            raise ValueError("is not a list of trials, each as {window: 300, overlap: 0}")
        return [
            {name: canonical(value) if name == RECURRENCE else value for name, value in one.items()} for one in given
        ]

    @field_validator("limits", "reference", mode="before")
    @classmethod
    def _units(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            raise ValueError("is not a list of `objective: value`")
        return {name: in_units(name, value) for name, value in given.items()}

    @model_validator(mode="after")
    def _consistent(self) -> SearchSpec:
        refusals = Refusals()
        for sentence in (*self._of_objectives(), *self._of_bounds(), *self._of_sampler(), *self._of_space()):
            refusals.add(sentence)
        if refusals:
            raise ValueError(str(refusals))
        return self

    def _of_objectives(self) -> Iterator[str]:
        """What is wrong with the objectives, as sentences; so are those below."""
        if unknown := [name for name in self.objectives if name not in OBJECTIVES]:
            yield f"objectives: there is no {unknown[0]!r}; {nearest(unknown[0], OBJECTIVES)}"
        elif len(set(self.objectives)) < len(self.objectives):
            yield f"objectives: one stands twice in {', '.join(self.objectives)}."
        elif not any(OBJECTIVES[name].kind == "quality" for name in self.objectives):
            yield "objectives: costs alone need no search; add a quality such as perplexity."
        elif len(self.objectives) < 2:
            yield f"objectives: {self.objectives[0]!r} alone has no front; add a cost such as flops_per_token."

    def _of_bounds(self) -> Iterator[str]:
        for name, limit in self.limits.items():
            if name not in COSTS:
                yield f"limits: {name!r} is no cost that is known before a trial runs; {nearest(name, COSTS)}"
            elif limit <= 0:
                yield f"limits.{name}: {limit:g} leaves nothing; give a positive number."
        for name, worst in self.reference.items():
            if name not in self.objectives:
                yield f"reference: {name!r} is none of the search's objectives."
            elif not 0 < worst < math.inf:
                yield f"reference.{name}: {worst:g} spans no volume; give a positive number."

    def _of_sampler(self) -> Iterator[str]:
        qualities = [name for name in dict.fromkeys(self.objectives) if name in OBJECTIVES and name not in COSTS]
        if self.sampler.name == KNOWN_COSTS and len(qualities) > 1:
            yield (
                f"sampler.name: known-costs models one quality, and objectives has {', '.join(qualities)}; "
                "leave out one or choose tpe."
            )
        if self.budget.plateau is not None and self.sampler.name != KNOWN_COSTS:
            yield (
                f"budget.plateau: {self.budget.plateau:g} needs to know what a trial is expected to add, and "
                f"sampler {self.sampler.name} does not; choose known-costs."
            )
        if self.sampler.name == "nsga2" and len(self.objectives) > 3:
            yield "sampler.name: nsga2 works poorly above three objectives; choose nsga3 or tpe."

    def _of_space(self) -> Iterator[str]:
        for field in self.space.keys() & {"tokens", "validate_every"}:
            yield f"space.{field}: it belongs to the budget; set budget.tokens and budget.rungs."
        try:
            space = self.parsed_space
            for given in self.first:
                space.point(given)
        except (UserError, ValueError) as refusal:
            yield from str(refusal).splitlines()
            return
        if "corpus" in space.names:
            yield "space.corpus: it is a choice, and numbers from two texts cannot be compared; name one."
        else:
            yield from self._of_qualities(str(space.fixed.get("corpus", TrialConfig.model_fields["corpus"].default)))
        per_token = [name for name in self.objectives if name in ("token_perplexity", "loss")]
        if "tokenizer" in space.names and per_token:
            yield f"objectives: {per_token[0]} of two tokenizers cannot be compared; take bits_per_byte or perplexity."

    def _of_qualities(self, corpus: str) -> Iterator[str]:
        """Qualities that the corpus's task does not measure."""
        own = [quality.name for quality in task_of(corpus).qualities]
        for name in self.objectives:
            if name in OBJECTIVES and name not in COSTS and name not in own:
                yield (
                    f"objectives: {name} is no quality of {task_of(corpus).name}, which {corpus} is for; these are: "
                    f"{', '.join(own)}."
                )

    @cached_property
    def parsed_space(self) -> Space:
        """The space, parsed and checked."""
        return read_space(self.space)

    @cached_property
    def corners(self) -> list[TrialConfig]:
        """Trials at the ends of every parameter, where costs have their extremes."""
        budget = {"tokens": self.budget.tokens, "validate_every": self.budget.rung_tokens[0]}
        return [config.model_copy(update=budget) for config in self.parsed_space.corner_configs]

    def trial_config(self, params: dict[str, Any], seed: int | None = None) -> TrialConfig:
        """The trial of these parameters and the space's fixed values; `seed` replaces its own."""
        config = self.parsed_space.trial_config(
            {"tokens": self.budget.tokens, "validate_every": self.budget.rung_tokens[0], **params}
        )
        return config if seed is None else config.model_copy(update={"seed": seed})


_PATHS = ("base", "corpus", "tokenizer")  # fields that may be a file or a folder


def located(field: str, value: Any) -> Any:
    """The value, or all values of a choice, with existing files and folders as absolute paths."""
    if isinstance(value, list):
        return [located(field, one) for one in value]
    if isinstance(value, dict):  # parameters below a choice are no paths
        return {located(field, one): below for one, below in value.items()}
    if not isinstance(value, str):
        return value
    kind, colon, path = value.partition(":") if field == "corpus" else ("", "", value)
    place = os.path.expanduser(path)  # unlike pathlib's it accepts unknown users
    may_be_a_file = field == "corpus" or place.endswith(".gguf")
    is_there = os.path.exists(place) if may_be_a_file else os.path.isdir(place)
    return f"{kind}{colon}{os.path.abspath(place)}" if path and is_there else value


_MAY_CHANGE = {"budget.trials", "budget.wall_clock", "budget.plateau", "tracking", "keep"}


def changes_between(before: SearchSpec, after: SearchSpec) -> Iterator[tuple[str, Any, Any]]:
    """The differences between two specs that forbid to resume one as the other: field, before, after.

    The token budget of a trial may not change, since its numbers depend on it. The number of trials, resources and
    tracking may.
    """
    old, new = (_in_current_names(_flat(spec.model_dump())) for spec in (before, after))
    for field in sorted(old.keys() | new.keys()):
        may_change = field in _MAY_CHANGE or field.startswith("resources.")
        section, _, name = field.partition(".")
        if section == "space":  # where 5e-4 equals '5e-4', and 16 equals '16'
            same = same_parameter(name, before.parsed_space.field(name), after.parsed_space.field(name))
        else:
            same = old.get(field) == new.get(field)
        if not same and not may_change:
            yield field, old.get(field), new.get(field)


def _in_current_names(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted names with current names of the space's fields, without those of how a step is launched."""
    found = {}
    for dotted, value in flat.items():
        section, _, name = dotted.partition(".")
        if section == "space" and name in RENAMED:
            name = RENAMED[name].to
        if name not in ("cuda_graph", "fused_kernels", RENAMED["speed"].to):
            found[f"{section}.{name}" if name else section] = value
    return found


def with_overrides(fields: dict[str, Any], overrides: list[tuple[str, Any]]) -> dict[str, Any]:
    """A spec's fields with some replaced, by dotted names such as `budget.tokens`."""
    changed = dict(fields)
    for dotted, value in overrides:
        *sections, last = dotted.split(".")
        place = changed
        for section in (_key(place, written) for written in sections):
            inner = place.get(section)
            place[section] = dict(inner) if isinstance(inner, dict) else {}
            place = place[section]
        if sections == ["space"] and last in RENAMED:
            place |= with_current_names({last: value}, RENAMED)
        else:
            place[_key(place, last)] = value
    return changed


def _key(place: Mapping[Any, Any], written: str) -> Any:
    """The key that is written like this: YAML's may be numbers."""
    return next((key for key in place if str(key) == written), written)


def check_units(fields: Mapping[str, Any]) -> None:
    """Refuse bytes and seconds without a unit in fields that a person has written; stored ones may be numbers."""
    for section in ("limits", "reference"):
        given = fields.get(section)
        for name, value in given.items() if isinstance(given, dict) else ():
            if name in OBJECTIVES and OBJECTIVES[name].unit.is_binary and _is_bare(value):
                raise UserError(f"{section}.{name}: {_bytes_in_doubt(value)}")
    budget, space = fields.get("budget"), fields.get("space")
    if isinstance(budget, dict) and _is_bare(limit := budget.get("wall_clock")):
        raise UserError(f"budget.wall_clock: {limit} seconds? Name the unit, as {limit:g}m or {limit:g}h.")
    if isinstance(space, dict) and _is_bare(size := space.get("memory_budget")):
        raise UserError(f"space.memory_budget: {_bytes_in_doubt(size)}")


def _bytes_in_doubt(number: float) -> str:
    meant = exact_size(number) if number >= 2**20 else f"{number:g}GiB or {number:g}MB"
    return f"{number:.15g} bytes? Name the unit, as {meant}."


def _is_bare(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def with_units(fields: dict[str, Any]) -> dict[str, Any]:
    """A spec's plain fields with the units that `check_units` asks for."""
    for section in ("limits", "reference"):
        given = fields.get(section, {})
        sizes = {name: exact_size(value) for name, value in given.items() if OBJECTIVES[name].unit.is_binary}
        fields = {**fields, section: {**given, **sizes}}
    if (limit := fields["budget"].get("wall_clock")) is not None:
        fields = {**fields, "budget": {**fields["budget"], "wall_clock": f"{limit:.15g}s"}}
    if _is_bare(size := fields["space"].get("memory_budget")):
        fields = {**fields, "space": {**fields["space"], "memory_budget": exact_size(size)}}
    return fields


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields by their dotted names, one level deep: a parameter of the space stays whole."""
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": below for inner, below in value.items()}
        else:
            flat[key] = list(value) if isinstance(value, tuple) else value
    return flat


def in_units(name: str, value: Any) -> float:
    """Parse a bound such as 40GiB of memory, 200M FLOPs or a perplexity of 25.5."""
    if name not in OBJECTIVES:
        return math.nan  # its name is refused later, with a better message
    try:
        has_unit = OBJECTIVES[name].unit.is_binary and isinstance(value, str)
        if not has_unit and re.fullmatch(r"\s*-?\d+(\.\d*)?(e[+-]?\d+)?\s*", str(value)):
            return float(value)
        return float(OBJECTIVES[name].unit.parse(value))
    except ValueError as error:
        raise ValueError(f"has {name}: {value!r}, which {error}") from None
