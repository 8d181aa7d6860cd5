"""Data sets from the Hub, and the message where one cannot be fetched."""

from __future__ import annotations

from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.hub import use_cache_where_offline
from recur_tune.data.corpora.document import Split


def from_hub(name: str, path: str, config: str | None, split: Split, commit: str) -> Any:
    """A split of a data set as it was at a commit, so that its files are the same everywhere and at any time."""
    use_cache_where_offline()
    import datasets

    try:
        return datasets.load_dataset(path, config, split=split, revision=commit)
    except Exception as error:  # datasets and the Hub raise a dozen unrelated types for "cannot be had"
        raise unreachable(name, f"the Hub ({path})", "DIR", error) from error


def unreachable(name: str, where: str, local: str, error: Exception) -> UserError:
    """The message where the network fails; `local` is what a user writes behind the name to give files instead."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(
        f"corpus: {name} could not be fetched from {where} ({reason[:160]}); check the network, or give local "
        f"files as {name}:{local}."
    )
