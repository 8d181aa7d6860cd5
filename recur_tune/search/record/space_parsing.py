"""Parses and checks a space; each error is one sentence that begins with the field as `--set` takes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from recur_tune.common.deprecated import with_current_names
from recur_tune.common.errors import Refusals, UserError
from recur_tune.common.parsing import nearest
from recur_tune.config.trial import RENAMED, TrialConfig
from recur_tune.search.record.space import RECURRENCE, Choice, Fixed, Parameter, Range, Space, checked, collect

_RANGE_KEYS = {"from", "to", "log", "step", "of"}


def read_space(given: Mapping[str, Any]) -> Space:
    """Parse and check a space; what is wrong raises one ValueError, with a sentence in a line for each field."""
    refusals = Refusals()
    fixed: dict[str, Any] = {}
    space = Space(fixed, _read_parameters("space", given, fixed, refusals))
    if not refusals:
        with refusals.collecting():
            _check_relations(space)
    if not refusals:
        _check_corners(space, refusals)
    if refusals:
        raise ValueError(str(refusals))
    return space


def _read_parameters(
    place: str, given: Mapping[str, Any], fixed: dict[str, Any] | None, refusals: Refusals
) -> dict[str, Parameter]:
    """The parameters of one level; plain values go to `fixed` unless that is None."""
    parameters: dict[str, Parameter] = {}
    for as_given, value_given in given.items():
        with refusals.collecting():
            for written, name, value in _by_current_name(place, as_given, value_given):
                path = f"{place}.{written or name}"
                if name not in TrialConfig.model_fields and name not in RENAMED:
                    raise ValueError(f"{path}: there is no such field; {nearest(name, TrialConfig.model_fields)}")
                if value in ([], {}):
                    raise ValueError(f"{path}: it has no value to choose from; list at least one.")
                if isinstance(value, list):
                    parameters[name] = Choice(_choices(path, name, value), {}, written)
                elif isinstance(value, dict) and _RANGE_KEYS & value.keys():
                    parameters[name] = replace(_read_range(path, name, value), written=written)
                elif isinstance(value, dict):
                    values = _choices(path, name, value)
                    inner = [
                        _read_parameters(f"{path}.{one}", _mapping(path, one, below), None, refusals)
                        for one, below in value.items()
                    ]
                    parameters[name] = Choice(values, dict(zip(values, inner, strict=True)), written)
                elif fixed is not None:
                    fixed[name] = checked(name, value, path)
                else:
                    parameters[name] = Fixed(checked(name, value, path))
    return parameters


def _by_current_name(place: str, name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """A field's deprecated name, where the space uses it, its current name, and its value."""
    if name not in RENAMED:
        yield "", name, value
        return
    is_fixed = not isinstance(value, list | dict)
    try:
        current = with_current_names({name: value} if is_fixed else {name: "auto"}, RENAMED)
    except UserError as error:
        raise ValueError(f"{place}.{error}") from None
    if is_fixed:
        yield from (("", new, own) for new, own in current.items())
    elif len(current) > 1:  # a study goes on with a choice whose values say something of several fields
        yield name, name, value
    else:
        yield name, next(iter(current)), value


