"""Registry of recurrences: ours, and those that installed packages bring.

A package brings one by an entry point in the group `recur_tune.recurrences` that names a `Mechanism`; its fields are
then flags, keys of YAML files and parameters of a space like ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from recur_tune.common.errors import UserError
from recur_tune.recurrences.blocks.spec import BLOCKS
from recur_tune.recurrences.cache.spec import CACHE
from recur_tune.recurrences.fast_weights.spec import FAST_WEIGHTS
from recur_tune.recurrences.mechanism import Mark, Mechanism, Work
from recur_tune.recurrences.pooled.spec import POOLED
from recur_tune.recurrences.scores.spec import SCORES
from recur_tune.recurrences.tokens.spec import TOKENS

__all__ = [
    "DEFAULT", "FIELDS", "GROUP", "MARKS", "MECHANISMS", "NONE", "Mark", "Mechanism", "Work", "canonical", "check",
    "fields_of", "names_of", "settings_of",
]  # fmt: skip

GROUP = "recur_tune.recurrences"
NONE = "none"  # the plain model
DEFAULT = POOLED.name
_OURS = (POOLED, TOKENS, CACHE, FAST_WEIGHTS, SCORES, BLOCKS)


def _registered(points: Iterable[EntryPoint]) -> tuple[dict[str, Mechanism], list[str]]:
    """Every mechanism by its name, and a sentence for each entry point that cannot be one."""
    found, problems = {one.name: one for one in _OURS}, list[str]()
    for point in sorted(points, key=lambda point: point.name):
        source = point.dist.name if point.dist else point.value
        try:
            mechanism = point.load()
        except Exception as error:  # whatever a stranger's module raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            problems.append(
                f"recurrence: {point.name!r} of {source} cannot be loaded ({reason}); mend or uninstall it."
            )
            continue
        if problem := _problem(mechanism, found):
            problems.append(f"recurrence: {point.name!r} of {source} {problem}; mend or uninstall it.")
        else:
            found[mechanism.name] = mechanism
    return found, problems


def _problem(mechanism: Any, known: Mapping[str, Mechanism]) -> str | None:
    """Why a mechanism cannot stand beside those that are known, as the end of a sentence."""
    if not isinstance(mechanism, Mechanism):
        return f"is a {type(mechanism).__name__}, not a Mechanism"
    taken = {NONE: NONE, **{name: one.name for one in known.values() for name in (one.name, *one.aliases)}}
    for name in (mechanism.name, *mechanism.aliases):
        if name in taken:
            return f"wants to be called {name!r}, which is the name of {taken[name]!r}"
    for other in known.values():
        for name, field in mechanism.spec.model_fields.items():
            theirs = other.spec.model_fields.get(name)
            if theirs is not None and _meaning(field) != _meaning(theirs):
                return f"has a field {name!r} of another type, default or description than that of {other.name!r}"
    for name, field in mechanism.spec.model_fields.items():
        if field.is_required() or not field.description:
            return f"has a field {name!r} without a default or a description"
    return None


def _meaning(field: FieldInfo) -> tuple[Any, ...]:
    return field.annotation, field.metadata, field.default, field.description


MECHANISMS, _PROBLEMS = _registered(entry_points(group=GROUP))

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
    for problem in _PROBLEMS:
        raise UserError(problem)
    for mechanism in MECHANISMS.values():
        for name in mechanism.spec.model_fields.keys() & set(reserved):
            raise UserError(f"recurrence: {mechanism.name!r} has a field {name!r}, which every trial has; rename it.")


def canonical(name: Any) -> Any:
    """The name of today for a recurrence that may be called by an alias; anything else as it is."""
    return _ALIASES.get(name, name) if isinstance(name, str) else name


def settings_of(spec: BaseModel | None) -> dict[str, Any] | None:
    """What a model's configuration says of a recurrence: its name as `kind`, and its fields."""
    if spec is None:
        return None
    [name] = [name for name, mechanism in MECHANISMS.items() if mechanism.spec is type(spec)]
    return {"kind": name, **spec.model_dump()}


def of_settings(settings: Mapping[str, Any]) -> tuple[Mechanism, BaseModel]:
    """The mechanism and the fields that a model's configuration names."""
    fields = {name: value for name, value in settings.items() if name != "kind"}
    # Before there were others, a configuration did not say which.
    mechanism = MECHANISMS[canonical(settings.get("kind", POOLED.name))]
    return mechanism, mechanism.spec(**fields)


def fields_of(name: str) -> frozenset[str]:
    """The fields of one recurrence; the plain model has none."""
    mechanism = MECHANISMS.get(canonical(name))
    return frozenset(mechanism.spec.model_fields) if mechanism else frozenset()


def names_of(field: str) -> list[str]:
    """The recurrences that have a field."""
    return [name for name, mechanism in MECHANISMS.items() if field in mechanism.spec.model_fields]
