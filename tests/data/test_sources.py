"""The corpora by name: which documents each of them holds, in which order and in which split."""

from __future__ import annotations

import gzip
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from urllib.response import addinfourl

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.data.corpora import enwik8, pg19
from recur_tune.data.corpora.document import SPLITS, Split
from recur_tune.data.corpora.enwik8 import WikipediaBytes
from recur_tune.data.corpora.pg19 import Pg19Hub
from recur_tune.data.corpora.registry import CORPORA, open_corpus
from recur_tune.data.corpora.wikitext import split_articles
from tests.data import no_network, text_folder, texts

# --- names ---


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("wikitext103", "wikitext-103"), ("pg-19", "pg19"), ("enwiki8", "enwik8"), ("stdlb", "stdlib"), ("txt:x", "text")],
)
def test_an_unknown_corpus_gives_the_nearest_name(typed: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"there is no corpus '{typed.split(':')[0]}'; did you mean '{meant}'"):
        open_corpus(typed)


def test_a_corpus_unlike_any_other_gives_all_names() -> None:
    with pytest.raises(UserError, match="known: ") as caught:
        open_corpus("zzzzzz")
    assert all(name in str(caught.value) for name in CORPORA)


@pytest.mark.parametrize("name", ["wikitext-103", "pg19", "enwik8", "text8", "text"])
def test_a_path_that_is_not_there_is_a_users_mistake(name: str, tmp_path: Path) -> None:
    for ask in ("documents", "fingerprint"):
        with pytest.raises(UserError, match="missing"):
            list(getattr(open_corpus(f"{name}:{tmp_path / 'missing'}"), ask)("train"))


# --- folders of text ---


def test_a_text_folder_gives_its_files_by_name(tmp_path: Path) -> None:
    for name, text in (("b", "second"), ("a", "first"), ("c", "third")):
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / "train" / name).write_text(text)
    (tmp_path / "train" / "folder").mkdir()
    assert texts(f"text:{tmp_path}", "train") == [b"first", b"second", b"third"]


@pytest.mark.parametrize("name", ["validation", "valid", "val", "dev"])
def test_validation_goes_by_any_of_its_usual_names(tmp_path: Path, name: str) -> None:
    text_folder(tmp_path / "folders", **{name: ["as a folder"]})
    (tmp_path / f"{name}.txt").write_text("as a file")
    assert texts(f"text:{tmp_path / 'folders'}", "validation") == [b"as a folder"]
    assert texts(f"text:{tmp_path}", "validation") == [b"as a file"]


@pytest.mark.parametrize("split", SPLITS)
def test_a_missing_split_is_named(tmp_path: Path, split: Split) -> None:
    name = text_folder(tmp_path, **{other: ["text"] for other in SPLITS if other != split})
    with pytest.raises(UserError, match=f"{tmp_path} has no {split} split"):
        open_corpus(name).documents(split)


# --- PG-19 ---


def books(numbers: list[int]) -> Callable[[Split], datasets.Dataset]:
    rows = datasets.Dataset.from_dict(
        {
            "url": [f"http://www.gutenberg.org/ebooks/{number}" for number in numbers],
            "text": [f"book {number} ä" for number in numbers],
        }
    )
    return lambda split: rows


@pytest.mark.parametrize("split", SPLITS)
def test_pg19_from_the_hub_is_in_the_order_of_file_names(split: Split) -> None:
    corpus = Pg19Hub(books([9, 100, 10, 2, 11]))
    numbers = [int(document.data.decode().split()[1]) for document in corpus.documents(split)]
    assert numbers == [10, 100, 11, 2, 9]
    assert next(corpus.documents(split)).data == "book 10 ä".encode()


def test_a_file_name_that_begins_another_is_ordered_with_its_ending() -> None:
    # "10.txt" comes before "100.txt", as in the listing of a folder.
    numbers = [document.data for document in Pg19Hub(books([1000, 100, 10])).documents("train")]
    assert numbers == ["book 10 ä".encode(), "book 100 ä".encode(), "book 1000 ä".encode()]


