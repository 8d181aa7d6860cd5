"""Options that commands share; a trial's are made from its fields, so that a flag, a YAML key and a field are one."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import click
import yaml
from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from recur_tune.cli.display import stderr
from recur_tune.common.deprecated import warn_once, with_current_names
from recur_tune.common.errors import UserError
from recur_tune.common.parsing import describe, finite, read_yaml
from recur_tune.common.units import format_count, parse_count, parse_size
from recur_tune.config.trial import RENAMED, Count, Size, TrialConfig
from recur_tune.recurrences.registry import names_of
from recur_tune.search.record.directory import SearchDirectory, results_folder

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])

results_option = click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Folder of all searches. [default: $RECUR_TUNE_RESULTS or ./results]",
)
under_option = click.option(
    "--under", metavar="COST=VALUE,...", help="Limits on costs, as flops_per_token=55M,peak_memory=10GiB."
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else there."
)


class Amount(click.ParamType):
    """A number with a unit, as 8k or 2GB: what a field of that type takes."""

    def __init__(self, name: str, kind: Any, parser: Callable[[Any], Any]) -> None:
        self.name, self.parser, self._adapter = name, parser, TypeAdapter(kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; anything else is refused in one sentence."""
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            raise UserError(f"{param.name if param else self.name}: {describe(error.errors()[0])}") from None


COUNT, SIZE = Amount("amount", Count, parse_count), Amount("size", Size, parse_size)
_NAMES = {int: "INTEGER", float: "FLOAT", str: "TEXT"}  # as click calls them


def finite_or(advice: str) -> Callable[[click.Context, click.Parameter, float], float]:
    """An option's callback that refuses infinity and NaN."""

    def check(context: click.Context, parameter: click.Parameter, value: float) -> float:
        if not math.isfinite(value):
            raise UserError(f"{parameter.name}: {value} is not finite; {advice}")
        return value

    return check


_temperature = click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.8,
    show_default=True,
    callback=finite_or("choose one from 0 (the likeliest) to about 1."),
    help="Sampling temperature; 0 takes the likeliest token.",
)
_top_k = click.option("--top-k", type=click.IntRange(min=1), help="Sample among the k likeliest tokens only.")
_seed = click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="The same seed writes the same text.",
)


def sampling_options(command: AnyCommand) -> AnyCommand:
    """--temperature, --top-k and --seed."""
    for option in (_seed, _top_k, _temperature):
        command = option(command)
    return command


def trial_options(leave_out: Iterable[str] = (), from_preset: Iterable[str] = ()) -> Callable[[AnyCommand], AnyCommand]:
    """One flag for every field of a trial; values arrive as text in a dict `fields`, only those that were given.

    The defaults of the fields `from_preset` are a preset's, and the help says so.
    """
    left_out = set(leave_out)
    names = [name for name in TrialConfig.model_fields if name not in left_out]
    names += [old for old, change in RENAMED.items() if change.to not in left_out]

    def decorate(command: AnyCommand) -> AnyCommand:
        def gather(**arguments: Any) -> Any:
            given = {name: arguments.pop(name) for name in names}
            fields = {name: value for name, value in given.items() if value is not None}
            return command(fields=fields, **arguments)

        gather.__name__, gather.__doc__ = command.__name__, command.__doc__
        gather.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
        for name in reversed(names):
            flag = f"--{name.replace('_', '-')}"
            if name in RENAMED:
                gather = click.option(flag, name, hidden=True)(gather)
                continue
            field = TrialConfig.model_fields[name]
            gather = click.option(
                flag, name, metavar=_metavar(field), help=_help(name, field, name in set(from_preset))
            )(gather)
        return gather  # type: ignore[return-value]

    return decorate


def deprecated_option(old: str, new: str, removed_in: str, **how: Any) -> Callable[[AnyCommand], AnyCommand]:
    """An option's old name, which the help does not show; `how` is what the option takes."""

    def decorate(command: AnyCommand) -> AnyCommand:
        @wraps(command)
        def understanding(**arguments: Any) -> Any:
            value = arguments.pop(old)
            if value is not None:
                warn_once(f"--{old}", f"--{new}", removed_in)
                arguments[new] = value
            return command(**arguments)

        return click.option(f"--{old}", hidden=True, **how)(understanding)  # type: ignore[return-value]

    return decorate


def fields_from(config: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """A file's fields with the command line's over them."""
    given = read_yaml(config) if config else {}
    return with_current_names(given, RENAMED) | with_current_names(flags, RENAMED)


def read_settings(settings: Iterable[str]) -> list[tuple[str, Any]]:
    """Names and values of --set, parsed as YAML."""
    read: list[tuple[str, Any]] = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UserError(f"set: {setting!r} is not of the form KEY=VALUE, as budget.tokens=20M.")
        try:
            read.append((key, yaml.safe_load(value)))
        except yaml.YAMLError:
            raise UserError(f"set: {value!r} is no readable value for {key}.") from None
    return read


def open_search(results: Path | None, name: str | None) -> SearchDirectory:
    """The search of that name; without one the latest, which is told."""
    directory = SearchDirectory.open_named(results_folder(results), name)
    if name is None:
        stderr.print(f"the latest search: {directory.name}", soft_wrap=True)
    return directory


def command_line(command: str, directory: SearchDirectory) -> str:
    """A command for a search, with --results where it is needed."""
    folder = directory.path.parent
    where = "" if folder == results_folder() else f" --results {shlex.quote(str(folder))}"
    return f"recur-tune {command} {directory.name}{where}"


def print_json(value: dict[str, Any]) -> None:
    """Print JSON, with null for NaN and infinity."""
    click.echo(json.dumps(finite(value), indent=2))


def _help(name: str, field: FieldInfo, from_preset: bool) -> str:
    owners = ", ".join(names_of(name))
    text = f"{field.description} ({owners})" if owners else f"{field.description}"
    if from_preset:
        return f"{text.partition('; default:')[0]}. [default: the preset's]"
    if field.default is None:
        return f"{text}."
    default = (
        format_count(field.default) if isinstance(field.default, int) and field.default >= 10**4 else field.default
    )
    return f"{text}. [default: {default}]"


def _metavar(field: FieldInfo) -> str:
    return "|".join(dict.fromkeys(_kinds(field.annotation, field.metadata)))


def _kinds(annotation: Any, metadata: Iterable[Any] = ()) -> Iterator[str]:
    """What a value may be, one by one: words, or the name of a kind."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _kinds(inner[0], inner[1:])
    elif origin in (Union, UnionType):
        for one in inner:
            yield from _kinds(one)
    elif origin is Literal:
        yield from map(str, inner)
    elif annotation is bool:
        yield from ("true", "false")
    elif annotation is not NoneType:
        parsers = [one.func for one in metadata if isinstance(one, BeforeValidator)]
        amounts = [amount.name.upper() for amount in (COUNT, SIZE) if amount.parser in parsers]
        yield from amounts or [_NAMES.get(annotation, "TEXT")]
