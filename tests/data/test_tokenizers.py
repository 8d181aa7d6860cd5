"""Bytes as tokens, any tokenizer's offsets into the text, and text that becomes readable token by token."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from recur_tune.common.errors import UserError
from recur_tune.data import tokenizers
from recur_tune.data.corpora.document import Document
from recur_tune.data.tokenizers import byte_tokenizer, decode_stream, encode, fingerprint, load_tokenizer
from tests.data import MULTIBYTE, save_merging_tokenizer

BYTES = byte_tokenizer()
modest = settings(max_examples=80, deadline=None)


def encoded(tokenizer: PreTrainedTokenizerBase, document: Document) -> tuple[np.ndarray, np.ndarray]:
    """One document's ids and ends."""
    ((same, ids, ends),) = encode(tokenizer, [document])
    assert same is document
    return ids, ends


@pytest.fixture(scope="module")
def merging(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("merging")
    save_merging_tokenizer(folder)
    return load_tokenizer(str(folder))


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("bytes")
    byte_tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@modest
@given(st.text())
def test_a_bytes_id_is_its_value(text: str) -> None:
    data = text.encode()
    ids, ends = encoded(BYTES, Document(data))
    assert ids.tolist() == list(data)
    assert ends.tolist() == list(range(1, len(data) + 1))


@modest
@given(st.text())
def test_run_as_a_hugging_face_tokenizer_bytes_gives_the_same_ids_and_the_text_back(text: str) -> None:
    ids = BYTES(text)["input_ids"]
    assert ids == list(text.encode())
    assert BYTES.decode(ids) == text


@modest
@given(st.text())
def test_bytes_saved_and_loaded_again_is_the_same_tokenizer(reloaded: PreTrainedTokenizerBase, text: str) -> None:
    assert reloaded(text)["input_ids"] == list(text.encode())
    assert encoded(reloaded, Document(text.encode()))[0].tolist() == list(text.encode())
    assert reloaded.decode(list(text.encode())) == text


def test_bytes_has_256_tokens_and_keeps_its_fingerprint_on_disk(reloaded: PreTrainedTokenizerBase) -> None:
    assert len(BYTES) == len(reloaded) == 256
    assert sorted(BYTES.get_vocab().values()) == list(range(256))
    assert fingerprint(reloaded) == fingerprint(BYTES) == fingerprint(load_tokenizer("bytes"))


@modest
@given(st.binary())
def test_bytes_that_are_no_text_are_kept_as_they_are(data: bytes) -> None:
    assert bytes(encoded(BYTES, Document(data))[0].tolist()) == data


def test_another_vocabulary_has_another_fingerprint(merging: PreTrainedTokenizerBase) -> None:
    assert fingerprint(merging) != fingerprint(BYTES)


@modest
@given(st.text())
def test_a_merging_tokenizer_gives_the_ids_that_it_gives_elsewhere(merging: PreTrainedTokenizerBase, text: str) -> None:
    ids, _ = encoded(merging, Document(text.encode()))
    assert ids.tolist() == merging(text)["input_ids"]
    assert merging.decode(ids) == text


@modest
@given(st.text(min_size=1))
def test_ends_never_fall_and_reach_the_last_byte(merging: PreTrainedTokenizerBase, text: str) -> None:
    for tokenizer in (BYTES, merging):
        ids, ends = encoded(tokenizer, Document(text.encode()))
        assert len(ids) == len(ends)
        assert ends[0] >= 1 and (np.diff(ends) >= 0).all()
        assert ends[-1] == len(text.encode())


@modest
@given(st.lists(st.sampled_from(["the", " rain", "é", " 東", "🌙", "\n", " it was A"]), min_size=1).map("".join))
def test_ends_lie_where_the_tokens_decoded_so_far_end(merging: PreTrainedTokenizerBase, text: str) -> None:
    ids, ends = encoded(merging, Document(text.encode()))
    for count, end in enumerate(ends, start=1):
        readable = merging.decode(ids[:count]).rstrip("\N{REPLACEMENT CHARACTER}")
        begun = end - len(readable.encode())  # bytes of a character inside which the token ends
        assert (begun > 0) == (merging.decode(ids[:count]) != readable)
        assert begun < (len(text[len(readable)].encode()) if begun else 1)


@pytest.mark.parametrize("group", [{"_GROUP_BYTES": 20}, {"_GROUP_DOCUMENTS": 2}, {}], ids=str)
def test_documents_encoded_together_are_what_they_are_alone(
    merging: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, group: dict[str, int]
) -> None:
    documents = [Document(text.encode()) for text in ("the rain", "", "it was A 東 night" * 3, "é", "town")]
    alone = [encoded(merging, document) for document in documents]
    for name, value in group.items():
        monkeypatch.setattr(tokenizers, name, value)
    together = list(encode(merging, iter(documents)))
    assert [document for document, _, _ in together] == documents
    for (_, *found), expected in zip(together, alone, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_an_empty_document_has_no_tokens(merging: PreTrainedTokenizerBase) -> None:
    for tokenizer in (BYTES, merging):
        ids, ends = encoded(tokenizer, Document(b""))
        assert len(ids) == len(ends) == 0


def test_a_long_document_warns_of_no_context_length(
    merging: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[logging.LogRecord] = []  # to any logger: transformers' own pass nothing on to the root's
    monkeypatch.setattr(logging.Logger, "handle", lambda logger, record: said.append(record))
    merging.model_max_length = 8
    ids, _ = encoded(merging, Document(MULTIBYTE.encode() * 10))
    assert merging.decode(ids) == MULTIBYTE * 10
    assert not said


# A text that holds replacement characters of its own cannot be told from one that is not readable yet.
readable_text = st.text(st.characters(codec="utf-8", exclude_characters="\N{REPLACEMENT CHARACTER}"))


@modest
@given(readable_text)
def test_text_decoded_as_it_comes_is_the_text_decoded_at_once(merging: PreTrainedTokenizerBase, text: str) -> None:
    for tokenizer in (BYTES, merging):
        ids = tokenizer(text)["input_ids"]
        pieces = list(decode_stream(tokenizer, iter(ids)))
        assert "".join(pieces) == tokenizer.decode(ids) == text
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_character_waits_for_its_last_byte_and_no_longer() -> None:
    arrived: list[int] = []

    def arriving() -> Iterator[int]:
        for byte in "aé🌙b".encode():
            arrived.append(byte)
            yield byte

    seen = [(piece, len(arrived)) for piece in decode_stream(BYTES, arriving())]
    assert seen == [("a", 1), ("é", 3), ("🌙", 7), ("b", 8)]


def test_a_stream_that_stops_inside_a_character_shows_that_it_did() -> None:
    assert "".join(decode_stream(BYTES, iter("aé".encode()[:-1]))) == "a\N{REPLACEMENT CHARACTER}"


def test_bytes_that_never_become_readable_come_with_the_next_readable_one() -> None:
    pieces = list(decode_stream(BYTES, iter([0xFF] * 30 + [0x61, 0x62, 0xFF])))
    assert pieces == ["\N{REPLACEMENT CHARACTER}" * 30 + "a", "b", "\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("name", ["no-such-tokenizer-anywhere", "no/such-tokenizer"])
def test_an_unknown_tokenizer_is_one_sentence_that_names_it(name: str) -> None:
    with pytest.raises(UserError, match=f"tokenizer: '{name}' is neither a local folder nor .*or use 'bytes'"):
        load_tokenizer(name)


def test_a_folder_without_a_tokenizer_is_one_sentence_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"tokenizer: {tmp_path} could not be read"):
        load_tokenizer(str(tmp_path))


def test_gpt2s_two_files_alone_are_a_tokenizer(tmp_path: Path) -> None:
    save_merging_tokenizer(tmp_path / "whole")
    whole = load_tokenizer(str(tmp_path / "whole"))
    (tmp_path / "bare").mkdir()
    whole.backend_tokenizer.model.save(str(tmp_path / "bare"))
    assert {path.name for path in (tmp_path / "bare").iterdir()} == {"vocab.json", "merges.txt"}
    bare, text = load_tokenizer(str(tmp_path / "bare")), Document("the rain falls on the olé town".encode())
    assert encoded(bare, text)[0].tolist() == encoded(whole, text)[0].tolist()
