"""MLflow's datasets of a search: one for each split, identified by a digest of its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from recur_tune.data.corpora.document import Split

if TYPE_CHECKING:  # importing MLflow takes seconds
    from mlflow.entities import DatasetInput

CONTEXTS: dict[Split, str] = {"train": "training", "validation": "validation"}
UNREAD = "unread"  # instead of a digest, where the corpus is not on this machine


def digests(corpus: str) -> dict[str, str]:
    """A digest of each split's text. Not every machine has the corpus."""
    return {split: _digest(corpus, split) for split in CONTEXTS}


def _digest(corpus: str, split: Split) -> str:
    from recur_tune.data.corpora.registry import open_corpus

    try:
        opened = open_corpus(corpus)
        key = f"{split} {opened.fingerprint(split)} {opened.token_limit(split)}"
    except Exception:  # files, networks and the Hub fail in many ways, and a run is logged all the same
        return UNREAD
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def dataset_inputs(corpus: str, known: Mapping[str, str]) -> list[DatasetInput]:
    """A corpus as a run's inputs."""
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
