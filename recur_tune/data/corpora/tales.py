"""`tales`: made-up tales, each of one hero in one scene, small enough for a base that is pretrained in a minute.

Who it is and where it plays stay the same from the first sentence to the last, and every short window has to find out
anew. So what the windows before it knew is worth passing on, as it is in a book; but here 600,000 bytes teach a model
of 175,000 weights nearly all the words and, as far as its context goes, that hero and scene stay. The splits share the
words, not the tales.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from recur_tune.data.corpora.document import SPLITS, Corpus, Document, Split
from recur_tune.data.corpora.kind import CorpusKind, without_options

HEROES = "Ada Ben Cleo Dora Emil Finn Gwen Hugo"
SCENES = (  # of each its things, the deeds that are done to them, and its places
    ("boat net sail rope", "hauled mended", "reef harbour"),
    ("cow goat cart plough", "moved counted", "barn orchard"),
    ("sword crown horse shield", "hid stole", "throne moat"),
    ("soup bread pan onion", "stirred tasted", "stove cellar"),
    ("train signal lamp engine", "stopped painted", "station tunnel"),
    ("owl fox oak berry", "followed found", "creek cave"),
    ("book map pen poem", "opened forgot", "library classroom"),
    ("camel tent drum scarf", "lost buried", "dune oasis"),
)
_TALES = {"train": 400, "validation": 24, "test": 24}
_BYTES = 2000  # a tale ends with the sentence that reaches so many


class TalesCorpus(Corpus):
    """The documents described above; the same everywhere."""

    name = "tales"

    def documents(self, split: Split) -> Iterator[Document]:
        """Tales drawn from a seed of the split's own."""
        random = np.random.default_rng(SPLITS.index(split))
        for _ in range(_TALES[split]):
            yield Document(_tale(random).encode())

    def fingerprint(self, split: Split) -> str:
        """The tales are a function of the words and the split alone."""
        return hashlib.sha256(f"{split} {HEROES} {SCENES} {_TALES[split]} {_BYTES} 1".encode()).hexdigest()


def _tale(random: np.random.Generator) -> str:
    def one(words: str) -> str:
        listed = words.split()
        return listed[random.integers(len(listed))]

    hero, (things, deeds, places) = one(HEROES), SCENES[random.integers(len(SCENES))]
    tale = ""
    while len(tale) < _BYTES:
        sentences = (
            f"{hero} {one(deeds)} the {one(things)}. ",
            f"{hero} {one(deeds)} the {one(things)} near the {one(places)}. ",
            f"The {one(things)} lay behind the {one(places)}. ",
        )
        tale += sentences[random.integers(len(sentences))]
    return tale


TALES = CorpusKind(
    name="tales",
    summary="synthetic: made-up tales, each of one hero in one scene, which short windows soon forget",
    needs="nothing",
    open=without_options(TalesCorpus()),
)
