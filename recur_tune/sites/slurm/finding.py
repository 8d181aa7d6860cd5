"""What a site's check found on one node."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one probe on one node."""

    node: str
    what: str
    good: bool
    seen: str

    def __str__(self) -> str:
        return f"{'ok    ' if self.good else 'FAILED'}  {self.node:<12} {self.what:<8} {self.seen}"


def as_json(findings: Iterable[Finding]) -> str:
    """Findings as text, for another node."""
    return json.dumps([vars(finding) for finding in findings])


def from_json(text: str) -> list[Finding]:
    """Findings that another node wrote."""
    return [Finding(**one) for one in json.loads(text)]
