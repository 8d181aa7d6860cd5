"""Corpora: one file a corpus. A package that brings one imports what it is made of from here."""

from recur_tune.data.corpora.document import SPLITS, Corpus, Document, Extent, Split
from recur_tune.data.corpora.kind import CorpusKind

__all__ = ["SPLITS", "Corpus", "CorpusKind", "Document", "Extent", "Split"]
