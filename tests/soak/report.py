"""A soak on paper: a table of its faults, for people and for programs."""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from tests.soak.soak import Outcome, Struck


def write_report(folder: Path, outcome: Outcome) -> list[Path]:
    """report.json and report.md."""
    folder.mkdir(parents=True, exist_ok=True)
    found = asdict(outcome) | {"broken": outcome.broken, "machine": _machine()}
    files = {"report.json": json.dumps(found, indent=2) + "\n", "report.md": markdown(outcome)}
    for name, text in files.items():
        (folder / name).write_text(text)
    return [folder / name for name in files]


def markdown(outcome: Outcome) -> str:
    """The whole of it as a page."""
    verdict = f"{len(outcome.broken)} broken" if outcome.broken else "every invariant held"
    lines = [
        f"`make soak MINUTES={outcome.minutes:g} SEED={outcome.seed}` on {_machine()}: {len(outcome.struck)} faults, "
        f"{len(outcome.ended)} searches, {verdict}.",
        "",
        *table(outcome),
        "",
        "| minute | fault | what the search did | s | invariants |",
        "|---|---|---|---|---|",
        *(
            f"| {one.minute:.1f} | {one.what} | {one.then} | {one.seconds:.0f} | {_held(one.broken)} |"
            for one in outcome.struck
        ),
        "",
        "| search | trials | hypervolume | allocations | resumes | at its end |",
        "|---|---|---|---|---|---|",
        *(
            f"| {one.name} | {one.trials} | {one.hypervolume:.4f} | {one.allocations} | {one.resumes} "
            f"| {_held(one.broken)} |"
            for one in outcome.ended
        ),
    ]
    return "\n".join(lines) + "\n"


def table(outcome: Outcome) -> list[str]:
    """By kind of fault: how often, how the searches went on, the longest way back to work, what broke."""
    kinds: dict[str, list[Struck]] = defaultdict(list)
    for one in outcome.struck:
        if one.then:  # it was seen to its end
            kinds[one.kind].append(one)
    return [
        "| fault | times | by itself | after a resume | longest, s | broken |",
        "|---|---|---|---|---|---|",
        *(
            f"| {kind} | {len(all_of)} "
            f"| {sum('resume' not in one.then and 'did not' not in one.then for one in all_of)} "
            f"| {sum('resume' in one.then for one in all_of)} | {max(one.seconds for one in all_of):.0f} "
            f"| {sum(len(one.broken) for one in all_of)} |"
            for kind, all_of in sorted(kinds.items())
        ),
    ]


def _held(broken: list[str]) -> str:
    return "; ".join(broken).replace("|", "/") or "held"


def _machine() -> str:
    return f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
