"""`pg19`: books before 1919 (Rae et al. 2019), cut to the paper's subset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recur_tune.data.corpora.document import Corpus, Document, Split
from recur_tune.data.corpora.fetching import from_hub
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.text_folder import TextFolder

TRAINING_BOOKS = 1250
VALIDATION_TOKENS = 15_000
_COMMIT = "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8"


class Pg19Folder(TextFolder):
    """A folder of PG-19 books, cut to the paper's subset."""

    def __init__(self, where: str) -> None:
        super().__init__(where, name="pg19", limits={"validation": VALIDATION_TOKENS})

    def files(self, split: Split) -> list[Path]:
        """The first 1250 training books by file name; all of the other splits."""
        files = super().files(split)
        return files[:TRAINING_BOOKS] if split == "train" else files


class Pg19Hub(Corpus):
    """PG-19 from the Hub, cut to the paper's subset: the first 1250 training books by file name, 15,000 tokens
    of each validation book, the whole test set."""

    name = "pg19"

    def __init__(self, rows: Callable[[Split], Any] | None = None) -> None:
        # A Parquet mirror: the original is a loading script, which `datasets` no longer runs.
        self._rows = rows or (lambda split: from_hub("pg19", "emozilla/pg19", None, split, _COMMIT))

    def documents(self, split: Split) -> Iterator[Document]:
        """Books in the order of their file names, `10.txt` before `9.txt`, as the paper's listing was."""
        rows = self._rows(split)
        book_file = [f"{url.rstrip('/').rsplit('/', 1)[-1]}.txt" for url in rows["url"]]
        order = sorted(range(len(book_file)), key=book_file.__getitem__)
        for row in order[:TRAINING_BOOKS] if split == "train" else order:
            yield Document(rows[row]["text"].encode())

    def fingerprint(self, split: Split) -> str:
        """The Hub's own, and the rule for the subset."""
        return f"{self._rows(split)._fingerprint} first {TRAINING_BOOKS}"

    def token_limit(self, split: Split) -> int | None:
        """The paper's cut of the validation books."""
        return VALIDATION_TOKENS if split == "validation" else None


def _open(where: str) -> Corpus:
    return Pg19Folder(where) if where else Pg19Hub()


PG19 = CorpusKind(
    name="pg19",
    summary="books before 1919, the paper's subset of 1250 (pg19:DIR for local files)",
    needs="the Hub or files",
    open=_open,
)
