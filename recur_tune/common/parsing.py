"""Plain values and typed models: fields from YAML, flags or JSON are validated, and each error is one sentence."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from recur_tune.common.deprecated import with_current_names
from recur_tune.common.errors import Refusals, UserError

AnyModel = TypeVar("AnyModel", bound=BaseModel)


def parse(kind: type[AnyModel], fields: Mapping[str, Any]) -> AnyModel:
    """Build a validated model; each of its errors becomes one sentence, in a line of its own."""
    fields = with_current_names(fields, getattr(kind, "renamed", {}))
    known = kind.model_fields  # read once: pydantic builds it on each access, and a search reads thousands of trials
    refusals = Refusals()
    for key in fields:
        if key not in known:
            refusals.add(f"{key}: there is no such field; {nearest(key, known)}")
    try:
        made = kind(**{key: value for key, value in fields.items() if key in known})
    except ValidationError as error:
        for one in error.errors():
            refusals.add(_sentence(kind, one))
    if refusals:
        raise UserError(str(refusals))
    return made


def _sentence(kind: type[BaseModel], error: Mapping[str, Any]) -> str:
    """What pydantic says is wrong, with the dotted name of the field first."""
    if error["type"] == "value_error" and len(error["loc"]) <= 1 and _is_sentence(error["msg"]):
        return error["msg"].removeprefix("Value error, ")
    # An error's location names members of unions too; the sentence names fields alone.
    path: list[str] = []
    section: type[BaseModel] = kind
    for part in error["loc"]:
        path.append(str(part))
        inner = section.model_fields[str(part)].annotation if str(part) in section.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        section = inner
    name = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"{name}: there is no such field; {nearest(path[-1], section.model_fields)}"
    if error["type"] == "missing":
        return f"{name}: it is missing and has no default."
    return f"{name}: {describe(error)}"


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint for an unknown name: the shortest that begins with it, else those that contain it, else one spelled
    alike."""
    names, typed = list(known), str(name)
    longer = sorted((one for one in names if len(typed) >= _SHORTEST_PART and typed in one), key=len)
    near = [one for one in longer if one.startswith(typed)][:1] or longer[:_MOST]
    near = near or difflib.get_close_matches(typed, names, n=1)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(names)}."


_SHORTEST_PART = 3  # letters; shorter parts match too many names
_MOST = 3  # names in a hint


def describe(error: Mapping[str, Any]) -> str:
    """What pydantic says is wrong with one value, as the end of a sentence."""
    message = error["msg"].removeprefix("Value error, ")
    expected = message.removeprefix("Input should be ").removesuffix(".")
    verb = "" if expected.startswith(("is not", "has ")) else "is not "
    value = "" if expected.startswith("has ") else f"{error['input']!r} "
    return f"{value}{verb}{expected}."


def _is_sentence(message: str) -> bool:
    """A rule over several fields writes its own sentence, the field first."""
    return bool(re.match(r"Value error, \S+: ", message))


class _TwiceInYaml(Exception):
    """A key stands twice in a mapping."""


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, which refuses a key that stands twice: YAML itself would take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, with each key once."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise _TwiceInYaml(f"has {key.value!r} twice, in lines {lines[key.value]} and {line}; remove one.")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, named: str = "config") -> dict[str, Any]:
    """The fields in a YAML file; `named` is how the user gave it."""
    try:
        fields = yaml.load(path.read_text(), _StrictLoader)  # a safe loader
    except _TwiceInYaml as error:
        raise UserError(f"{named}: {path} {error}") from None
    except FileNotFoundError:
        raise UserError(f"{named}: there is no file {path}.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{named}: {path} is no readable YAML ({' '.join(str(error).split())}).") from None
    if fields is not None and not isinstance(fields, dict):
        raise UserError(f"{named}: {path} holds a {type(fields).__name__}; it needs lines of `field: value`.")
    return fields or {}


def write_yaml(path: Path, fields: Mapping[str, Any]) -> None:
    """Write fields as they are."""
    path.write_text(yaml.safe_dump(dict(fields), sort_keys=False))


def finite(value: Any) -> Any:
    """The same value with null for every NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
