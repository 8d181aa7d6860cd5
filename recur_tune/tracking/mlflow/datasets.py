"""What a search's trials read, as MLflow's datasets: one for each split, known by what is in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from recur_tune.data.corpora.document import Split

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow.entities import DatasetInput

CONTEXTS: dict[Split, str] = {"train": "training", "validation": "validation"}
UNREAD = "unread"  # in the place of a digest, where the corpus is not at hand


def digests(corpus: str) -> dict[str, str]:
    """By split, what changes whenever the text does. A corpus is on the machine that trains, and not on every other."""
    return {split: _digest(corpus, split) for split in CONTEXTS}


def _digest(corpus: str, split: Split) -> str:
    from recur_tune.data.corpora.registry import open_corpus

    try:
        opened = open_corpus(corpus)
        key = f"{split} {opened.fingerprint(split)} {opened.token_limit(split)}"
    except Exception:  # files, networks and the Hub fail in many ways, and no run is worth less for it
        return UNREAD
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def dataset_inputs(corpus: str, known: Mapping[str, str]) -> list[DatasetInput]:
    """A corpus as what a run reads."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    kind, _, where = corpus.partition(":")
    source = {"uri": where} if where else {"corpus": kind}
    return [
        DatasetInput(
            Dataset(kind, known[split], "local" if where else "recur-tune", json.dumps(source)),
            [InputTag("mlflow.data.context", context)],
        )
        for split, context in CONTEXTS.items()
    ]
