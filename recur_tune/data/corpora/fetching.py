"""Data sets from the Hub, and the message where one cannot be fetched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.hub import check_downloads, refused_by_hub, use_cache_where_offline
from recur_tune.data.corpora.document import Split


def from_hub(name: str, path: str, config: str | None, split: Split, commit: str) -> Any:
    """A split of a data set as it was at a commit, so that its files are the same everywhere and at any time."""
    use_cache_where_offline()
    import datasets

    try:
        rows = datasets.load_dataset(path, config, split=split, revision=commit)
    except Exception as error:  # datasets and the Hub raise a dozen unrelated types for "cannot be had"
        check_downloads("corpus", name, "dataset", path)
        if refusal := refused_by_hub(error):
            raise UserError(f"corpus: {name} ({path}) {refusal}, or give local files as {name}:DIR.") from error
        raise unreachable(name, f"the Hub ({path})", "DIR", error) from error
    try:
        check_downloads("corpus", name, "dataset", path)
    except UserError:
        for made in rows.cache_files:  # of files that were not kept
            shutil.rmtree(Path(made["filename"]).parent, ignore_errors=True)
        raise
    return rows


def unreachable(name: str, where: str, local: str, error: Exception) -> UserError:
    """The message where the network fails; `local` is what a user writes behind the name to give files instead."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(
        f"corpus: {name} could not be fetched from {where} ({reason[:160]}); check the network, or give local "
        f"files as {name}:{local}."
    )