def _read_range(path: str, name: str, given: Mapping[str, Any]) -> Range:
    unknown = [key for key in given if key not in _RANGE_KEYS]
    if unknown:
        raise ValueError(f"{path}: it has an unknown key {unknown[0]!r}; {nearest(unknown[0], _RANGE_KEYS)}")
    if "from" not in given or "to" not in given:
        raise ValueError(f"{path}: it is half a range and needs both from and to.")
    of = given.get("of")
    of = RENAMED[of].to if isinstance(of, str) and of in RENAMED else of
    if of is not None:
        if not isinstance(of, str) or of not in TrialConfig.model_fields:
            raise ValueError(
                f"{path}: it is a share of {of!r}, which is no field; {nearest(of, TrialConfig.model_fields)}"
            )
        low, high = (_number(path, given[end]) for end in ("from", "to"))
    else:
        low, high = (checked(name, given[end], path) for end in ("from", "to"))
    if isinstance(low, str) or isinstance(high, str):
        raise ValueError(f"{path}: it has no numbers to range over; list the values instead.")
    for end in (low, high):
        if end is None or not math.isfinite(end):
            raise ValueError(f"{path}: it has {end!r} where a number is needed.")
    step = _number(path, given["step"]) if given.get("step") is not None else None
    if isinstance(low, int) and isinstance(high, int) and step is not None:
        if step != int(step):
            raise ValueError(f"{path}: it has the step {step:g}; its values are whole numbers, give a whole step.")
        step = int(step)
    log = given.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"{path}: it has log: {log!r}; it is either true or false.")
    if low >= high:
        raise ValueError(f"{path}: it goes from {low:g} to {high:g}; the first has to be the smaller.")
    if log and low <= 0:
        raise ValueError(f"{path}: it begins at {low:g}, and a log range has to begin above 0.")
    if step is not None and (log or not 0 < step <= (high - low) * (1 + 1e-9)):  # 0.6 - 0.4 is below 0.2
        why = "a log range takes no step" if log else f"it has to be above 0 and at most {high - low:g}"
        raise ValueError(f"{path}: it has the step {step:g}; {why}.")
    if step is not None:
        first, last, width = (Decimal(str(number)) for number in (low, high, step))
        high = type(high)(first + (last - first) // width * width)  # the last value on the grid of steps
    return Range(low, high, log, step, of)


def _check_relations(space: Space) -> None:
    """Check what involves several fields."""
    parameters: dict[str, Parameter] = {}
    collect(space.parameters, parameters)
    for name, parameter in parameters.items():
        if isinstance(parameter, Range) and parameter.of is not None:
            path = space.path(name)
            if parameter.of not in parameters and parameter.of not in space.fixed:
                raise ValueError(f"{path}: it is a share of {parameter.of}, which the space does not have; add it.")
            if getattr(parameters.get(parameter.of), "of", None) is not None:
                raise ValueError(f"{path}: it is a share of {parameter.of}, which is a share itself; name a whole.")
            if name == "overlap" and parameter.high >= 1:
                raise ValueError(f"{path}: it goes up to {parameter.high:g} of the window; it has to stay below 1.")
    default = {name: field.default for name, field in TrialConfig.model_fields.items()}
    windows = (
        parameters["window"].extremes() if "window" in parameters else (space.fixed.get("window", default["window"]),)
    )
    overlap = parameters.get("overlap")
    if not (isinstance(overlap, Range) and overlap.of):
        largest = max(overlap.extremes() if overlap else (space.fixed.get("overlap", 0),))
        if largest >= min(windows):
            raise ValueError(
                f"{space.path('overlap')}: it can be {largest}, which is not below a window of {min(windows)}; "
                "make it a share, as {from: 0, to: 0.5, of: window}."
            )


def _check_corners(space: Space, refusals: Refusals) -> None:
    """Check that every point of the space is a valid trial, as far as its corners tell."""
    try:
        _ = space.corner_configs
    except ValueError as refusal:
        refusals.add(refusal)
    except UserError:
        for fields in space.corners():
            try:
                space.trial_config(fields)
            except UserError as refusal:
                refusals.add(space.with_paths(refusal))


def _number(path: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{path}: it has {value!r} where a number is needed.")
    return number


def _choices(path: str, name: str, given: Iterable[Any]) -> tuple[Any, ...]:
    """The validated values of a choice. Recurrences keep their spelling: Optuna resumes a study only where its choices
    have the same names."""
    written = list(given)
    values = [checked(name, one, path) for one in written]
    if len(set(values)) < len(values):
        raise ValueError(f"{path}: it lists a value twice.")
    return tuple(written if name == RECURRENCE else values)


def _mapping(path: str, value: Any, below: Any) -> Mapping[str, Any]:
    if below is not None and not isinstance(below, dict):
        raise ValueError(f"{path}: it has {below!r} below {value!r}; parameters have to stand there, or nothing.")
    return below or {}
