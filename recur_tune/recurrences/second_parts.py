"""Registry of second parts: mechanisms that can stand behind an exact part, or beside it.

An *overflow* takes the rows that leave the exact part; what stands *beside* it sees every window itself. A mechanism
that can have them has `SecondParts` among its fields. With one it is a composition, and what that costs is the sum of
what its parts say. A new second part is a mechanism of its own and a line in `_OVERFLOWS`, where its module is an
`Overflow` (recur_tune.recurrences.seam), or else in `_BESIDE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.blocks.spec import BLOCKS
from recur_tune.recurrences.gated_delta.spec import GATED_DELTA
from recur_tune.recurrences.mechanism import Held, Mechanism, Work
from recur_tune.recurrences.scores.spec import SCORES

NO_PART = "none"
_OVERFLOWS, _BESIDE = (GATED_DELTA,), (SCORES, BLOCKS)
# The fields that name a second part, and what each can name.
ROLES: dict[str, dict[str, Mechanism]] = {
    "overflow": {one.name: one for one in _OVERFLOWS},
    "beside": {one.name: one for one in _BESIDE},
}
# Of their fields, those that costs do not depend on.
_ALL = tuple(one for parts in ROLES.values() for one in parts.values())
FLOPS_INDEPENDENT = frozenset[str]().union(*(one.flops_independent_fields for one in _ALL))
STATE_INDEPENDENT = frozenset[str]().union(*(one.state_independent_fields for one in _ALL))

if TYPE_CHECKING:
    _OverflowName = str
    _BesideName = str
else:
    _OverflowName, _BesideName = (Literal[NO_PART, *parts] for parts in ROLES.values())


def _in_words(nothing: str, parts: Iterable[Mechanism]) -> str:
    return "; ".join([f"{NO_PART!r} {nothing}", *(f"{one.name!r} {one.summary}" for one in parts)])


class _Choice(BaseModel):
    """Which second parts there are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    overflow: _OverflowName = Field(
        NO_PART,
        description="what takes the rows that leave the exact ones, with fields of its own: "
        + _in_words("lets them go", _OVERFLOWS),
    )
    beside: _BesideName = Field(
        NO_PART,
        description="what else connects windows, with fields of its own: " + _in_words("is the cache alone", _BESIDE),
    )


if TYPE_CHECKING:
    SecondParts = _Choice
else:  # the fields of all second parts stand behind the choice of them
    SecondParts = create_model(
        "SecondParts",
        __base__=_Choice,
        **{name: (field.annotation, copy(field)) for one in _ALL for name, field in one.spec.model_fields.items()},
    )


def composed(mechanism: Mechanism, spec: BaseModel) -> Mechanism:
    """The mechanism with the second parts that its fields name; itself where they name none."""
    named = [known.get(getattr(spec, role, NO_PART)) for role, known in ROLES.items()]
    others = [part for part in named if part is not None]
    return _composition(mechanism, *others) if others else mechanism


@cache
def _composition(*parts: Mechanism) -> Mechanism:
    return replace(
        parts[0],
        composed_of=parts,
        flops=_sum([part.flops for part in parts]),
        work=_work([part.work for part in parts]),
        state_floats=_sum([part.state_floats for part in parts]),
        quantised_bytes=lambda spec, shape: sum(part.quantised_bytes(spec, shape) for part in parts),
        held=_held(parts),
        from_the_start=any(part.from_the_start for part in parts),
        stops_gradients=all(part.stops_gradients for part in parts),
        bidirectional=all(part.bidirectional for part in parts),
        leaves_overlap_out=any(part.leaves_overlap_out for part in parts),
        kept_as_read=all(part.kept_as_read for part in parts),
        positions=lambda spec, shape: sum(part.positions(spec, shape) for part in parts),
        check=lambda spec, shape, base: next(
            (problem for part in parts if (problem := part.check(spec, shape, base))), None
        ),
    )


def unchosen_fields(spec: BaseModel | None) -> set[str]:
    """The fields of second parts that a mechanism may have and this one has not."""
    found, chosen = set[str](), set[str]()
    for role, known in ROLES.items():
        for name, part in known.items():
            if hasattr(spec, role):
                (chosen if getattr(spec, role) == name else found).update(part.spec.model_fields)
    return found - chosen


def _sum(forms: list[Callable[..., Any] | None]) -> Callable[..., Any] | None:
    """A sum of closed forms; None where one has to be counted."""
    known = [form for form in forms if form is not None]
    return (lambda *given: sum(form(*given) for form in known)) if len(known) == len(forms) else None


def _work(forms: list[Callable[..., Work] | None]) -> Callable[..., Work] | None:
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return None
    return lambda *given: Work(*map(sum, zip(*(form(*given) for form in known), strict=True)))


def _held(parts: tuple[Mechanism, ...]) -> Callable[[Any, Shape, Windowing], Held] | None:
    """What all hold; a part that does not say it holds its state."""

    def held(spec: Any, shape: Shape, windowing: Windowing) -> Held:
        return Held(*map(sum, zip(*(_of_part(part, spec, shape, windowing) for part in parts), strict=True)))

    return None if any(part.held is None and part.state_floats is None for part in parts) else held


def _of_part(part: Mechanism, spec: Any, shape: Shape, windowing: Windowing) -> Held:
    if part.held is not None:
        return part.held(spec, shape, windowing)
    assert part.state_floats is not None
    floats, quantised = part.state_floats(spec, shape), part.quantised_bytes(spec, shape)
    return Held(floats, 0, quantised) if part.kept_as_read else Held(0, floats, quantised)
