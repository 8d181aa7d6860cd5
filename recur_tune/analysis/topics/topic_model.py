"""LDA: a text as a distribution over topics, which are fitted on the training split.

Fitting takes minutes, so a model is cached beside the prepared corpora, keyed by what it was fitted on. It is stored as
arrays and not as a pickle, so that opening a cache runs no code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import psi

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder, reading, whole_folder
from recur_tune.common.made_once import made_once
from recur_tune.data.corpora.document import Corpus
from recur_tune.data.corpora.registry import open_corpus
from recur_tune.data.tokens import word_starts

PIECE_WORDS = 300  # about the length of a continuation; a whole book has every topic
MOST_PIECES = 20_000  # evenly spread over the split
_MOST_WORDS = 10_000  # in the vocabulary: the most frequent
_WORD = r"[^\W\d_]{3,}"
_BATCH = 256
_SEEN = 100_000  # pieces over all passes
_MOST_PASSES = 30
_SEED = 0  # the same topics for texts of every seed
_FORMAT = 1


@dataclass(frozen=True)
class TopicModel:
    """Topics as distributions over words.

    Attributes:
        words: The vocabulary, in the order of the columns.
        weights_KV: How often each word was seen in each topic, the prior included.
    """

    words: list[str]
    weights_KV: np.ndarray

    def counts(self, texts: Sequence[str]) -> Any:
        """How often each word of the vocabulary is in each text: a sparse matrix."""
        from sklearn.feature_extraction.text import CountVectorizer

        return CountVectorizer(vocabulary=self.words, token_pattern=_WORD).transform(texts)

    def infer(self, counts: Any) -> np.ndarray:
        """Topic distributions, [texts, topics]; uniform for a text without a known word."""
        from sklearn.decomposition import LatentDirichletAllocation

        topics, words = self.weights_KV.shape
        lda = LatentDirichletAllocation(topics)
        # The attributes that a fit would set.
        lda.components_, lda.n_features_in_, lda.doc_topic_prior_ = self.weights_KV, words, 1 / topics
        lda.exp_dirichlet_component_ = np.exp(psi(self.weights_KV) - psi(self.weights_KV.sum(1, keepdims=True)))
        return lda.transform(counts.astype(np.float64))

    def title(self, topic: int, words: int = 5) -> str:
        """Its most frequent words."""
        return ", ".join(self.words[word] for word in np.argsort(-self.weights_KV[topic], kind="stable")[:words])


def topic_model(
    corpus_name: str, topics: int, progress: Callable[[int, int], None] = lambda seen, total: None
) -> TopicModel:
    """The model of a corpus's training split, from the cache or fitted now; `progress` gets the pieces seen, and of how
    many."""
    import sklearn

    corpus = open_corpus(corpus_name)
    how = [PIECE_WORDS, MOST_PIECES, _MOST_WORDS, _WORD, _BATCH, _SEEN, _MOST_PASSES, _SEED, sklearn.__version__]
    key = json.dumps([_FORMAT, corpus.fingerprint("train"), topics, *how])
    digest = hashlib.sha256(key.encode()).hexdigest()[:20]
    folder = cache_folder() / f"{re.sub(r'[^a-z0-9-]', '-', corpus.name)}-topics-{digest}"
    what = f"the train split of {corpus_name}"
    made_once(folder, lambda: _keep(fit(_pieces(corpus), topics, what, progress), folder))
    with reading(folder):
        return TopicModel(json.loads((folder / "words.json").read_text()), np.load(folder / "weights.npy"))


def fit(
    pieces: Sequence[str], topics: int, what: str,
    progress: Callable[[int, int], None] = lambda seen, total: None,
) -> TopicModel:  # fmt: skip
    """Online variational Bayes over several passes; `what` is how a refusal calls the text."""
    from sklearn.decomposition import LatentDirichletAllocation
    from sklearn.feature_extraction.text import CountVectorizer

    # Words in a single piece, or in most pieces, do not tell topics apart.
    counter = CountVectorizer(
        token_pattern=_WORD, stop_words="english", min_df=2, max_df=0.5, max_features=_MOST_WORDS
    )  # fmt: skip
    try:
        counts = counter.fit_transform(pieces)
    except ValueError:  # no word is left
        counts = None
    if counts is None or counts.shape[1] < topics:
        found = 0 if counts is None else counts.shape[1]
        raise UserError(
            f"topics: {topics} cannot be told apart by the {found} words that {what} has often enough; give fewer "
            "topics or more text."
        )
    lda = LatentDirichletAllocation(
        topics, learning_method="online", total_samples=len(pieces), batch_size=_BATCH, random_state=_SEED
    )
    random, passes = np.random.default_rng(_SEED), max(1, min(_MOST_PASSES, _SEEN // len(pieces)))
    seen, total = 0, passes * len(pieces)
    progress(seen, total)
    for _ in range(passes):
        order = random.permutation(len(pieces))
        for begin in range(0, len(order), _BATCH):
            batch = order[begin : begin + _BATCH]
            lda.partial_fit(counts[batch])
            seen += len(batch)
            progress(seen, total)
    return TopicModel(counter.get_feature_names_out().tolist(), lda.components_)


def cut(data: bytes, words: int = PIECE_WORDS) -> list[bytes]:
    """A document in pieces of so many words; the last may be shorter."""
    starts = np.flatnonzero(word_starts(data))[::words].tolist()
    return [data[begin:end] for begin, end in zip(starts, [*starts[1:], None], strict=False)]


def _pieces(corpus: Corpus) -> list[str]:
    """Pieces of the training split; it is read twice, so that only the chosen ones need memory."""
    total = sum(len(cut(document.data)) for document in corpus.documents("train"))
    wanted = set(np.linspace(0, total - 1, min(total, MOST_PIECES)).astype(int).tolist())
    all_pieces = (piece for document in corpus.documents("train") for piece in cut(document.data))
    return [piece.decode("utf-8", errors="replace") for at, piece in enumerate(all_pieces) if at in wanted]


def _keep(model: TopicModel, folder: Path) -> None:
    with whole_folder(folder) as partial:
        (partial / "words.json").write_text(json.dumps(model.words))
        np.save(partial / "weights.npy", model.weights_KV)
