"""Registry of corpora: built-in ones, and those of installed packages.

A corpus is named `NAME` or `NAME:WHERE`. Without WHERE a synthetic one is made on the spot, and the others come from
the Hub through `datasets`, or from their home page; with it they are read from local files.

A new one is a file in here and a line in `_OURS`, or a package with an entry point in the group `recur_tune.corpora`
that names a `CorpusKind`.
"""

from __future__ import annotations

from collections.abc import Sequence

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import nearest
from recur_tune.common.registry import Registry, check_problems
from recur_tune.data.corpora.document import Corpus, Extent, Split
from recur_tune.data.corpora.enwik8 import ENWIK8, TEXT8
from recur_tune.data.corpora.facts import FACTS
from recur_tune.data.corpora.hotpotqa import HOTPOTQA
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.pg19 import PG19
from recur_tune.data.corpora.recall import RECALL
from recur_tune.data.corpora.series import ETT, SERIES, WEATHER
from recur_tune.data.corpora.spans import SPANS
from recur_tune.data.corpora.squad import SQUAD
from recur_tune.data.corpora.stdlib import STDLIB
from recur_tune.data.corpora.tales import TALES
from recur_tune.data.corpora.text_folder import TEXT
from recur_tune.data.corpora.wikitext import WIKITEXT

__all__ = ["CORPORA", "REGISTRY", "TRAINED_ON", "CorpusKind", "check", "check_corpus", "kind_of", "open_corpus"]

TRAINED_ON: tuple[Split, ...] = ("train", "validation")
_OURS = (
    STDLIB,
    TALES,
    RECALL,
    WIKITEXT,
    PG19,
    ENWIK8,
    TEXT8,
    TEXT,
    HOTPOTQA,
    SQUAD,
    SPANS,
    FACTS,
    ETT,
    WEATHER,
    SERIES,
)


def _refusal(kind: CorpusKind, known: object) -> str | None:
    """What follows a colon is given to `open`."""
    return f"has a colon in its name {kind.name!r}" if ":" in kind.name else None


REGISTRY = Registry("corpus", "recur_tune.corpora", CorpusKind, _OURS, _refusal)
CORPORA, _PROBLEMS = REGISTRY.load()


def check() -> None:
    """Refuse to continue with an installed corpus that cannot be used."""
    check_problems(_PROBLEMS)


def kind_of(name: str) -> CorpusKind | None:
    """The kind of a corpus that a user named, None where there is none of that name."""
    return CORPORA.get(name.partition(":")[0])


def open_corpus(name: str) -> Corpus:
    """The corpus that a user named; a sentence with the nearest known name where there is none."""
    called, _, where = name.partition(":")
    if (kind := kind_of(name)) is None:
        raise UserError(f"corpus: there is no corpus {called!r}; {nearest(called, CORPORA)}")
    return kind.open(where)


def check_corpus(name: str, splits: Sequence[Split] = TRAINED_ON) -> dict[Split, Extent]:
    """Refuse a corpus of which a split is missing, empty or no text, before anything is made of it; and how large the
    splits are, as far as they lie in files here."""
    corpus = open_corpus(name)
    seen = {split: corpus.look(split) for split in splits}
    return {split: extent for split, extent in seen.items() if extent is not None}
