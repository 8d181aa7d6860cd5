"""Parses and checks a space; the first error is reported in one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from recur_tune.common.deprecated import with_current_names
from recur_tune.common.errors import UserError
from recur_tune.common.parsing import nearest
from recur_tune.config.trial import RENAMED, TrialConfig
from recur_tune.search.record.space import RECURRENCE, Choice, Fixed, Parameter, Range, Space, checked, collect

_RANGE_KEYS = {"from", "to", "log", "step", "of"}


def read_space(given: Mapping[str, Any]) -> Space:
    """Parse and check a space; the first error raises a ValueError with the whole sentence."""
    fixed: dict[str, Any] = {}
    parameters = _read_parameters(given, fixed)
    space = Space(fixed, parameters)
    _check_relations(space)
    return space


def _read_parameters(given: Mapping[str, Any], fixed: dict[str, Any] | None) -> dict[str, Parameter]:
    """The parameters of one level; plain values go to `fixed` unless that is None."""
    parameters: dict[str, Parameter] = {}
    for written, name, value in _by_current_name(given):
        if name not in TrialConfig.model_fields and name not in RENAMED:
            raise ValueError(f"space: a trial has no field {name!r}; {nearest(name, TrialConfig.model_fields)}")
        if value in ([], {}):
            raise ValueError(f"space: {name} has no value to choose from; list at least one.")
        if isinstance(value, list):
            parameters[name] = Choice(_choices(name, value), {}, written)
        elif isinstance(value, dict) and _RANGE_KEYS & value.keys():
            parameters[name] = replace(_read_range(name, value), written=written)
        elif isinstance(value, dict):
            values = _choices(name, value)
            inner = [_read_parameters(_mapping(name, one, below), None) for one, below in value.items()]
            parameters[name] = Choice(values, dict(zip(values, inner, strict=True)), written)
        elif fixed is not None:
            fixed[name] = checked(name, value)
        else:
            parameters[name] = Fixed(checked(name, value))
    return parameters


def _by_current_name(given: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Each field's deprecated name, where the space uses it, its current name, and its value."""
    for name, value in given.items():
        if name not in RENAMED:
            yield "", name, value
            continue
        is_fixed = not isinstance(value, list | dict)
        try:
            current = with_current_names({name: value} if is_fixed else {name: "auto"}, RENAMED)
        except UserError as error:
            raise ValueError(f"space: {error}") from None
        if is_fixed:
            yield from (("", new, own) for new, own in current.items())
        elif len(current) > 1:  # a study goes on with a choice whose values say something of several fields
            yield name, name, value
        else:
            yield name, next(iter(current)), value


def _read_range(name: str, given: Mapping[str, Any]) -> Range:
    unknown = [key for key in given if key not in _RANGE_KEYS]
    if unknown:
        raise ValueError(f"space: {name} has an unknown key {unknown[0]!r}; {nearest(unknown[0], _RANGE_KEYS)}")
    if "from" not in given or "to" not in given:
        raise ValueError(f"space: {name} is half a range; it needs both from and to.")
    of = given.get("of")
    of = RENAMED[of].to if isinstance(of, str) and of in RENAMED else of
    if of is not None:
        if not isinstance(of, str) or of not in TrialConfig.model_fields:
            raise ValueError(
                f"space: {name} is a share of {of!r}, which is no field; {nearest(of, TrialConfig.model_fields)}"
            )
        low, high = (_number(name, given[end]) for end in ("from", "to"))
    else:
        low, high = (checked(name, given[end]) for end in ("from", "to"))
    if isinstance(low, str) or isinstance(high, str):
        raise ValueError(f"space: {name} has no numbers to range over; list the values instead.")
    for end in (low, high):
        if end is None or not math.isfinite(end):
            raise ValueError(f"space: {name} has {end!r} where a number is needed.")
    step = _number(name, given["step"]) if given.get("step") is not None else None
    if isinstance(low, int) and isinstance(high, int) and step is not None:
        if step != int(step):
            raise ValueError(f"space: {name} has the step {step:g}; its values are whole numbers, give a whole step.")
        step = int(step)
    log = given.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"space: {name} has log: {log!r}; it is either true or false.")
    if low >= high:
        raise ValueError(f"space: {name} goes from {low:g} to {high:g}; the first has to be the smaller.")
    if log and low <= 0:
        raise ValueError(f"space: {name} begins at {low:g}, and a log range has to begin above 0.")
    if step is not None and (log or not 0 < step <= (high - low) * (1 + 1e-9)):  # 0.6 - 0.4 is below 0.2
        why = "a log range takes no step" if log else f"it has to be above 0 and at most {high - low:g}"
        raise ValueError(f"space: {name} has the step {step:g}; {why}.")
    if step is not None:
        first, last, width = (Decimal(str(number)) for number in (low, high, step))
        high = type(high)(first + (last - first) // width * width)  # the last value on the grid of steps
    return Range(low, high, log, step, of)


def _check_relations(space: Space) -> None:
    """Check what involves several fields: every point of the space has to be a valid trial."""
    parameters: dict[str, Parameter] = {}
    collect(space.parameters, parameters)
    for name, parameter in parameters.items():
        if isinstance(parameter, Range) and parameter.of is not None:
            if parameter.of not in parameters and parameter.of not in space.fixed:
                raise ValueError(f"space: {name} is a share of {parameter.of}, which the space does not have; add it.")
            if getattr(parameters.get(parameter.of), "of", None) is not None:
                raise ValueError(f"space: {name} is a share of {parameter.of}, which is a share itself; name a whole.")
            if name == "overlap" and parameter.high >= 1:
                raise ValueError(f"space: overlap goes up to {parameter.high:g} of the window; it has to stay below 1.")
    default = {name: field.default for name, field in TrialConfig.model_fields.items()}
    windows = (
        parameters["window"].extremes() if "window" in parameters else (space.fixed.get("window", default["window"]),)
    )
    overlap = parameters.get("overlap")
    if not (isinstance(overlap, Range) and overlap.of):
        largest = max(overlap.extremes() if overlap else (space.fixed.get("overlap", 0),))
        if largest >= min(windows):
            raise ValueError(
                f"space: overlap can be {largest}, which is not below a window of {min(windows)}; "
                "make it a share, as {from: 0, to: 0.5, of: window}."
            )
    for fields in space.corners():
        space.trial_config(fields)  # raises where it is not valid


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"space: {name} has {value!r} where a number is needed.")
    return number


def _choices(name: str, given: Iterable[Any]) -> tuple[Any, ...]:
    """The validated values of a choice. Recurrences keep their spelling: Optuna resumes a study only where its choices
    have the same names."""
    written = list(given)
    values = [checked(name, one) for one in written]
    if len(set(values)) < len(values):
        raise ValueError(f"space: {name} lists a value twice.")
    return tuple(written if name == RECURRENCE else values)


def _mapping(name: str, value: Any, below: Any) -> Mapping[str, Any]:
    if below is not None and not isinstance(below, dict):
        raise ValueError(f"space: {name} has {below!r} below {value!r}; parameters have to stand there, or nothing.")
    return below or {}
