"""Tokenizers: bytes, or any Hugging Face tokenizer by Hub name or folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, GPT2TokenizerFast, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from recur_tune.common.errors import UserError
from recur_tune.common.gguf import unpacked
from recur_tune.common.hub import hub_message, use_cache_where_offline
from recur_tune.data.corpora.document import Document

BYTES = "bytes"
_GROUP_BYTES, _GROUP_DOCUMENTS = 8_000_000, 256


def load_tokenizer(name: str, field: str = "tokenizer") -> PreTrainedTokenizerBase:
    """`bytes`, a folder, or a name on the Hub; `field` is where the user named it."""
    if name == BYTES:
        return byte_tokenizer()
    use_cache_where_offline()
    try:
        # A recurrent model's folder has code beside it, of which a tokenizer needs nothing.
        kind = GPT2TokenizerFast if _is_bare_bpe(name) else AutoTokenizer
        tokenizer = kind.from_pretrained(unpacked(name, "tokenizer", _unpack), trust_remote_code=False)
    except UserError:
        raise
    except Exception as error:  # transformers raises OSError, ValueError or a Hub error for the same mistake
        raise UserError(hub_message(field, name, error, "'bytes'" if field == "tokenizer" else "a preset")) from error
    if not tokenizer.is_fast:
        raise UserError(
            f"{field}: the tokenizer of {name} has no fast version, which offsets into the text need; convert it."
        )
    # A saved tokenizer may truncate or pad; a document is read whole.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def _unpack(file: Path, folder: Path) -> None:
    """Write a GGUF file's tokenizer in Hugging Face's format."""
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def _is_bare_bpe(name: str) -> bool:
    """GPT-2's BPE as it was first published: two files, and nothing that says what they are."""
    folder = Path(name).expanduser()
    described = any((folder / file).exists() for file in ("tokenizer.json", "tokenizer_config.json", "config.json"))
    return not described and all((folder / file).is_file() for file in ("vocab.json", "merges.txt"))


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte its own token, its id the byte's value: byte-level BPE with no merges, so any Hugging Face
    tool can read it back from a model's folder."""
    letters = _byte_letters()
    model = models.BPE(vocab={letter: byte for byte, letter in enumerate(letters)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of everything that decides which ids a text becomes."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def encode(
    tokenizer: PreTrainedTokenizerBase, documents: Iterable[Document]
) -> Iterator[tuple[Document, np.ndarray, np.ndarray]]:
    """Each document with its token ids and, for each token, the offset in its bytes where the token ends.

    The ends rise to the document's length, so that sums over tokens count every byte once, whatever the
    tokenizer drops (spaces, say) or splits (a character over several tokens).
    """
    if is_bytes(tokenizer):
        for document in documents:
            yield document, np.frombuffer(document.data, dtype=np.uint8), np.arange(1, len(document.data) + 1)
        return
    for group in _groups(documents):
        texts = [document.data.decode("utf-8", errors="replace") for document in group]
        # The backend, not __call__: a book is longer than the model's context on purpose, and that is no warning. All
        # of a group at once, because the backend has a core work on each.
        encodings = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        for document, text, encoding in zip(group, texts, encodings, strict=True):
            yield document, np.array(encoding.ids, dtype=np.int64), _ends(tokenizer, text, encoding)


def _ends(tokenizer: PreTrainedTokenizerBase, text: str, encoding: Encoding) -> np.ndarray:
    """The offset in UTF-8 where each token ends."""
    offsets = _byte_offsets(text)
    if isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel):
        ends = np.cumsum([len(token) for token in encoding.tokens], dtype=np.int64)  # a letter stands for a byte
        if len(ends) and ends[-1] == offsets[-1]:
            return ends
    end_character = np.maximum.accumulate(np.array([end for _, end in encoding.offsets], dtype=np.int64))
    end_character[-1:] = len(text)
    # Tokens that end in one character share its bytes.
    _, run, tokens = np.unique(end_character, return_inverse=True, return_counts=True)
    number = np.arange(len(run)) - np.searchsorted(run, run) + 1
    last_bytes = offsets[end_character] - offsets[np.maximum(end_character - 1, 0)]
    return offsets[end_character] - last_bytes + last_bytes * number // tokens[run]


def _groups(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in their order, as many together as keep some cores busy and fit into memory."""
    group: list[Document] = []
    for document in documents:
        group.append(document)
        if sum(len(one.data) for one in group) >= _GROUP_BYTES or len(group) == _GROUP_DOCUMENTS:
            yield group
            group = []
    if group:
        yield group


def decode_stream(tokenizer: PreTrainedTokenizerBase, tokens: Iterator[int]) -> Iterator[str]:
    """Text as it becomes readable: a character split over several tokens waits for the last of them.

    Tokens are decoded together with those before them, since some tokenizers write a space only between two.
    """
    kept: list[int] = []
    shown = waiting = 0  # kept[:shown] is printed and gives context; kept[shown:] waits to be complete
    for token in tokens:
        kept.append(token)
        context, text = tokenizer.decode(kept[:shown]), tokenizer.decode(kept)
        waiting = len(kept) - shown
        if len(text) > len(context) and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[len(context) :]
            kept, shown, waiting = kept[shown:], waiting, 0
    if waiting:
        yield tokenizer.decode(kept)[len(tokenizer.decode(kept[:shown])) :]


def _byte_offsets(text: str) -> np.ndarray:
    """The offset in UTF-8 of every character, and the whole length last."""
    point = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    width = 1 + (point >= 0x80).astype(np.int64) + (point >= 0x800) + (point >= 0x10000)
    return np.concatenate([[0], np.cumsum(width)])


def is_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether ids are byte values."""
    vocabulary = tokenizer.get_vocab()
    return len(vocabulary) == 256 and all(vocabulary.get(letter) == byte for byte, letter in enumerate(_byte_letters()))


def _byte_letters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte."""
    letters = bytes_to_unicode()
    return [letters[byte] for byte in range(256)]
