"""The space of a search: a trial's fields, each fixed, a choice, a range, or a choice with parameters of its own.

window: 300                                  fixed
window: [200, 300, 400]                      a choice
learning_rate: {from: 1e-5, to: 1e-3, log: true}
overlap: {from: 0, to: 0.5, step: 0.1, of: window}    a share of another field, rounded down
recurrence:                                  a choice; what stands below a value exists only with it
  none:
  pooled:
    l_ins: [1, 2, 4]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter, ValidationError

from recur_tune.recurrences import canonical
from recur_tune.spec import TrialConfig, describe, nearest, parse

if TYPE_CHECKING:
    import optuna

_MOST_CORNERS = 20_000  # a space with more has most of them checked only when they are drawn
RECURRENCE = "recurrence"  # the one field whose values may have other names
_RANGE_KEYS = {"from", "to", "log", "step", "of"}


@dataclass(frozen=True)
class Choice:
    """One of a few values; below each, the parameters that only exist with it."""

    values: tuple[Any, ...]
    below: Mapping[Any, Mapping[str, Parameter]]

    def draw(self, name: str, trial: optuna.Trial) -> Any:
        """Let the sampler choose."""
        return trial.suggest_categorical(name, list(self.values))

    def closest(self, wanted: Any) -> Any:
        """The value nearest to the wanted one; among words, that word or the first."""
        if wanted in self.values:
            return wanted
        numbers = [value for value in self.values if isinstance(value, int | float)]
        if isinstance(wanted, int | float) and numbers:
            return min(numbers, key=lambda value: abs(value - wanted))
        return self.values[0]

    def extremes(self) -> tuple[Any, ...]:
        """The smallest and the largest; of words, which have no order, every one."""
        if all(isinstance(value, int | float) for value in self.values) and not self.below:
            return min(self.values), max(self.values)
        return self.values


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, ends included."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    of: str | None = None  # then the number is a share of that field

    def draw(self, name: str, trial: optuna.Trial) -> float:
        """Let the sampler choose."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, step=int(self.step or 1), log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)

    def closest(self, wanted: Any) -> float:
        """The number in the range nearest to the wanted one."""
        if not isinstance(wanted, int | float):
            return self.low  # 'all' layers, say, have no place among numbers
        value = min(max(wanted, self.low), self.high)
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        if step := self.step or (1 if whole else None):
            value = min(self.low + round((value - self.low) / step) * step, self.high)
        return value

    def extremes(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high


@dataclass(frozen=True)
class Fixed:
    """A value that comes with a choice above it; the sampler has no say."""

    value: Any

    def draw(self, name: str, trial: optuna.Trial) -> Any:
        """Always the same."""
        return self.value

    def closest(self, wanted: Any) -> Any:
        """Always the same."""
        return self.value

    def extremes(self) -> tuple[Any, ...]:
        """Always the same."""
        return (self.value,)


Parameter = Choice | Range | Fixed


@dataclass(frozen=True)
class Space:
    """Fixed fields, and parameters for the sampler to decide."""

    fixed: Mapping[str, Any]
    parameters: Mapping[str, Parameter]

    def draw(self, trial: optuna.Trial) -> dict[str, Any]:
        """Let Optuna's trial decide every parameter that exists; the result is in a trial's fields."""
        drawn = self._walk(lambda name, parameter: parameter.draw(self.label(name, parameter), trial))
        return self._in_fields(drawn)

    def closest(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The point of the space nearest to the wanted fields, in the sampler's own names; fields that `wanted` does
        not name are left to the sampler."""
        return self._nearest(wanted)[0]

    def point(self, given: Mapping[str, Any], named: str = "first") -> dict[str, Any]:
        """The trial with these very fields in the sampler's own names, others left to it; where the space has no such
        trial, a ValueError with the whole sentence, which begins with how the fields were `named`."""
        parameters: dict[str, Parameter] = {}
        _collect(self.parameters, parameters)
        for name in given:
            if name not in parameters and name not in self.fixed:
                raise ValueError(f"{named}: the space has no {name!r}; {nearest(name, [*parameters, *self.fixed])}")
            whole = getattr(parameters.get(name), "of", None)
            if whole in parameters and whole not in given:
                raise ValueError(f"{named}: {name} {given[name]} is a share of the {whole}; say which.")
        wanted = {name: _checked(name, value, named) for name, value in given.items()}
        point, chosen = self._nearest(wanted)
        found = {**self.fixed, **self._in_fields(chosen)}
        for name, value in wanted.items():
            if name not in found:
                raise ValueError(f"{named}: {name} {value} exists only with a choice above it; say which.")
            same = math.isclose(value, found[name]) if isinstance(value, float) else value == found[name]
            if not same:
                raise ValueError(f"{named}: {name} {value} is not in the space; the nearest is {found[name]}.")
        return point

    def fields_of(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """A point in the sampler's own names as a trial's fields; what it does not name is left out."""
        chosen = self._walk(lambda name, parameter: point.get(self.label(name, parameter), parameter.extremes()[0]))
        named = {name for name, (parameter, _) in chosen.items() if self.label(name, parameter) in point}
        return {name: value for name, value in self._in_fields(chosen).items() if name in named}

    def _nearest(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Parameter, Any]]]:
        """A point, and what `_walk` gives there."""
        point: dict[str, Any] = {}

        def choose(name: str, parameter: Parameter) -> Any:
            if name not in wanted:
                return parameter.extremes()[0]  # only to see what exists below it
            if isinstance(parameter, Range) and parameter.of is not None:
                whole = wanted[parameter.of] if parameter.of in wanted else self._fixed_or_default(parameter.of)
                value = parameter.closest(wanted[name] / whole)
                above = parameter.closest(value + (parameter.step or 0))
                if _part(above, whole) == wanted[name]:  # shares are rounded down
                    value = above
            else:
                value = parameter.closest(_as_written(name, wanted[name], parameter))
            if not isinstance(parameter, Fixed):
                point[self.label(name, parameter)] = value
            return value

        return point, self._walk(choose)

    def corners(self) -> Iterator[dict[str, Any]]:
        """Fields at every combination of the parameters' ends, where costs have their extremes."""
        seen = self.all_parameters
        names = list(seen)
        made = set()
        combinations = itertools.product(*(dict.fromkeys(seen[name].extremes()) for name in names))
        for ends in itertools.islice(combinations, _MOST_CORNERS):
            fields = self.fields_at(dict(zip(names, ends, strict=True)))
            key = tuple(sorted(fields.items(), key=lambda item: item[0]))
            if key not in made:
                made.add(key)
                yield fields

    def trial_config(self, params: Mapping[str, Any]) -> TrialConfig:
        """The trial that these parameters make together with the fixed fields."""
        return parse(TrialConfig, {**self.fixed, **params})

    def field(self, name: str) -> Any:
        """What the space says of a field of its own level: a value, a parameter, or None."""
        return self.parameters.get(name, self.fixed.get(name))

    @property
    def names(self) -> list[str]:
        """Every field that the search decides, conditional ones included."""
        return list(self.all_parameters)

    @property
    def all_parameters(self) -> dict[str, Parameter]:
        """Every parameter by its field, conditional ones included."""
        seen: dict[str, Parameter] = {}
        _collect(self.parameters, seen)
        return seen

    def fields_at(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The fields where every parameter has the value that is chosen for it; those that do not exist there have
        none."""
        return self._in_fields(self._walk(_choose_from(chosen)))

    @staticmethod
    def label(name: str, parameter: Parameter) -> str:
        """What the sampler calls it: a share is not the field itself."""
        share_of = getattr(parameter, "of", None)
        return f"{name}_of_{share_of}" if share_of else name

    def _walk(self, choose: Callable[[str, Parameter], Any]) -> dict[str, tuple[Parameter, Any]]:
        """Choose a value for every parameter that exists given the choices before it."""
        chosen: dict[str, tuple[Parameter, Any]] = {}
        waiting = list(self.parameters.items())
        while waiting:
            name, parameter = waiting.pop(0)
            value = choose(name, parameter)
            chosen[name] = parameter, value
            if isinstance(parameter, Choice):
                waiting[:0] = parameter.below.get(value, {}).items()
        return chosen

    def _in_fields(self, chosen: Mapping[str, tuple[Parameter, Any]]) -> dict[str, Any]:
        fields = {name: canonical(value) if name == RECURRENCE else value for name, (_, value) in chosen.items()}
        for name, (parameter, value) in chosen.items():
            if isinstance(parameter, Range) and parameter.of is not None:
                whole = fields[parameter.of] if parameter.of in fields else self._fixed_or_default(parameter.of)
                if not isinstance(whole, int | float):
                    raise ValueError(
                        f"space: {name} is a share of {parameter.of}, which can be {whole!r}; that is no number."
                    )
                fields[name] = _part(value, whole)
        return fields

    def _fixed_or_default(self, name: str) -> Any:
        return self.fixed.get(name, TrialConfig.model_fields[name].default)


def read_space(given: Mapping[str, Any]) -> Space:
    """Check a space and give it types; the first thing wrong raises a ValueError with the whole sentence."""
    fixed: dict[str, Any] = {}
    parameters = _read_parameters(given, fixed)
    space = Space(fixed, parameters)
    _check_relations(space)
    return space


def _read_parameters(given: Mapping[str, Any], fixed: dict[str, Any] | None) -> dict[str, Parameter]:
    """Parameters of one level; plain values go to `fixed`, where that is not None."""
    parameters: dict[str, Parameter] = {}
    for name, value in given.items():
        if name not in TrialConfig.model_fields:
            raise ValueError(f"space: a trial has no field {name!r}; {nearest(name, TrialConfig.model_fields)}")
        if value in ([], {}):
            raise ValueError(f"space: {name} has no value to choose from; list at least one.")
        if isinstance(value, list):
            parameters[name] = Choice(_choices(name, value), {})
        elif isinstance(value, dict) and _RANGE_KEYS & value.keys():
            parameters[name] = _read_range(name, value)
        elif isinstance(value, dict):
            values = _choices(name, value)
            inner = [_read_parameters(_mapping(name, one, below), None) for one, below in value.items()]
            parameters[name] = Choice(values, dict(zip(values, inner, strict=True)))
        elif fixed is not None:
            fixed[name] = _checked(name, value)
        else:
            parameters[name] = Fixed(_checked(name, value))
    return parameters


def _read_range(name: str, given: Mapping[str, Any]) -> Range:
    unknown = [key for key in given if key not in _RANGE_KEYS]
    if unknown:
        raise ValueError(f"space: {name} has an unknown key {unknown[0]!r}; {nearest(unknown[0], _RANGE_KEYS)}")
    if "from" not in given or "to" not in given:
        raise ValueError(f"space: {name} is half a range; it needs both from and to.")
    of = given.get("of")
    if of is not None:
        if not isinstance(of, str) or of not in TrialConfig.model_fields:
            raise ValueError(
                f"space: {name} is a share of {of!r}, which is no field; {nearest(of, TrialConfig.model_fields)}"
            )
        low, high = (_number(name, given[end]) for end in ("from", "to"))
    else:
        low, high = (_checked(name, given[end]) for end in ("from", "to"))
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
        high = type(high)(first + (last - first) // width * width)  # the last value that the steps reach
    return Range(low, high, log, step, of)


def _check_relations(space: Space) -> None:
    """What no single field can see: every point of the space has to be a trial."""
    parameters: dict[str, Parameter] = {}
    _collect(space.parameters, parameters)
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
        space.trial_config(fields)  # raises a sentence of its own


def _part(share: float, whole: float) -> int:
    """A share such as 0.29 of 100 must give 29, though 0.29 * 100 is a little less in a float."""
    return math.floor(share * whole + 1e-9)


def _choose_from(chosen: Mapping[str, Any]) -> Callable[[str, Parameter], Any]:
    return lambda name, parameter: parameter.value if isinstance(parameter, Fixed) else chosen[name]


def _collect(parameters: Mapping[str, Parameter], into: dict[str, Parameter]) -> None:
    for name, parameter in parameters.items():
        known = into.setdefault(name, parameter)
        if isinstance(known, Fixed) and isinstance(parameter, Fixed):
            continue
        if known is not parameter and known != parameter:
            raise ValueError(f"space: {name} stands in two branches with different values; the sampler needs one set.")
        for below in getattr(parameter, "below", {}).values():
            _collect(below, into)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    field = TrialConfig.model_fields[name]
    kind: Any = Annotated[field.annotation, field]
    return TypeAdapter(kind)


def _checked(name: str, value: Any, section: str = "space") -> Any:
    """A value as a trial's field would take it."""
    try:
        return _adapter(name).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{section}: {name}: {describe(error.errors()[0])}") from None


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"space: {name} has {value!r} where a number is needed.")
    return number


def _choices(name: str, given: Iterable[Any]) -> tuple[Any, ...]:
    """Values as a trial's field would take them. A recurrence stays as it is written: Optuna goes on with a study only
    where every choice has its old name."""
    written = list(given)
    values = [_checked(name, one) for one in written]
    if len(set(values)) < len(values):
        raise ValueError(f"space: {name} lists a value twice.")
    return tuple(written if name == RECURRENCE else values)


def _as_written(name: str, wanted: Any, parameter: Parameter) -> Any:
    """The name that the space has for a recurrence; any other field's value as it is."""
    written = {canonical(value): value for value in parameter.extremes()} if name == RECURRENCE else {}
    return written.get(canonical(wanted), wanted)


def same_parameter(name: str, one: Any, other: Any) -> bool:
    """Whether two spaces say the same of a field, whatever names they have for a recurrence."""
    return _in_todays_words(name, one) == _in_todays_words(name, other)


def _in_todays_words(name: str, said: Any) -> Any:
    if name != RECURRENCE or not isinstance(said, Choice):
        return said
    below = {canonical(value): inner for value, inner in said.below.items()}
    return Choice(tuple(map(canonical, said.values)), below)


def _mapping(name: str, value: Any, below: Any) -> Mapping[str, Any]:
    if below is not None and not isinstance(below, dict):
        raise ValueError(f"space: {name} has {below!r} below {value!r}; parameters have to stand there, or nothing.")
    return below or {}
