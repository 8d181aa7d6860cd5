"""What the tests of the corpora share: splits made of arrays, folders of text and a small trained tokenizer."""

from __future__ import annotations

import urllib.error
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recur_tune.common.windowing import Windowing
from recur_tune.data.corpora.document import Split
from recur_tune.data.corpora.registry import open_corpus
from recur_tune.data.tokens import TokenisedSplit

# One-, two-, three- and four-byte characters, joined letters, and every kind of ASCII space between words.
MULTIBYTE = "Grüße aus Zürich,\n\tnaïve café — 東京 タワー\r\n\n👩‍🚀 flies  to the 🌙.\x0bДа\x0cнет "


def windowings(largest: int = 12) -> st.SearchStrategy[Windowing]:
    return st.integers(1, largest).flatmap(
        lambda size: st.builds(Windowing, st.just(size), overlap=st.integers(0, size - 1))
    )


def numbered_split(lengths: Sequence[int]) -> TokenisedSplit:
    """Documents of these lengths whose token at index i is i + 1, so that a token tells its place and 0 is padding."""
    total = sum(lengths)
    return TokenisedSplit(
        tokens=np.arange(1, total + 1),
        word_starts=np.ones(total, dtype=np.uint16),
        byte_lengths=np.ones(total, dtype=np.uint16),
        document_starts=np.cumsum([0, *lengths]),
        answers=np.zeros(0, dtype=np.int64),
    )


def text_folder(root: Path, **splits: list[str] | list[bytes]) -> str:
    """Write each split as a folder with one file per document; return the corpus's name."""
    for split, documents in splits.items():
        (root / split).mkdir(parents=True, exist_ok=True)
        for number, document in enumerate(documents):
            data = document.encode() if isinstance(document, str) else document
            (root / split / f"{number:03}.txt").write_bytes(data)
    return f"text:{root}"


def save_merging_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer in the manner of GPT-2's, with merges within and across multi-byte characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([MULTIBYTE, "the rain falls on the old town and it was A "] * 5, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def texts(name: str, split: Split) -> list[bytes]:
    return [document.data for document in open_corpus(name).documents(split)]


def no_network(*_: object, **__: object) -> NoReturn:
    """In place of what opens an address."""
    raise urllib.error.URLError("no network in tests")
