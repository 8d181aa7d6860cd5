"""The trials that a space's file begins with, where a changed field of the space excludes some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from recur_tune.common.errors import UserError
from recur_tune.search.record.space import Space
from recur_tune.search.record.space_parsing import read_space
from recur_tune.search.record.spec import with_overrides


class FirstTrials(NamedTuple):
    """The trials under `first` that are kept, how many are not, and why the first of these is not."""

    kept: list[Any]
    left_out: int = 0
    why: str = ""


def changed_fields(
    written: dict[str, Any], overrides: list[tuple[str, Any]], whose: str
) -> tuple[dict[str, Any], list[str]]:
    """A space's fields with some replaced, less its own first trials that these exclude; and what to tell of it.

    Args:
        whose: What remarks call the space.
    """
    fields, remarks = with_overrides(written, overrides), []
    changed = {key.partition(".")[0] for key, _ in overrides}
    if "space.corpus" in dict(overrides) and written.get("reference") and "reference" not in changed:
        told = ", ".join(f"{name} {value}" for name, value in written["reference"].items())
        remarks.append(
            f"reference: {told} was chosen for {whose}'s own corpus, and worse trials count for nothing; "
            "`reference: {}` lets the search choose."
        )
    if "first" in changed:
        return fields, remarks
    possible = possible_first_trials(fields, written)
    if possible.left_out:
        remarks.append(
            f"first: of the {len(written['first'])} trials that {whose} begins with, {possible.left_out} are left out, "
            f"which the changed space excludes: {possible.why}"
        )
        fields |= {"first": possible.kept}
    return fields, remarks


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
