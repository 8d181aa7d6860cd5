"""`wikitext-103`: Wikipedia articles, raw (Merity et al. 2016)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import Corpus, Document, Extent, Split
from recur_tune.data.corpora.fetching import from_hub
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.text_files import digest_of, look_at, read_bytes, read_texts

_COMMIT = "b08601e04326c79dfdd32d625aee71d232d685c3"


class WikiText(Corpus):
    """WikiText-103 raw, one document per article, from the Hub or from `wiki.SPLIT.raw` files in a folder."""

    name = "wikitext-103"
    _LOCAL: dict[Split, str] = {"train": "wiki.train", "validation": "wiki.valid", "test": "wiki.test"}

    def __init__(self, where: str = "") -> None:
        self.root = Path(where).expanduser() if where else None
        if self.root and not self.root.is_dir():
            raise UserError(
                f"corpus: {self.name}:{where} names no folder; write {self.name}:DIR with a .raw file per split."
            )

    def look(self, split: Split) -> Extent | None:
        """At the split's file, where it is a local one."""
        if self.root is None:
            return None
        return look_at([self._file(split)], f"the {split} split of {self.name}:{self.root}")

    def documents(self, split: Split) -> Iterator[Document]:
        """The articles in their order."""
        return (Document(text.encode()) for text in split_articles(self._lines(split)))

    def fingerprint(self, split: Split) -> str:
        """The Hub's own, or a digest of the file."""
        if self.root is None:
            return self._from_hub(split)._fingerprint
        return digest_of([read_bytes(self._file(split))])

    def _lines(self, split: Split) -> Iterator[str]:
        if self.root is None:
            return iter(self._from_hub(split)["text"])
        (text,) = read_texts([self._file(split)])
        return iter(text.decode().splitlines(keepends=True))

    def _from_hub(self, split: Split) -> Any:
        return from_hub(self.name, "Salesforce/wikitext", "wikitext-103-raw-v1", split, _COMMIT)

    def _file(self, split: Split) -> Path:
        assert self.root is not None
        for ending in (".raw", ".tokens"):
            if (path := self.root / f"{self._LOCAL[split]}{ending}").is_file():
                return path
        raise UserError(f"corpus: {self.root} has no {self._LOCAL[split]}.raw; wikitext-103:DIR needs one per split.")


def split_articles(lines: Iterator[str]) -> Iterator[str]:
    """WikiText's lines as articles: each begins with ` = Title = `, where ` = = Section = = ` does not."""
    article: list[str] = []
    for line in lines:
        if re.fullmatch(r" = [^=](.*[^=])? = \n?", line) and any(part.strip() for part in article):
            yield "".join(article)
            article = []
        article.append(line)
    if any(part.strip() for part in article):
        yield "".join(article)


WIKITEXT = CorpusKind(
    name="wikitext-103",
    summary="29,000 Wikipedia articles, raw (wikitext-103:DIR for local files)",
    needs="the Hub or files",
    open=WikiText,
)
