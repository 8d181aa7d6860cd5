"""Registry of overflows: compressed parts that take the rows which leave an exact one.

A mechanism whose rows may overflow has `OverflowFields` among its fields. With an overflow it is a composition of two
parts, and what that costs is the sum of what its parts say. A new overflow is a mechanism of its own whose module is
an `Overflow` (recur_tune.recurrences.seam), and a line in `_OURS`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.gated_delta.spec import GATED_DELTA
from recur_tune.recurrences.mechanism import Held, Mechanism, Work

NO_OVERFLOW = "none"
_OURS = (GATED_DELTA,)
OVERFLOWS: dict[str, Mechanism] = {one.name: one for one in _OURS}

if TYPE_CHECKING:
    _OverflowName = str
else:
    _OverflowName = Literal[NO_OVERFLOW, *OVERFLOWS]


class _Choice(BaseModel):
    """Which overflow there is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    overflow: _OverflowName = Field(
        NO_OVERFLOW,
        description="what takes the rows that leave the exact ones, with fields of its own: "
        + "; ".join(["'none' lets them go", *(f"{name!r} {one.summary}" for name, one in OVERFLOWS.items())]),
    )


if TYPE_CHECKING:
    OverflowFields = _Choice
else:  # the fields of all overflows stand behind the choice of one
    OverflowFields = create_model(
        "OverflowFields",
        __base__=_Choice,
        **{
            name: (field.annotation, copy(field))
            for one in OVERFLOWS.values()
            for name, field in one.spec.model_fields.items()
        },
    )


def composed(mechanism: Mechanism, spec: BaseModel) -> Mechanism:
    """The mechanism with the overflow that its fields name; itself where they name none."""
    overflow = OVERFLOWS.get(getattr(spec, "overflow", NO_OVERFLOW))
    if overflow is None:
        return mechanism
    parts = mechanism, overflow
    return replace(
        mechanism,
        composed_of=parts,
        flops=_sum([part.flops for part in parts]),
        work=_work([part.work for part in parts]),
        state_floats=_sum([part.state_floats for part in parts]),
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
    floats = part.state_floats(spec, shape)
    return Held(floats, 0) if part.kept_as_read else Held(0, floats)