def test_pg19_trains_on_the_first_books_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert pg19.TRAINING_BOOKS == 1250
    monkeypatch.setattr(pg19, "TRAINING_BOOKS", 2)
    hub = Pg19Hub(books([9, 10, 2]))
    text_folder(tmp_path, **{split: ["a", "b", "c"] for split in SPLITS})

    assert [document.data for document in hub.documents("train")] == ["book 10 ä".encode(), "book 2 ä".encode()]
    assert len(list(hub.documents("validation"))) == len(list(hub.documents("test"))) == 3
    assert texts(f"pg19:{tmp_path}", "train") == [b"a", b"b"]
    assert texts(f"pg19:{tmp_path}", "validation") == texts(f"pg19:{tmp_path}", "test") == [b"a", b"b", b"c"]


def test_a_folder_of_pg19_is_in_the_order_of_file_names(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for number in (9, 10, 100, 2):
        (tmp_path / "train" / f"{number}.txt").write_text(str(number))
    assert texts(f"pg19:{tmp_path}", "train") == [b"10", b"100", b"2", b"9"]


def test_only_validation_books_of_pg19_have_a_token_limit(tmp_path: Path) -> None:
    for corpus in (Pg19Hub(books([1])), open_corpus(f"pg19:{tmp_path}")):
        assert [corpus.token_limit(split) for split in SPLITS] == [None, 15_000, None]


def test_pg19s_fingerprint_changes_with_its_books() -> None:
    assert Pg19Hub(books([1])).fingerprint("train") == Pg19Hub(books([1])).fingerprint("train")
    assert Pg19Hub(books([1])).fingerprint("train") != Pg19Hub(books([2])).fingerprint("train")


# --- WikiText-103 ---

FIRST = [" \n", " = First title = \n", " \n", " Some text = more text . \n", " = = A section = = \n", " In it . \n"]
SECOND = [" = 2 + 2 = 4 = \n", " \n", " = = = Deeper = = = \n", " x = y \n", " \n"]


def test_articles_begin_at_titles_and_not_at_sections() -> None:
    assert list(split_articles(iter(FIRST + SECOND))) == ["".join(FIRST), "".join(SECOND)]


def test_a_title_of_one_letter_begins_an_article() -> None:
    assert len(list(split_articles(iter([*FIRST, " = X = \n", " text \n"])))) == 2


def test_blank_lines_alone_are_no_article() -> None:
    assert list(split_articles(iter(["", " \n", "\n"]))) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["", " \n", " = T = \n", " = = S = = \n", " text \n", "="])))
def test_articles_together_are_all_the_lines(lines: list[str]) -> None:
    articles = list(split_articles(iter(lines)))
    assert "".join(articles) == ("".join(lines) if "".join(lines).strip() else "")
    titles = lines.count(" = T = \n")
    assert titles <= len(articles) <= titles + 1 or not titles


@pytest.mark.parametrize("ending", ["raw", "tokens"])
def test_wikitext_is_read_from_local_files(tmp_path: Path, ending: str) -> None:
    for split, lines in (("train", FIRST + SECOND), ("valid", FIRST), ("test", [*SECOND, " Zürich 東京\n"])):
        (tmp_path / f"wiki.{split}.{ending}").write_text("".join(lines), encoding="utf-8")
    name = f"wikitext-103:{tmp_path}"
    assert texts(name, "train") == ["".join(FIRST).encode(), "".join(SECOND).encode()]
    assert texts(name, "validation") == ["".join(FIRST).encode()]
    assert texts(name, "test") == ["".join([*SECOND, " Zürich 東京\n"]).encode()]
    assert len({open_corpus(name).fingerprint(split) for split in SPLITS}) == 3


