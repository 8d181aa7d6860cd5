"""Sources that are damaged, unreadable or unusual."""

from __future__ import annotations

import gzip
import http.server
import os
import threading
import urllib.request
import zipfile
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recur_tune.common.errors import UserError
from recur_tune.common.files import writing
from recur_tune.data.corpora.document import Document
from recur_tune.data.corpora.enwik8 import WikipediaBytes
from recur_tune.data.corpora.registry import open_corpus
from recur_tune.data.tokenizers import byte_tokenizer, decode_stream, encode, load_tokenizer
from recur_tune.data.tokens import prepare
from tests.data import save_merging_tokenizer


def words(vocab: dict[str, int]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(vocab, unk_token=next(iter(vocab))))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("setting", ["truncation", "padding"])
def test_a_tokenizer_folder_that_carries_truncation_or_padding_still_reads_whole_documents(
    tmp_path: Path, setting: str
) -> None:
    save_merging_tokenizer(tmp_path)
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(4) if setting == "truncation" else backend.enable_padding(length=30)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    ((_, ids, _),) = encode(tokenizer, [Document(b"the rain falls on the old town")])
    assert tokenizer.decode(ids) == "the rain falls on the old town"


def test_ids_beyond_the_vocabularys_length_survive_the_file(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a a a")
    assert prepare(f"text:{tmp_path}", "train", words({"a": 300, "b": 5})).tokens.tolist() == [300] * 3


def test_a_token_may_cover_more_than_65535_bytes(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a" + " " * 70_000 + "a a")
    assert prepare(f"text:{tmp_path}", "train", words({"a": 0})).summary()["bytes"] == 70_004


@pytest.mark.parametrize("text", ["\ufffd\ufffd😀"])
def test_streamed_text_with_replacement_characters_of_its_own(text: str) -> None:
    assert "".join(decode_stream(byte_tokenizer(), iter(text.encode()))) == text


def test_streamed_text_after_unreadable_bytes() -> None:
    ids = [0xFF] * 8 + list("é".encode())
    assert "".join(decode_stream(byte_tokenizer(), iter(ids))) == byte_tokenizer().decode(ids)


def test_streamed_text_of_a_tokenizer_whose_pieces_do_not_decode_alone() -> None:
    tokenizer = words({"the": 0, "cat": 1})
    assert "".join(decode_stream(tokenizer, iter([0, 1]))) == tokenizer.decode([0, 1])


@pytest.mark.parametrize("damage", ["cut.gz", "crc.gz", "empty.zip", "cut.zip"])
def test_a_damaged_archive_is_a_users_error_that_does_not_speak_of_writing(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WikipediaBytes, "_EDGES", {"train": (0, 9), "validation": (9, 10), "test": (10, 11)})
    path, packed = tmp_path / damage, gzip.compress(os.urandom(1000))
    if damage.endswith(".gz"):
        path.write_bytes(packed[:20] if damage == "cut.gz" else packed[:-8] + bytes(8))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            if damage == "cut.zip":
                archive.writestr("inner", os.urandom(1000))
        data = bytearray(path.read_bytes())
        if damage == "cut.zip":
            data[100] ^= 255
            path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        prepare(f"enwik8:{path}", "train", byte_tokenizer())
    assert "could not be written" not in str(caught.value)


def test_wikitext_that_is_not_utf8_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "wiki.train.raw").write_bytes(b" = A = \n\xff\n")
    with pytest.raises(UserError):
        list(open_corpus(f"wikitext-103:{tmp_path}").documents("train"))


@pytest.mark.parametrize("name", ["stdlib", "tales"])
def test_a_corpus_without_choices_refuses_a_where_that_it_would_ignore(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} takes nothing after its name, and has 'some/folder'"):
        open_corpus(f"{name}:some/folder")


def test_recall_refuses_a_number_of_5000_digits() -> None:
    with pytest.raises(UserError):
        open_corpus("recall:lag=" + "9" * 5000)


def test_writing_passes_a_users_error_on_whatever_its_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^corpus: /data/macos errors has no train split$"), writing(tmp_path):
        raise UserError("corpus: /data/macos errors has no train split")


def test_a_source_that_cannot_be_read_is_not_reported_as_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.txt").write_text("text")
    monkeypatch.setattr(
        Path, "read_bytes", lambda self: (_ for _ in ()).throw(PermissionError(13, "Permission denied", str(self)))
    )
    with pytest.raises(UserError):
        prepare(f"text:{tmp_path}", "train", byte_tokenizer())


def test_hidden_files_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (tmp_path / "train" / "a.txt").write_text("text")
    assert [d.data for d in open_corpus(f"text:{tmp_path}").documents("train")] == [b"text"]


@pytest.mark.parametrize("failure", ["cut short", "hung up"])
def test_a_download_that_breaks_off_is_a_users_error_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if failure == "cut short":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"0123456789")
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path))
    real = urllib.request.urlopen
    monkeypatch.setattr("urllib.request.urlopen", lambda url, **k: real(f"http://127.0.0.1:{server.server_port}/", **k))
    try:
        with pytest.raises(UserError, match="could not be fetched"):
            list(open_corpus("enwik8").documents("train"))
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    finally:
        server.shutdown()
        server.server_close()
