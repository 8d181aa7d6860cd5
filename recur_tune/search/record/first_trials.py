"""The trials that a space's file begins with, where a changed field of the space excludes some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from recur_tune.common.errors import UserError
from recur_tune.search.record.space import Space
from recur_tune.search.record.space_parsing import read_space


class FirstTrials(NamedTuple):
    """The trials under `first` that are kept, how many are not, and why the first of these is not."""

    kept: list[Any]
    left_out: int = 0
    why: str = ""


def possible_first_trials(fields: Mapping[str, Any], before: Mapping[str, Any]) -> FirstTrials:
    """Of a spec's `first` all but those that a change of the space excludes. What is wrong in itself stays, to be
    refused.

    Args:
        before: The fields before the change.
    """
    first = fields.get("first") or []
    if not isinstance(first, list) or fields.get("space") == before.get("space"):
        return FirstTrials(first)
    now, then = _space(fields), _space(before)
    reasons = ["" if _exclusion(then, trial) else _exclusion(now, trial) for trial in first]
    kept = [trial for why, trial in zip(reasons, first, strict=True) if not why]
    return FirstTrials(kept, len(first) - len(kept), next(filter(None, reasons), ""))


def _space(fields: Mapping[str, Any]) -> Space | None:
    """The space; None where it is wrong."""
    try:
        return read_space(fields["space"])
    except (UserError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _exclusion(space: Space | None, trial: Any) -> str:
    """Why a trial is not in a space; empty where it is, and where nobody can tell."""
    try:
        if space is not None:
            space.point(trial, named="")
    except (UserError, ValueError, TypeError, AttributeError) as error:
        return str(error).removeprefix(": ")
    return ""