def test_a_missing_file_of_wikitext_is_named(tmp_path: Path) -> None:
    (tmp_path / "wiki.train.raw").write_text("".join(FIRST))
    assert texts(f"wikitext-103:{tmp_path}", "train")
    with pytest.raises(UserError, match=r"has no wiki\.valid\.raw"):
        texts(f"wikitext-103:{tmp_path}", "validation")


# --- enwik8 and text8 ---

HUNDRED = bytes(range(100, 200))


def plain(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def gzipped(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data))


def zipped(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", data)


@pytest.fixture
def hundred_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = WikipediaBytes._EDGES
    assert edges == {"train": (0, 90_000_000), "validation": (90_000_000, 95_000_000), "test": (95_000_000, 10**8)}
    small = {split: (begin // 10**6, end // 10**6) for split, (begin, end) in edges.items()}
    monkeypatch.setattr(WikipediaBytes, "_EDGES", small)


@pytest.mark.usefixtures("hundred_bytes")
@pytest.mark.parametrize("corpus", ["enwik8", "text8"])
@pytest.mark.parametrize("write", [plain, gzipped, zipped])
def test_a_stream_of_bytes_is_split_90_5_5(tmp_path: Path, corpus: str, write: Callable[[Path, bytes], None]) -> None:
    write(tmp_path / "file", HUNDRED + b"what follows is not used")
    name = f"{corpus}:{tmp_path / 'file'}"
    assert texts(name, "train") == [HUNDRED[:90]]
    assert texts(name, "validation") == [HUNDRED[90:95]]
    assert texts(name, "test") == [HUNDRED[95:]]
    assert open_corpus(name).name == corpus


@pytest.mark.usefixtures("hundred_bytes")
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("write", [plain, gzipped, zipped])
def test_too_short_a_stream_is_refused_in_every_split(
    tmp_path: Path, split: Split, write: Callable[[Path, bytes], None]
) -> None:
    write(tmp_path / "file", HUNDRED[:99])
    with pytest.raises(UserError, match=f"{tmp_path / 'file'} holds 99 bytes"):
        texts(f"enwik8:{tmp_path / 'file'}", split)


@pytest.mark.usefixtures("hundred_bytes")
def test_a_corpus_is_fetched_from_its_home_page_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
    zipped(tmp_path / "archive", HUNDRED)
    fetched = []

    length = (tmp_path / "archive").stat().st_size

    def home_page(url: str, **_: object) -> addinfourl:
        fetched.append(url)
        return addinfourl((tmp_path / "archive").open("rb"), {"Content-Length": str(length)}, url)

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(UserError, match=r"text8 could not be fetched .*or give local files as text8:FILE"):
        texts("text8", "train")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "archive"]
    monkeypatch.setattr("urllib.request.urlopen", home_page)
    length += 1  # the connection breaks before the last byte
    with pytest.raises(UserError, match="text8 could not be fetched"):
        texts("text8", "train")
    length -= 1
    published = hashlib.sha256((tmp_path / "archive").read_bytes()).hexdigest()
    with pytest.raises(
        UserError, match=rf"https://.*text8.zip gave another file .* \(SHA-256 {published}, not a6640522"
    ):
        texts("text8", "train")
    assert not list(tmp_path.rglob("text8*")), "what is not the author's is not kept"
    monkeypatch.setitem(enwik8._ARCHIVES, "text8", published)
    assert texts("text8", "train") == [HUNDRED[:90]]
    assert texts("text8", "test") == [HUNDRED[95:]]
    assert fetched == ["https://mattmahoney.net/dc/text8.zip"] * 3


@pytest.mark.parametrize("name", ["pg19", "wikitext-103"])
def test_a_corpus_of_the_hub_is_the_same_for_good(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(*names: object, revision: str, **options: object) -> NoReturn:
        asked.append(revision)
        raise ConnectionError

    monkeypatch.setattr("datasets.load_dataset", ask)
    with pytest.raises(UserError, match="could not be fetched from the Hub"):
        texts(name, "train")
    [commit] = asked
    assert len(commit) == 40 and int(commit, 16), "a branch moves, a commit does not"
