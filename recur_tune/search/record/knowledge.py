"""Knowledge of earlier searches, as a new search's folder keeps it: `knowledge.json`.

Trials of searches whose numbers compare are data like the search's own. Of other searches it keeps learning curves, to
expect from; and of all what the search needs, so that it is resumed without the earlier folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.files import reading
from recur_tune.search.record.directory import WARM_START, SearchDirectory

Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class EarlierTrial:
    """A trial of an earlier search, as a point of the new space."""

    name: str
    point: dict[str, Any]  # by the sampler's names
    state: str  # complete or pruned
    values: list[float] | None  # of the objectives; None where it was pruned
    curve: Curve = ()  # tokens and quality; empty in the files of earlier versions


@dataclass(frozen=True)
class EarlierCurve:
    """A learning curve of an earlier search: the trial's fields as far as the new space has them, and its validations
    as shares of the budget and qualities."""

    fields: dict[str, Any]
    curve: Curve


@dataclass(frozen=True)
class EarlierSearch:
    """An earlier search whose numbers do not compare: its learning curves, to expect from, and the points of the new
    space that are nearest to its front."""

    name: str
    curves: tuple[EarlierCurve, ...]
    front: tuple[dict[str, Any], ...] = ()  # by the sampler's names


@dataclass(frozen=True)
class Knowledge:
    """What a search knows of earlier ones: trials that count as data, and searches to expect from."""

    told: tuple[EarlierTrial, ...] = ()
    searches: tuple[EarlierSearch, ...] = ()

    def as_json(self) -> str:
        """Its text in `knowledge.json`."""
        return json.dumps(asdict(self)) + "\n"


NOTHING = Knowledge()


def read_knowledge(text: str) -> Knowledge:
    """The knowledge in the text of `knowledge.json`."""
    known = json.loads(text)
    told = tuple(EarlierTrial(**{**one, "curve": _curve(one.get("curve", ()))}) for one in known["told"])
    searches = known.get("searches", ())  # earlier versions have none
    return Knowledge(
        told,
        tuple(
            EarlierSearch(
                one["name"],
                tuple(EarlierCurve(each["fields"], _curve(each["curve"])) for each in one["curves"]),
                tuple(one["front"]),
            )
            for one in searches
        ),
    )


def knowledge_of(directory: SearchDirectory) -> Knowledge:
    """What a search knows of earlier ones."""
    file = directory.path / WARM_START
    if not file.exists():
        return NOTHING
    try:
        with reading(file):
            return read_knowledge(file.read_text())
    except (KeyError, TypeError) as error:
        raise UserError(f"{file} could not be read (it lacks {error}); check that it is whole and readable.") from error


def _curve(pairs: Iterable[Any]) -> Curve:
    return tuple((float(at), float(quality)) for at, quality in pairs)
