"""Splitting a folder of texts: every text is in one split, and in one only."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import SPLITS
from recur_tune.data.corpora.registry import check_corpus
from recur_tune.data.splitting import split_texts


def _texts(target: Path) -> dict[str, dict[str, bytes]]:
    return {split: {path.name: path.read_bytes() for path in (target / split).iterdir()} for split in SPLITS}


@given(sizes=st.lists(st.integers(1, 40), min_size=3, max_size=30), seed=st.integers(0, 5))
def test_every_text_is_in_one_split_and_the_shares_are_as_near_as_whole_files_allow(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    source, target = folder / "source", folder / "target"
    source.mkdir()
    texts = {f"{number}.txt": f"{number:02}".encode() * size for number, size in enumerate(sizes)}
    for name, text in texts.items():
        (source / name).write_bytes(text)
    parts = split_texts(source, target, validation=0.2, test=0.1, seed=seed)
    found = _texts(target)
    assert {name: text for split in SPLITS for name, text in found[split].items()} == texts
    assert sum(len(found[split]) for split in SPLITS) == len(texts)
    assert {split: (part.files, part.bytes) for split, part in parts.items()} == {
        split: (len(found[split]), sum(map(len, found[split].values()))) for split in SPLITS
    }
    largest, whole = max(map(len, texts.values())), sum(map(len, texts.values()))
    for split, share in {"validation": 0.2, "test": 0.1}.items():
        assert 0 < parts[split].bytes <= share * whole + largest
    again = folder / "again"
    split_texts(source, again, validation=0.2, test=0.1, seed=seed)
    assert _texts(again) == found, "the same seed splits alike"


def test_copies_of_a_text_hidden_files_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name, text in {
        "a.txt": "one", "b/c.txt": "two", "b/d.txt": "three", "e.txt": "one", ".git/x": "four", "empty.txt": "",
    }.items():  # fmt: skip
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    split_texts(source, tmp_path / "target", validation=0.1, test=0.1)
    found = _texts(tmp_path / "target")
    assert {name for texts in found.values() for name in texts} == {"a.txt", "b-c.txt", "b-d.txt"}
    check_corpus(f"text:{tmp_path / 'target'}")


def test_a_single_file_is_cut_at_empty_lines_in_its_own_order(tmp_path: Path) -> None:
    text = "".join(f"Paragraph {number:02}.\nIt has two lines.\n\n" for number in range(40))
    (tmp_path / "novel.txt").write_text(text)
    split_texts(tmp_path / "novel.txt", tmp_path / "target", validation=0.1, test=0.2)
    parts = [_texts(tmp_path / "target")[split]["novel.txt"].decode() for split in SPLITS]
    assert "".join(parts) == text
    assert [part.count("Paragraph") for part in parts] == [28, 4, 8]
    assert all(part.startswith("Paragraph") and part.endswith("\n\n") for part in parts)


@pytest.mark.parametrize(
    ("files", "share", "sentence"),
    [
        ({"a": b"one", "b": b"one", "c": b"two"}, 0.1, "source: .* has 2 text files with different text"),
        ({"a": b"one", "b": b"\xfc\xfc", "c": b"two"}, 0.1, "byte 0xfc at offset 0"),
        ({"a/b": b"one", "a-b": b"two", "c": b"three"}, 0.1, "would both be called a-b"),
        ({"a": b"one", "b": b"two", "c": b"three"}, 0.5, "validation: 50%, and 50% for test, leave nothing"),
    ],
)
def test_what_cannot_be_split_is_refused_and_nothing_is_made(
    tmp_path: Path, files: dict[str, bytes], share: float, sentence: str
) -> None:
    for name, data in files.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(data)
    with pytest.raises(UserError, match=sentence):
        split_texts(tmp_path / "source", tmp_path / "target", validation=share, test=share)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_file_without_empty_lines_is_not_cut(tmp_path: Path) -> None:
    (tmp_path / "line.txt").write_text("one line " * 50)
    with pytest.raises(UserError, match="too few empty lines"):
        split_texts(tmp_path / "line.txt", tmp_path / "target", validation=0.1, test=0.1)
