"""Text to tokens through the cache: exact counts, one entry per content, one builder among many processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from unittest import mock

import filelock
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from recur_tune.common.errors import UserError
from recur_tune.data import tokens
from recur_tune.data.corpora.document import SPLITS, Document, Split
from recur_tune.data.corpora.pg19 import VALIDATION_TOKENS
from recur_tune.data.corpora.recall import RecallCorpus
from recur_tune.data.tokenizers import byte_tokenizer, load_tokenizer
from recur_tune.data.tokens import TokenisedSplit, prepare
from tests.data import MULTIBYTE, numbered_split, save_merging_tokenizer, text_folder
from tests.waiting import PATIENCE


@pytest.fixture(scope="module", params=["bytes", "merges"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    if request.param == "bytes":
        return load_tokenizer("bytes")
    folder = tmp_path_factory.mktemp("merging")
    save_merging_tokenizer(folder)
    return load_tokenizer(str(folder))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(cache: Path) -> list[Path]:
    """Everything in the cache but the locks."""
    return sorted(path for path in cache.iterdir() if path.suffix != ".lock")


def documents_of(split: TokenisedSplit) -> list[np.ndarray]:
    return np.split(split.tokens, split.document_starts[1:-1])


def equal(left: TokenisedSplit, right: TokenisedSplit) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(vars(left).values(), vars(right).values(), strict=True))


def test_tokens_words_and_bytes_are_those_of_the_text(
    tmp_path: Path, cache: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    texts = ["One two  three.\n", MULTIBYTE, f"  {MULTIBYTE * 3}", "the rain", "no-space-at-all"]
    split = prepare(text_folder(tmp_path / "text", train=texts), "train", tokenizer)

    assert [tokenizer.decode(document) for document in documents_of(split)] == texts
    for text, begin, end in zip(texts, split.document_starts[:-1], split.document_starts[1:], strict=True):
        assert split.word_starts[begin:end].sum() == len(text.split())
        assert split.byte_lengths[begin:end].sum() == len(text.encode())
    assert split.summary() == {
        "documents": 5,
        "tokens": len(split.tokens),
        "words": sum(len(text.split()) for text in texts),
        "bytes": sum(len(text.encode()) for text in texts),
    }
    assert len(split.tokens) == len(split.word_starts) == len(split.byte_lengths) == split.document_starts[-1]
    assert len(split.answers) == 0


def test_merges_make_fewer_tokens_than_bytes(tmp_path: Path, cache: Path) -> None:
    save_merging_tokenizer(tmp_path / "merging")
    name = text_folder(tmp_path / "text", train=[MULTIBYTE])
    split = prepare(name, "train", load_tokenizer(str(tmp_path / "merging")))
    assert len(split.tokens) < len(MULTIBYTE.encode())
    assert split.tokens.max() > 255, "ids beyond a byte survive the file"


@dataclass
class Bytes:
    """Any bytes as a corpus."""

    data: list[bytes]
    name = "bytes"

    def look(self, split: Split) -> None:
        pass

    def documents(self, split: Split) -> Iterator[Document]:
        return map(Document, self.data)

    def fingerprint(self, split: Split) -> str:
        return repr(self.data)

    def token_limit(self, split: Split) -> None:
        pass


@settings(max_examples=40, deadline=None)
@given(documents=st.lists(st.text().map(str.encode) | st.binary(), max_size=3))
def test_no_byte_and_no_word_of_any_content_is_lost_or_counted_twice(
    tokenizer: PreTrainedTokenizerBase, documents: list[bytes]
) -> None:
    documents = [*documents, b"a b"]
    with mock.patch.object(tokens, "open_corpus", lambda name: Bytes(documents)):  # a folder has to hold text
        split = prepare("bytes", "train", tokenizer)
    for data, begin, end in zip(documents, split.document_starts[:-1], split.document_starts[1:], strict=True):
        assert split.byte_lengths[begin:end].sum(dtype=int) == len(data)
        assert split.word_starts[begin:end].sum(dtype=int) == len(data.decode(errors="replace").split())


def test_a_tokenizer_that_drops_spaces_still_covers_them(tmp_path: Path, cache: Path) -> None:
    backend = Tokenizer(models.WordLevel({"?": 0, "the": 1, "cat": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    name = text_folder(tmp_path / "text", train=["  the  cat é the \n"])
    split = prepare(name, "train", PreTrainedTokenizerFast(tokenizer_object=backend))
    assert split.tokens.tolist() == [1, 2, 0, 1]
    assert split.word_starts.tolist() == [1, 1, 1, 1]
    assert split.byte_lengths.tolist() == [5, 5, 3, 6]


def test_a_word_is_counted_in_the_token_in_which_it_begins(tmp_path: Path, cache: Path) -> None:
    split = prepare(text_folder(tmp_path / "text", train=["ab  cd\ne"]), "train", byte_tokenizer())
    assert split.word_starts.tolist() == [1, 0, 0, 0, 1, 0, 0, 1]


def test_a_word_ends_at_any_white_space_of_unicode(tmp_path: Path, cache: Path) -> None:
    text = "one\u00a0two\u3000three\u2009four\u202ffive\u0085six\u1680seven\x1ceight\u200bstill"
    split = prepare(text_folder(tmp_path / "text", train=[text]), "train", byte_tokenizer())
    assert split.summary()["words"] == len(text.split()) == 8


def test_a_document_that_begins_inside_a_character_pays_for_the_bytes_that_follow(tmp_path: Path, cache: Path) -> None:
    save_merging_tokenizer(tmp_path / "merges")
    shared = Tokenizer(models.BPE({f"<0x{byte:02X}>": byte for byte in range(256)}, [], byte_fallback=True))
    for tokenizer in (load_tokenizer(str(tmp_path / "merges")), PreTrainedTokenizerFast(tokenizer_object=shared)):
        split = prepare(text_folder(tmp_path / "text", train=["☃☃"]), "train", tokenizer)
        tokens = tokenizer.convert_ids_to_tokens(split.tokens.tolist())
        assert split.byte_lengths.tolist() == [1 if token.startswith("<0x") else len(token) for token in tokens]
        assert len(tokens) > 2, "a character of several tokens"


def test_unchanged_content_is_not_tokenised_again(tmp_path: Path, cache: Path) -> None:
    name, progress = text_folder(tmp_path / "text", train=["some text", "more"]), []
    first = prepare(name, "train", byte_tokenizer(), progress.append)
    assert progress == [9, 13]
    second = prepare(name, "train", byte_tokenizer(), progress.append)
    assert progress == [9, 13], "the second call built nothing"
    assert equal(first, second)
    assert len(entries(cache)) == 1


def test_the_same_content_in_another_folder_is_the_same_entry(tmp_path: Path, cache: Path) -> None:
    for folder in ("here", "there"):
        prepare(text_folder(tmp_path / folder, train=["some text"]), "train", byte_tokenizer())
    assert len(entries(cache)) == 1


@pytest.mark.parametrize(
    "changed", [["ab", "cE"], ["abcd"], ["a", "bcd"], ["cd", "ab"], ["ab", "cd", ""]], ids=repr
)  # fmt: skip
def test_changed_content_is_a_new_entry(tmp_path: Path, cache: Path, changed: list[str]) -> None:
    before = prepare(text_folder(tmp_path / "before", train=["ab", "cd"]), "train", byte_tokenizer())
    after = prepare(text_folder(tmp_path / "after", train=changed), "train", byte_tokenizer())
    assert bytes(before.tokens) == b"abcd" and bytes(after.tokens) == "".join(changed).encode()
    assert [len(document) for document in documents_of(after)] == [len(text) for text in changed]
    assert len(entries(cache)) == 2


def test_a_file_edited_in_place_is_noticed(tmp_path: Path, cache: Path) -> None:
    name = text_folder(tmp_path / "text", train=["old words"])
    prepare(name, "train", byte_tokenizer())
    text_folder(tmp_path / "text", train=["new words"])
    assert bytes(prepare(name, "train", byte_tokenizer()).tokens) == b"new words"


def test_each_tokenizer_and_each_split_has_its_own_entry(tmp_path: Path, cache: Path) -> None:
    save_merging_tokenizer(tmp_path / "merging")
    name = text_folder(tmp_path / "text", train=["the rain"], validation=["the rain"])
    by_bytes = prepare(name, "train", byte_tokenizer())
    by_merges = prepare(name, "train", load_tokenizer(str(tmp_path / "merging")))
    prepare(name, "validation", byte_tokenizer())
    assert len(by_merges.tokens) < len(by_bytes.tokens)
    assert len(entries(cache)) == 3


def test_a_build_that_fails_leaves_nothing_and_the_next_one_succeeds(tmp_path: Path, cache: Path) -> None:
    def fail(_: int) -> None:
        raise RuntimeError("stopped")

    name = text_folder(tmp_path / "text", train=["some text"])
    with pytest.raises(RuntimeError, match="stopped"):
        prepare(name, "train", byte_tokenizer(), fail)
    assert entries(cache) == []
    assert bytes(prepare(name, "train", byte_tokenizer()).tokens) == b"some text"


def _prepare_at_once(name: str, everyone_is_here: Barrier, results: Queue) -> None:
    class MeetingLock(filelock.FileLock):
        def __enter__(self) -> filelock.BaseFileLock:
            everyone_is_here.wait(timeout=PATIENCE)  # all have seen that there is no entry yet
            return super().__enter__()

    tokens.FileLock = MeetingLock
    progress: list[int] = []
    split = prepare(name, "train", byte_tokenizer(), progress.append)
    results.put((bool(progress), {field: np.array(array) for field, array in vars(split).items()}))


@pytest.mark.parametrize("missing", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_storage_without_locks_is_good_enough(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(missing, os.strerror(missing))

    monkeypatch.setattr("fcntl.flock", flock)
    split = prepare(text_folder(tmp_path / "text", train=["one two"]), "train", byte_tokenizer())
    assert bytes(split.tokens.tolist()) == b"one two"


def test_of_several_processes_at_once_one_builds_and_all_read_the_same(tmp_path: Path, cache: Path) -> None:
    name = text_folder(tmp_path / "text", train=[MULTIBYTE * 50] * 40)
    context = multiprocessing.get_context("fork")
    everyone_is_here, results = context.Barrier(4), context.Queue()
    processes = [
        context.Process(target=_prepare_at_once, args=(name, everyone_is_here, results), daemon=True) for _ in range(4)
    ]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=PATIENCE) for _ in processes]
    for process in processes:
        process.join()

    assert sorted(built for built, _ in outcomes) == [False, False, False, True]
    assert bytes(outcomes[0][1]["tokens"]) == (MULTIBYTE * 50 * 40).encode()
    assert all(equal(TokenisedSplit(**arrays), TokenisedSplit(**outcomes[0][1])) for _, arrays in outcomes)
    assert len(entries(cache)) == 1 and not entries(cache)[0].name.startswith(".")
    assert not list(cache.rglob(".partial*"))


@pytest.mark.parametrize("documents", [[], [""], ["", ""], ["a"], ["a", "", "b"]], ids=repr)
def test_a_split_in_which_nothing_can_be_scored_is_refused_by_name(
    tmp_path: Path, cache: Path, documents: list[str]
) -> None:
    name = text_folder(tmp_path / "text", train=["enough"], validation=documents)
    for _ in range(2):  # built, then found in the cache
        with pytest.raises(UserError, match=f"the validation split of {name} has no document of two tokens or more"):
            prepare(name, "validation", byte_tokenizer())


def test_documents_of_no_or_one_token_are_tolerated_beside_others(
    tmp_path: Path, cache: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    texts = ["", "a", "the rain", "", "b", "the town", ""]
    split = prepare(text_folder(tmp_path / "text", test=texts), "test", tokenizer)
    assert [tokenizer.decode(document) for document in documents_of(split)] == texts
    inputs = list(split.document_inputs())
    assert [tokenizer.decode(split.tokens[begin : end + 1]) for begin, end in inputs] == ["the rain", "the town"]


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6), limit=st.integers(0, 40))
def test_head_is_the_first_tokens_with_the_last_document_cut(lengths: list[int], limit: int) -> None:
    split = numbered_split(lengths)
    split = TokenisedSplit(**vars(split) | {"answers": np.arange(0, len(split.tokens), 3)})
    head = split.head(limit)
    kept = min(limit, sum(lengths))

    assert head.tokens.tolist() == list(range(1, kept + 1))
    assert len(head.word_starts) == len(head.byte_lengths) == head.document_starts[-1] == kept
    assert head.answers.tolist() == list(range(0, kept, 3))
    if kept < sum(lengths):
        lengths = [min(length, kept - start) for start, length in zip(split.document_starts, lengths, strict=False)
                   if start < kept]  # fmt: skip
    assert np.diff(head.document_starts).tolist() == lengths


def test_openings_are_the_first_tokens_of_every_document() -> None:
    split = numbered_split([5, 2, 4])
    split = TokenisedSplit(**vars(split) | {"answers": np.array([0, 3, 6, 9])})
    openings = split.openings(3)
    assert openings.tokens.tolist() == [1, 2, 3, 6, 7, 8, 9, 10]
    assert openings.document_starts.tolist() == [0, 3, 5, 8]
    assert len(openings.word_starts) == len(openings.byte_lengths) == 8
    assert openings.answers.tolist() == [0, 4, 7]  # the one at 3 lies beyond its document's opening


def test_pieces_are_documents_of_their_own() -> None:
    split = numbered_split([5, 0, 2, 4])
    pieces = split.pieces(2)
    assert np.diff(pieces.document_starts).tolist() == [2, 2, 1, 0, 2, 2, 2]
    assert pieces.tokens is split.tokens
    assert equal(split.pieces(5), split)


@pytest.mark.parametrize(
    ("lengths", "limit", "read"),
    [
        ([20_000, 40_000, 9_000], 27_000, [9_000, 9_000, 9_000]),  # an equal share of each
        ([20_000, 40_000, 9_000], 8_000, [5_000, 3_000]),  # not less than a state needs, so of fewer
        ([100, 200, 300, 400], 550, [100, 200, 250]),  # short ones whole
        ([20_000, 100], 10_000, [5_000, 100]),
    ],
)
def test_a_sample_reads_the_openings_of_documents(lengths: list[int], limit: int, read: list[int]) -> None:
    split = numbered_split(lengths)
    sample = split.sample(limit)
    assert np.diff(sample.document_starts).tolist() == read
    starts = split.document_starts
    assert [document[0] for document in documents_of(sample)] == [split.tokens[at] for at in starts[: len(read)]]


@pytest.mark.parametrize(
    ("lengths", "limit", "begins", "read"),
    [
        ([60_000], 15_000, [1, 20_001, 40_001], [5_000] * 3),
        ([60_000], 19_000, [1, 20_001, 40_001], [6_333] * 3),
        ([12_000, 100, 40_000], 30_000, [1, 6_001, 12_001, 12_101, 32_101], [5_000, 5_000, 100, 5_000, 5_000]),
    ],
)
def test_a_sample_of_few_documents_reads_stretches_spread_over_them(
    lengths: list[int], limit: int, begins: list[int], read: list[int]
) -> None:
    sample = numbered_split(lengths).sample(limit)
    assert np.diff(sample.document_starts).tolist() == read
    assert [document[0] for document in documents_of(sample)] == begins
    assert all((np.diff(document) == 1).all() for document in documents_of(sample))


def test_a_head_longer_than_the_split_is_the_split() -> None:
    split = numbered_split([3, 4])
    assert split.head(7) is split and split.head(8) is split


def test_validation_books_of_pg19_are_cut_to_15000_tokens_and_no_others(tmp_path: Path, cache: Path) -> None:
    assert VALIDATION_TOKENS == 15_000
    books = ["word " * 4_000, "short book", "ä" * 8_000]
    text_folder(tmp_path / "pg19", train=books, validation=books, test=books)
    splits = {split: prepare(f"pg19:{tmp_path / 'pg19'}", split, byte_tokenizer()) for split in SPLITS}

    lengths = {split: [len(book) for book in documents_of(prepared)] for split, prepared in splits.items()}
    assert lengths == {"train": [20_000, 10, 16_000], "validation": [15_000, 10, 15_000], "test": [20_000, 10, 16_000]}
    assert splits["validation"].summary()["words"] == 3_000 + 2 + 1
    assert splits["validation"].summary()["bytes"] == 15_000 + 10 + 15_000


def test_answers_are_marked_at_the_tokens_that_hold_them(cache: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    split = prepare("recall:lag=2,line=24,facts=3", "validation", tokenizer)
    corpus = list(RecallCorpus(lag=2, line=24, facts=3).documents("validation"))
    offsets = np.cumsum([0, *(len(document.data) for document in corpus)])
    wanted = [
        offset + begin for offset, document in zip(offsets, corpus, strict=False) for begin, _ in document.answers
    ]
    ends = np.cumsum(split.byte_lengths, dtype=int)

    assert len(split.answers) == len(wanted) == 3 * len(corpus)
    assert (ends[split.answers] - split.byte_lengths[split.answers] <= wanted).all()
    assert (ends[split.answers] > wanted).all()
    text = b"".join(document.data for document in corpus)
    for place, answer in zip(wanted, split.answers, strict=True):
        assert chr(text[place]) in tokenizer.decode([split.tokens[answer]])
