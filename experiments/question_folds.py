"""HotpotQA's questions in folds for cross-validation, and which of them can be answered at all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from recur_tune.data.corpora.hotpotqa import CLOSED, parse_hotpotqa

VALIDATION_ONE_IN = 8  # of the questions that are not for testing
_SEED = 0  # always the same folds, so that every base and every call is asked alike


def folds_of(rows: Sequence[Any], folds: int) -> list[dict[str, list[Any]]]:
    """Each fold with its three splits; every question is for testing in one of them."""
    order = list(rows)
    random.Random(_SEED).shuffle(order)
    found = []
    for fold in range(folds):
        others = [row for at, row in enumerate(order) if at % folds != fold]
        train = [row for at, row in enumerate(others) if at % VALIDATION_ONE_IN]
        found.append({"train": train, "validation": others[::VALIDATION_ONE_IN], "test": order[fold::folds]})
    return found


def name_of(row: Any) -> str:
    """By which answers are known."""
    return str(row.get("_id") or row.get("id"))


def answerable_of(rows: Sequence[Any]) -> set[str]:
    """Names of the questions that have a text, and an answer that stands in it or is yes or no."""
    return {
        one.name
        for one in parse_hotpotqa(rows)
        if any(map(str.strip, one.paragraphs)) and (one.spans or CLOSED.issuperset(one.answers))
    }
