"""How the next token is chosen: options that every command which writes text has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from recur_tune.common.errors import UserError

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])


def sampling_options(command: AnyCommand) -> AnyCommand:
    """--temperature, --top-k and --seed."""
    for option in (_seed, _top_k, _temperature):
        command = option(command)
    return command


def _number(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise UserError(f"temperature: {value} is not a number; choose one from 0 (the likeliest) to about 1.")
    return value


_temperature = click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.8,
    show_default=True,
    callback=_number,
    help="0 takes the likeliest.",
)
_top_k = click.option("--top-k", type=click.IntRange(min=1), help="Choose among so many of the likeliest only.")
_seed = click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="The same seed writes the same text.",
)
