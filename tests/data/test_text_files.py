"""What is a text file, and what is seen of a corpus before any of it is read."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from recur_tune.common.errors import UserError
from recur_tune.data.corpora import enwik8, hotpotqa, pg19, wikitext
from recur_tune.data.corpora.document import SPLITS, Extent
from recur_tune.data.corpora.enwik8 import WikipediaBytes
from recur_tune.data.corpora.registry import CORPORA, check_corpus
from recur_tune.data.corpora.text_files import flaw, look_at
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.data.tokens import prepare
from tests.data import MULTIBYTE, text_folder, texts

PROGRAM = b"\x7fELF\x02\x01\x01\x00\x00\x00"
LATIN_1 = "Grüße".encode("latin-1")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", None),
        (MULTIBYTE.encode(), None),
        ("\ufeffwith a mark, and controls \x0c\x1b".encode(), None),
        (PROGRAM, "a NUL byte at offset 7"),
        ("as UTF-16".encode("utf-16-le"), "a NUL byte at offset 1"),
        (LATIN_1, "byte 0xfc at offset 2"),
        ("é".encode()[:1], "byte 0xc3 at offset 0"),
    ],
)
def test_text_is_utf8_without_nul_bytes(data: bytes, why: str | None) -> None:
    assert flaw(data) == why


def test_a_character_that_a_look_cuts_in_two_is_no_flaw(tmp_path: Path) -> None:
    for shift in range(4):
        (tmp_path / f"{shift}.txt").write_text("a" * shift + "😀" * 2000)
    assert look_at(sorted(tmp_path.iterdir()), "it") == Extent(files=4, bytes=4 * 8000 + 6)
    (tmp_path / "short.txt").write_bytes("é".encode()[:1] * 2)
    with pytest.raises(UserError, match="byte 0xc3 at offset 0"):
        look_at([tmp_path / "short.txt"], "it")


def test_what_is_seen_of_a_corpus_is_counted(tmp_path: Path) -> None:
    name = text_folder(tmp_path, train=["four", "", "é"], validation=["ab"])
    seen = check_corpus(name)
    assert seen == {"train": Extent(3, 6), "validation": Extent(1, 2)}
    assert [str(extent) for extent in seen.values()] == ["3 files (6 B)", "1 file (2 B)"]


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        ({}, "{root} has no train split; it needs a folder or a .txt file called train. "
         "`recur-tune data split {root} --to texts` makes all three from a folder of texts."),
        ({"train": ["text"]}, "{root} has no validation split; it needs a folder or a .txt file called validation. "
         "`recur-tune data split {root} --to texts` makes all three from a folder of texts."),
        ({"train": ["text"], "validation": []},
         "the validation split of {kind}:{root} holds no file; put its text files there."),
        ({"train": ["", "", "a"], "validation": ["text"]},
         "the train split of {kind}:{root} holds no text: its 3 files have less than two bytes."),
        ({"train": [""], "validation": ["text"]},
         "the train split of {kind}:{root} holds no text: {root}/train/000.txt has less than two bytes."),
        ({"train": ["text", PROGRAM], "validation": ["text"]},
         "1 of 2 files in {root}/train is no text in UTF-8: 001.txt (a NUL byte at offset 7); "
         "convert it to UTF-8 or take it out."),
        ({"train": ["text"], "validation": [LATIN_1] * 5},
         "5 of 5 files in {root}/validation are no text in UTF-8: 000.txt (byte 0xfc at offset 2), "
         "001.txt (byte 0xfc at offset 2), 002.txt (byte 0xfc at offset 2) and 2 more; "
         "convert them to UTF-8 or take them out."),
        ({"train": ["text"], "validation": [LATIN_1]},
         "{root}/validation/000.txt is no text in UTF-8 (byte 0xfc at offset 2); convert it to UTF-8."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["text", "pg19"])
def test_a_corpus_that_cannot_be_read_is_refused_at_a_look(
    tmp_path: Path, kind: str, splits: dict[str, list[str] | list[bytes]], sentence: str
) -> None:
    text_folder(tmp_path, **splits)
    with pytest.raises(UserError) as refusal:
        check_corpus(f"{kind}:{tmp_path}")
    assert str(refusal.value) == "corpus: " + sentence.format(root=tmp_path, kind=kind)


def test_what_a_look_does_not_see_is_refused_on_reading_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
    late = "a" * 10_000
    name = text_folder(tmp_path / "text", train=["text", f"{late}\0", late.encode() + LATIN_1], validation=["text"])
    check_corpus(name)
    with pytest.raises(UserError) as refusal:
        prepare(name, "train", byte_tokenizer())
    assert "2 of 3 files" in str(refusal.value)
    assert "001.txt (a NUL byte at offset 10000), 002.txt (byte 0xfc at offset 10002);" in str(refusal.value)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]


def test_wikitext_is_looked_at_too(tmp_path: Path) -> None:
    name = f"wikitext-103:{tmp_path}"
    (tmp_path / "wiki.train.raw").write_text(" = A = \n")
    with pytest.raises(UserError, match=r"has no wiki\.valid\.raw"):
        check_corpus(name)
    (tmp_path / "wiki.valid.raw").write_bytes(b"")
    with pytest.raises(UserError, match=f"the validation split of {name} holds no text"):
        check_corpus(name)
    (tmp_path / "wiki.valid.raw").write_bytes(b" = A = \n" * 1000 + LATIN_1)
    assert check_corpus(name)["validation"] == Extent(1, 8005)
    with pytest.raises(UserError, match=r"wiki\.valid\.raw is no text in UTF-8 \(byte 0xfc at offset 8002\)"):
        texts(name, "validation")


@pytest.mark.parametrize("packed", [False, True])
def test_too_short_a_stream_is_refused_by_its_size(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WikipediaBytes, "_EDGES", {"train": (0, 8), "validation": (8, 9), "test": (9, 10)})
    monkeypatch.setattr(WikipediaBytes, "_read", lambda self: pytest.fail("a look reads no text"))
    for length in (0, 9, 10):
        file = tmp_path / str(length)
        if packed:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("inner", bytes(length))
        else:
            file.write_bytes(bytes(length))
        if length == 10:
            assert check_corpus(f"enwik8:{file}") == {"train": Extent(1, 8), "validation": Extent(1, 1)}
        else:
            with pytest.raises(UserError, match=f"{file} holds {length} bytes; enwik8 has 100000000"):
                check_corpus(f"enwik8:{file}")


def test_nothing_is_fetched_or_made_for_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (wikitext, "from_hub"),
        (pg19, "from_hub"),
        (hotpotqa, "from_hub"),
        (enwik8, "_from_home_page"),
    ):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("a look fetches nothing"))
    for name in CORPORA.keys() - {"text", "squad", "spans", "ett", "weather", "series"}:  # which are nothing but files
        assert check_corpus(name, SPLITS) == {}
