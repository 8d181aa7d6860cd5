"""The search space: a trial's fields, each fixed, a choice, a range, or a choice with conditional parameters.

window: 300                                  fixed
window: [200, 300, 400]                      a choice
learning_rate: {from: 1e-5, to: 1e-3, log: true}
overlap: {from: 0, to: 0.5, step: 0.1, of: window}    a share of another field, rounded down
recurrence:                                  a choice; parameters below a value exist only with it
  none:
  pooled:
    l_ins: [1, 2, 4]
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from recur_tune.common.deprecated import with_current_names
from recur_tune.common.parsing import describe, nearest, parse
from recur_tune.config.trial import RENAMED, TrialConfig
from recur_tune.recurrences.registry import canonical

if TYPE_CHECKING:
    import optuna

_MOST_CORNERS = 20_000  # to check in advance; a space may have more
_MOST_SPACES = 4  # whose corners are remembered: a search's, and of those that it is compared with
_CORNERS: dict[str, tuple[TrialConfig, ...]] = {}  # by what a space says, the eldest first
RECURRENCE = "recurrence"  # the field whose values may have deprecated names


@dataclass(frozen=True)
class Choice:
    """One of several values; `below` has the conditional parameters of each."""

    values: tuple[Any, ...]
    below: Mapping[Any, Mapping[str, Parameter]]
    written: str = field(default="", compare=False)  # the field's deprecated name, where the space uses it

    def draw(self, name: str, trial: optuna.Trial) -> Any:
        """Let Optuna's sampler choose."""
        return trial.suggest_categorical(name, list(self.values))

    def random(self, rng: np.random.Generator) -> Any:
        """A value, uniformly."""
        return self.values[rng.integers(len(self.values))]

    def closest(self, wanted: Any) -> Any:
        """The nearest value; among words the wanted one, or the first."""
        if wanted in self.values:
            return wanted
        numbers = [value for value in self.values if isinstance(value, int | float)]
        if isinstance(wanted, int | float) and numbers:
            return min(numbers, key=lambda value: abs(value - wanted))
        return self.values[0]

    def extremes(self) -> tuple[Any, ...]:
        """The smallest and the largest value; all of them where they are words."""
        if all(isinstance(value, int | float) for value in self.values) and not self.below:
            return min(self.values), max(self.values)
        return self.values


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    of: str | None = None  # then the number is a share of that field
    written: str = field(default="", compare=False)  # the field's deprecated name, where the space uses it

    def draw(self, name: str, trial: optuna.Trial) -> float:
        """Let Optuna's sampler choose."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, step=int(self.step or 1), log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)

    def random(self, rng: np.random.Generator) -> float:
        """A number, uniformly on the range's scale."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        if self.log:  # an integer stands for all numbers that round to it
            less, more = (self.low - 0.5, self.high + 0.5) if whole else (self.low, self.high)
            number = math.exp(rng.uniform(math.log(less), math.log(more)))
            return min(max(round(number) if whole else number, self.low), self.high)
        if step := self.step or (1 if whole else None):
            steps = math.floor((self.high - self.low) / step + 1e-9)
            return min(self.low + int(rng.integers(steps + 1)) * step, self.high)
        return rng.uniform(self.low, self.high)

    def closest(self, wanted: Any) -> float:
        """The nearest number of the range."""
        if not isinstance(wanted, int | float):
            return self.low  # such as 'all' layers
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
    """A fixed value below a choice."""

    value: Any

    def draw(self, name: str, trial: optuna.Trial) -> Any:
        """Always the same."""
        return self.value

    def random(self, rng: np.random.Generator) -> Any:
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
    """Fixed fields, and parameters that the sampler chooses."""

    fixed: Mapping[str, Any]
    parameters: Mapping[str, Parameter]

    def draw(self, trial: optuna.Trial) -> dict[str, Any]:
        """Let Optuna choose every parameter that exists; gives a trial's fields."""
        drawn = self._walk(lambda name, parameter: parameter.draw(self.label(name, parameter), trial))
        return self._in_fields(drawn)

    def sample(
        self, rng: np.random.Generator, kept: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A random point in the sampler's own names, and its fields; values that are `kept` from another point stay
        where they exist."""
        point: dict[str, Any] = {}

        def choose(name: str, parameter: Parameter) -> Any:
            label = self.label(name, parameter)
            value = kept[label] if kept and label in kept else parameter.random(rng)
            if not isinstance(parameter, Fixed):
                point[label] = value
            return value

        fields = self._in_fields(self._walk(choose))
        return point, fields

    def closest(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The point nearest to the wanted fields, in the sampler's own names; other fields are left to the sampler."""
        return self._nearest(wanted)[0]

    def point(self, given: Mapping[str, Any], named: str = "first") -> dict[str, Any]:
        """The point with exactly these fields, in the sampler's own names; other fields are left to the sampler. Raises
        a ValueError where the space has no such trial; its message begins with `named`."""
        parameters: dict[str, Parameter] = {}
        collect(self.parameters, parameters)
        given = with_current_names(given, {old: new for old, new in RENAMED.items() if old not in parameters})
        for name in given:
            if name not in parameters and name not in self.fixed:
                raise ValueError(f"{named}: the space has no {name!r}; {nearest(name, [*parameters, *self.fixed])}")
            whole = getattr(parameters.get(name), "of", None)
            if whole in parameters and whole not in given:
                raise ValueError(f"{named}: {name} {given[name]} is a share of the {whole}; say which.")
        wanted = {name: checked(name, value, f"{named}: {name}") for name, value in given.items()}
        point, chosen = self._nearest(wanted)
        found = {**self.fixed, **self._in_fields(chosen)}
        for name, value in with_current_names(wanted, RENAMED).items():
            if name not in found:
                raise ValueError(f"{named}: {name} {value} exists only with a choice above it; say which.")
            same = math.isclose(value, found[name]) if isinstance(value, float) else value == found[name]
            if not same:
                raise ValueError(f"{named}: {name} {value} is not in the space; the nearest is {found[name]}.")
        return point

    def fields_of(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a point in the sampler's own names, without those that it leaves open. A fixed value is known
        where the choices above it are, though the sampler never sees it."""
        named: dict[str, Any] = {}
        below_open: set[str] = set()

        def choose(name: str, parameter: Parameter) -> Any:
            label = self.label(name, parameter)
            value = point.get(label, parameter.extremes()[0])
            if label in point or (isinstance(parameter, Fixed) and name not in below_open):
                named[name] = value
            elif isinstance(parameter, Choice):
                below_open.update(parameter.below.get(value, {}))
            return value

        fields = self._in_fields(self._walk(choose))
        names = with_current_names(named, RENAMED)
        return {name: value for name, value in fields.items() if name in names}

    def _nearest(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Parameter, Any]]]:
        """A point, and the result of `_walk` there."""
        point: dict[str, Any] = {}

        def choose(name: str, parameter: Parameter) -> Any:
            if name not in wanted:
                return parameter.extremes()[0]  # to find the parameters below it
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
        """The fields at all combinations of the parameters' ends, where costs have their extremes."""
        made = set()
        for chosen in itertools.islice(_ends(list(self.parameters.items())), _MOST_CORNERS):
            fields = self._in_fields(chosen)
            key = frozenset(fields.items())
            if key not in made:
                made.add(key)
                yield fields

    @cached_property
    def corner_configs(self) -> tuple[TrialConfig, ...]:
        """The trials at these corners. A process reads a search's file more than once, and these take seconds of it."""
        described = repr(self)  # which tells 1 from 1.0 and from true, and has the order of everything
        if described not in _CORNERS:
            made = tuple(self.trial_config(fields) for fields in self.corners())
            if len(_CORNERS) >= _MOST_SPACES:
                del _CORNERS[next(iter(_CORNERS))]
            _CORNERS[described] = made
        return _CORNERS[described]

    def trial_config(self, params: Mapping[str, Any]) -> TrialConfig:
        """The trial of these parameters and the fixed fields."""
        return parse(TrialConfig, {**self.fixed, **params})

    def path(self, name: str) -> str:
        """Where a field stands, as `--set` takes it: `space.recurrence.cache.cache_rows`. Where several branches have
        it, the first."""
        return ".".join(["space", *(_path(name, self.parameters) or [name])])

    def with_paths(self, refusal: object) -> str:
        """A trial's refusal with its fields as `--set` takes them."""
        named = (line.partition(": ") for line in str(refusal).splitlines())
        is_field = TrialConfig.model_fields.__contains__
        return "\n".join(f"{self.path(name) if is_field(name) else name}{colon}{why}" for name, colon, why in named)

    def field(self, name: str) -> Any:
        """The fixed value or parameter of a top-level field, or None."""
        return self.parameters.get(name, self.fixed.get(name))

    @property
    def names(self) -> list[str]:
        """The names of all parameters, conditional ones included."""
        return list(self.all_parameters)

    @property
    def all_parameters(self) -> dict[str, Parameter]:
        """All parameters by name, conditional ones included."""
        seen: dict[str, Parameter] = {}
        collect(self.parameters, seen)
        return seen

    def fields_at(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The fields with these values of parameters, without those that do not exist there."""
        return self._in_fields(self._walk(_choose_from(chosen)))

    @staticmethod
    def label(name: str, parameter: Parameter) -> str:
        """The sampler's name of a parameter: a share has its own, and a resumed study keeps deprecated names."""
        share_of, written = getattr(parameter, "of", None), getattr(parameter, "written", "") or name
        return f"{written}_of_{share_of}" if share_of else written

    def _walk(self, choose: Callable[[str, Parameter], Any]) -> dict[str, tuple[Parameter, Any]]:
        """Choose a value of every parameter that exists, given the choices before it."""
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
                        f"{self.path(name)}: it is a share of {parameter.of}, which can be {whole!r}, no number."
                    )
                fields[name] = _part(value, whole)
        return with_current_names(fields, RENAMED)

    def _fixed_or_default(self, name: str) -> Any:
        return self.fixed.get(name, TrialConfig.model_fields[name].default)


def _path(name: str, parameters: Mapping[str, Parameter]) -> list[str]:
    """The keys down to a field; none where it is not below these."""
    for own, parameter in parameters.items():
        written = getattr(parameter, "written", "") or own
        if own == name:
            return [written]
        for value, below in getattr(parameter, "below", {}).items():
            if inner := _path(name, below):
                return [written, str(value), *inner]
    return []


def _part(share: float, whole: float) -> int:
    """A share, rounded down: 0.29 of 100 is 29, although 0.29 * 100 is less as a float."""
    return math.floor(share * whole + 1e-9)


def _ends(waiting: list[tuple[str, Parameter]]) -> Iterator[dict[str, tuple[Parameter, Any]]]:
    """All combinations of the parameters' ends that exist. Branches alternate, so that the first combinations cover all
    of them."""
    if not waiting:
        yield {}
        return
    (name, parameter), rest = waiting[0], waiting[1:]
    turns = deque[tuple[Any, Iterator[dict[str, tuple[Parameter, Any]]]]]()
    for value in dict.fromkeys(parameter.extremes()):
        below = parameter.below.get(value, {}) if isinstance(parameter, Choice) else {}
        turns.append((value, _ends([*below.items(), *rest])))
    while turns:
        value, others = turns.popleft()
        if (more := next(others, None)) is not None:
            yield {name: (parameter, value), **more}
            turns.append((value, others))


def _choose_from(chosen: Mapping[str, Any]) -> Callable[[str, Parameter], Any]:
    return lambda name, parameter: parameter.value if isinstance(parameter, Fixed) else chosen[name]


def collect(parameters: Mapping[str, Parameter], into: dict[str, Parameter]) -> None:
    """Collect all parameters by name; one that occurs in two branches has to be the same in both."""
    for name, parameter in parameters.items():
        known = into.setdefault(name, parameter)
        if isinstance(known, Fixed) and isinstance(parameter, Fixed):
            continue
        if known is not parameter and known != parameter:
            raise ValueError(f"space: {name} stands in two branches with different values; the sampler needs one set.")
        for below in getattr(parameter, "below", {}).values():
            collect(below, into)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    field = TrialConfig.model_fields[name]
    kind: Any = Annotated[field.annotation, field]
    return TypeAdapter(kind)


def checked(name: str, value: Any, place: str = "") -> Any:
    """A value, validated as that field of a trial; a refusal begins with its place, by default that in the space."""
    if name in RENAMED:
        with_current_names({name: value}, RENAMED)  # refuses what it does not know
        return value
    try:
        return _adapter(name).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{place or f'space.{name}'}: {describe(error.errors()[0])}") from None


def _as_written(name: str, wanted: Any, parameter: Parameter) -> Any:
    """A value in the space's spelling, which may be a deprecated name of a recurrence."""
    written = {canonical(value): value for value in parameter.extremes()} if name == RECURRENCE else {}
    return written.get(canonical(wanted), wanted)


def same_parameter(name: str, one: Any, other: Any) -> bool:
    """Whether two spaces agree on a field; deprecated names of recurrences count as equal."""
    return _with_current_values(name, one) == _with_current_values(name, other)


def _with_current_values(name: str, said: Any) -> Any:
    if name != RECURRENCE or not isinstance(said, Choice):
        return said
    below = {canonical(value): inner for value, inner in said.below.items()}
    return Choice(tuple(map(canonical, said.values)), below)
