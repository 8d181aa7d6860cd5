"""A snapshot of a search's state at some place of its log, so that a reader reads only what came after.

It is a help and nothing more: one that is missing, damaged, of another version or of another log is as good as none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.files import write_text
from recur_tune.search.record.state import SearchState, TrialRecord, Validation

_READER = 1  # counts up when the same log leads to another state
_FINGERPRINT_BYTES = 256  # bytes of the log before the place, by which it is known again


def save_snapshot(file: Path, log: Path, state: SearchState, offset: int) -> None:
    """Keep the state that the log's first bytes, so many, lead to."""
    content = {"reader": _reader(), "offset": offset, "before": _fingerprint(log, offset), "state": _plain(state)}
    write_text(file, json.dumps(content, separators=(",", ":")))


def load_snapshot(file: Path, log: Path, until: int | None = None) -> tuple[SearchState, int]:
    """The state that was kept and its place in the log; the empty one and nought where there is none to use.

    One from beyond `until` is of no use.
    """
    try:
        content = json.loads(file.read_bytes())
        offset = content["offset"]
        known = content["reader"] == _reader() and content["before"] == _fingerprint(log, offset)
        if known and (until is None or offset <= until):
            return _state(content["state"]), offset
    except (OSError, ValueError, KeyError, TypeError, UserError):
        pass
    return SearchState(), 0


def _fingerprint(log: Path, offset: int) -> str:
    with log.open("rb") as lines:
        lines.seek(max(0, offset - _FINGERPRINT_BYTES))
        return hashlib.sha256(lines.read(min(offset, _FINGERPRINT_BYTES))).hexdigest()


def _reader() -> list[Any]:
    """Who can read it: a version with the very same fields."""
    return [_READER, *(field.name for kind in (SearchState, TrialRecord, Validation) for field in fields(kind))]


def _plain(state: SearchState) -> dict[str, Any]:
    return vars(state) | {"trials": _records(state.trials.values()), "repeats": _records(state.repeats.values())}


def _records(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    return [vars(one) | {"validations": [[v.tokens, v.metrics] for v in one.validations]} for one in trials]


def _state(plain: dict[str, Any]) -> SearchState:
    return SearchState(**plain | {"trials": _by_number(plain["trials"]), "repeats": _by_number(plain["repeats"])})


def _by_number(records: Iterable[dict[str, Any]]) -> dict[int, TrialRecord]:
    trials = (
        TrialRecord(**one | {"validations": [Validation(tokens, metrics) for tokens, metrics in one["validations"]]})
        for one in records
    )
    return {trial.number: trial for trial in trials}
