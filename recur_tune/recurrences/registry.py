"""Registry of recurrences: built-in mechanisms, and those of installed packages.

A new one is a folder in here and a line in `_OURS`, or a package with an entry point in the group
`recur_tune.recurrences` that names a `Mechanism`. Its fields become flags, keys of YAML files and parameters of spaces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from recur_tune.common.registry import Registry, check_fields, check_problems, refused_fields
from recur_tune.recurrences.blocks.spec import BLOCKS
from recur_tune.recurrences.cache.spec import CACHE
from recur_tune.recurrences.fast_weights.spec import FAST_WEIGHTS
from recur_tune.recurrences.gated_delta.spec import GATED_DELTA
from recur_tune.recurrences.mechanism import Mark, Mechanism, Work
from recur_tune.recurrences.pooled.spec import POOLED
from recur_tune.recurrences.scores.spec import SCORES
from recur_tune.recurrences.second_parts import composed
from recur_tune.recurrences.tokens.spec import TOKENS
from recur_tune.recurrences.ttt.spec import TTT

__all__ = [
    "DEFAULT", "FIELDS", "MARKS", "MECHANISMS", "NONE", "REGISTRY", "Mark", "Mechanism", "Work", "canonical",
    "check", "composed", "fields_of", "mechanism_of", "names_of", "of_settings", "settings_of",
]  # fmt: skip

NONE = "none"  # the plain model
DEFAULT = POOLED.name
_OURS = (POOLED, TOKENS, CACHE, FAST_WEIGHTS, SCORES, BLOCKS, GATED_DELTA, TTT)


def _refusal(mechanism: Mechanism, known: Mapping[str, Mechanism]) -> str | None:
    """Names and fields have one meaning among all mechanisms."""
    taken = {NONE: NONE, **{name: one.name for one in known.values() for name in (one.name, *one.aliases)}}
    for name in (mechanism.name, *mechanism.aliases):
        if name in taken:
            return f"wants to be called {name!r}, which is the name of {taken[name]!r}"
    return refused_fields(mechanism.spec, {name: one.spec for name, one in known.items()})


REGISTRY = Registry("recurrence", "recur_tune.recurrences", Mechanism, _OURS, _refusal)
MECHANISMS, _PROBLEMS = REGISTRY.load()

# Every field that belongs to a mechanism; one may belong to several.
FIELDS: dict[str, FieldInfo] = {
    name: field for mechanism in MECHANISMS.values() for name, field in mechanism.spec.model_fields.items()
}
_ALIASES = {alias: mechanism.name for mechanism in MECHANISMS.values() for alias in mechanism.aliases}

_PLAIN = Mark("plain", "o", "circle", "#0072b2")
_SHAPES = (("s", "square"), ("D", "diamond"), ("v", "triangle-down"), ("P", "cross"), ("*", "star"), ("X", "x"))
_COLOURS = ("#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


def _marks() -> dict[str, Mark]:
    """By name, how each kind is drawn; one without a mark takes a shape and a colour that no other has."""
    given = [_PLAIN, *(one.mark for one in MECHANISMS.values() if one.mark)]
    shapes = [shape for shape in _SHAPES if shape[1] not in {mark.symbol for mark in given}] or [_SHAPES[0]]
    colours = [colour for colour in _COLOURS if colour not in {mark.colour for mark in given}] or [_COLOURS[0]]
    marks, free = {NONE: _PLAIN}, 0
    for name, mechanism in MECHANISMS.items():
        marks[name] = mechanism.mark or Mark(name, *shapes[free % len(shapes)], colours[free % len(colours)])
        free += mechanism.mark is None
    return marks


MARKS = _marks()


def check(reserved: Collection[str]) -> None:
    """Refuse to go on beside an installed recurrence that cannot be used; `reserved` fields are every trial's."""
    check_problems(_PROBLEMS)
    check_fields(REGISTRY.noun, {name: one.spec for name, one in MECHANISMS.items()}, reserved)


def canonical(name: Any) -> Any:
    """The name of today for a recurrence that may be called by an alias; anything else as it is."""
    return _ALIASES.get(name, name) if isinstance(name, str) else name


def settings_of(spec: BaseModel | None) -> dict[str, Any] | None:
    """What a model's configuration says of a recurrence: its name as `kind`, and its fields."""
    if spec is None:
        return None
    return {"kind": mechanism_of(spec).name, **spec.model_dump()}


def mechanism_of(spec: BaseModel) -> Mechanism:
    """The mechanism that has these fields, with the second parts that they name."""
    [mechanism] = [mechanism for mechanism in MECHANISMS.values() if mechanism.spec is type(spec)]
    return composed(mechanism, spec)


def of_settings(settings: Mapping[str, Any]) -> tuple[Mechanism, BaseModel]:
    """The mechanism and the fields that a model's configuration names."""
    fields = {name: value for name, value in settings.items() if name != "kind"}
    # Before there were others, a configuration did not say which.
    mechanism = MECHANISMS[canonical(settings.get("kind", POOLED.name))]
    spec = mechanism.spec(**fields)
    return composed(mechanism, spec), spec


def fields_of(name: str) -> frozenset[str]:
    """The fields of one recurrence; the plain model has none."""
    mechanism = MECHANISMS.get(canonical(name))
    return frozenset(mechanism.spec.model_fields) if mechanism else frozenset()


def names_of(field: str) -> list[str]:
    """The recurrences that have a field."""
    return [name for name, mechanism in MECHANISMS.items() if field in mechanism.spec.model_fields]
