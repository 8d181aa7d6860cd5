"""The corpora by name: built in, from the Hub, or from files on disk.

A corpus is named `NAME` or `NAME:WHERE`. Without WHERE the built-in ones are made on the spot and the others
come from the Hub through `datasets`, or from their home page; with it they are read from local files.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import re
import shutil
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder, reading, whole_folder
from recur_tune.common.hub import use_cache_where_offline
from recur_tune.common.parsing import nearest
from recur_tune.data.corpora.document import Corpus, Document, Extent, Split
from recur_tune.data.corpora.facts import FactsCorpus
from recur_tune.data.corpora.hotpotqa import HotpotQAHub, hotpotqa_files
from recur_tune.data.corpora.recall import RecallCorpus
from recur_tune.data.corpora.spans import SpansCorpus
from recur_tune.data.corpora.squad import squad_files
from recur_tune.data.corpora.stdlib import StdlibCorpus
from recur_tune.data.corpora.tales import TalesCorpus
from recur_tune.data.corpora.text_files import look_at, read_bytes, read_texts

_FOLDER_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
TRAINED_ON: tuple[Split, ...] = ("train", "validation")
PG19_TRAINING_BOOKS = 1250
PG19_VALIDATION_TOKENS = 15_000
_ZIP, _GZIP = b"PK", b"\x1f\x8b"  # how such a file begins
_ARCHIVES = {  # SHA-256 of what their author publishes
    "enwik8": "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    "text8": "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
}
# Commits of data sets on the Hub, by which their files are the same for everybody and for good.
_WIKITEXT_COMMIT = "b08601e04326c79dfdd32d625aee71d232d685c3"
_PG19_COMMIT = "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8"
_HOTPOTQA_COMMIT = "1908d6afbbead072334abe2965f91bd2709910ab"


@dataclass(frozen=True)
class CorpusKind:
    """An entry of `recur-tune data list`."""

    summary: str
    needs: str
    open: Callable[[str], Corpus]


def open_corpus(name: str) -> Corpus:
    """The corpus that a user named; a sentence with the nearest known name where there is none."""
    kind, _, where = name.partition(":")
    if kind not in CORPORA:
        raise UserError(f"corpus: there is no corpus {kind!r}; {nearest(kind, CORPORA)}")
    return CORPORA[kind].open(where)


def check_corpus(name: str, splits: Sequence[Split] = TRAINED_ON) -> dict[Split, Extent]:
    """Refuse a corpus of which a split is missing, empty or no text, before anything is made of it; and how large the
    splits are, as far as they lie in files here."""
    corpus = open_corpus(name)
    seen = {split: corpus.look(split) for split in splits}
    return {split: extent for split, extent in seen.items() if extent is not None}


class TextFolder:
    """One document per file of `DIR/train/`, `DIR/validation/` and `DIR/test/`, or one file per split."""

    def __init__(self, where: str, name: str = "text", limits: dict[Split, int] | None = None) -> None:
        self.name, self.root, self._limits = name, Path(where).expanduser(), limits or {}
        if not where or not self.root.is_dir():
            raise UserError(
                f"corpus: {name}:{where} names no folder; write {name}:DIR, where DIR holds "
                "train, validation and test (folders of text files, or one .txt file each)."
            )

    def files(self, split: Split) -> list[Path]:
        """The split's files by name."""
        for name in _FOLDER_NAMES[split]:
            if (self.root / name).is_dir():
                found = (path for path in (self.root / name).iterdir() if path.is_file())
                return sorted(path for path in found if not path.name.startswith("."))
            if (self.root / f"{name}.txt").is_file():
                return [self.root / f"{name}.txt"]
        raise UserError(f"corpus: {self.root} has no {split} split; it needs a folder or a .txt file called {split}.")

    def look(self, split: Split) -> Extent:
        """At the files of the split."""
        return look_at(self.files(split), f"the {split} split of {self.name}:{self.root}")

    def documents(self, split: Split) -> Iterator[Document]:
        """One document per file."""
        return map(Document, read_texts(self.files(split)))

    def fingerprint(self, split: Split) -> str:
        """A digest of the files' contents in order."""
        return _digest(map(read_bytes, self.files(split)))

    def token_limit(self, split: Split) -> int | None:
        """As the corpus prescribes."""
        return self._limits.get(split)


class Pg19Folder(TextFolder):
    """A folder of PG-19 books, cut to the paper's subset."""

    def __init__(self, where: str) -> None:
        super().__init__(where, name="pg19", limits={"validation": PG19_VALIDATION_TOKENS})

    def files(self, split: Split) -> list[Path]:
        """The first 1250 training books by file name; all of the other splits."""
        files = super().files(split)
        return files[:PG19_TRAINING_BOOKS] if split == "train" else files


class Pg19Hub:
    """PG-19 from the Hub, cut to the paper's subset: the first 1250 training books by file name, 15,000 tokens
    of each validation book, the whole test set."""

    name = "pg19"

    def __init__(self, rows: Callable[[Split], Any] | None = None) -> None:
        # A Parquet mirror: the original is a loading script, which `datasets` no longer runs.
        self._rows = rows or (lambda split: _from_hub("pg19", "emozilla/pg19", None, split, _PG19_COMMIT))

    def look(self, split: Split) -> None:
        """It lies on the Hub."""

    def documents(self, split: Split) -> Iterator[Document]:
        """Books in the order of their file names, `10.txt` before `9.txt`, as the paper's listing was."""
        rows = self._rows(split)
        book_file = [f"{url.rstrip('/').rsplit('/', 1)[-1]}.txt" for url in rows["url"]]
        order = sorted(range(len(book_file)), key=book_file.__getitem__)
        for row in order[:PG19_TRAINING_BOOKS] if split == "train" else order:
            yield Document(rows[row]["text"].encode())

    def fingerprint(self, split: Split) -> str:
        """The Hub's own, and the rule for the subset."""
        return f"{self._rows(split)._fingerprint} first {PG19_TRAINING_BOOKS}"

    def token_limit(self, split: Split) -> int | None:
        """The paper's cut of the validation books."""
        return PG19_VALIDATION_TOKENS if split == "validation" else None


class WikiText:
    """WikiText-103 raw, one document per article, from the Hub or from `wiki.SPLIT.raw` files in a folder."""

    name = "wikitext-103"
    _LOCAL: dict[Split, str] = {"train": "wiki.train", "validation": "wiki.valid", "test": "wiki.test"}

    def __init__(self, where: str = "") -> None:
        self.root = Path(where).expanduser() if where else None
        if self.root and not self.root.is_dir():
            raise UserError(
                f"corpus: {self.name}:{where} names no folder; write {self.name}:DIR with a .raw file per split."
            )

    def look(self, split: Split) -> Extent | None:
        """At the split's file, where it is a local one."""
        if self.root is None:
            return None
        return look_at([self._file(split)], f"the {split} split of {self.name}:{self.root}")

    def documents(self, split: Split) -> Iterator[Document]:
        """The articles in their order."""
        return (Document(text.encode()) for text in split_articles(self._lines(split)))

    def fingerprint(self, split: Split) -> str:
        """The Hub's own, or a digest of the file."""
        if self.root is None:
            return self._from_hub(split)._fingerprint
        return _digest([read_bytes(self._file(split))])

    def token_limit(self, split: Split) -> int | None:
        """All of every article."""
        return None

    def _lines(self, split: Split) -> Iterator[str]:
        if self.root is None:
            return iter(self._from_hub(split)["text"])
        (text,) = read_texts([self._file(split)])
        return iter(text.decode().splitlines(keepends=True))

    def _from_hub(self, split: Split) -> Any:
        return _from_hub(self.name, "Salesforce/wikitext", "wikitext-103-raw-v1", split, _WIKITEXT_COMMIT)

    def _file(self, split: Split) -> Path:
        assert self.root is not None
        for ending in (".raw", ".tokens"):
            if (path := self.root / f"{self._LOCAL[split]}{ending}").is_file():
                return path
        raise UserError(f"corpus: {self.root} has no {self._LOCAL[split]}.raw; wikitext-103:DIR needs one per split.")


class HundredMillionBytes:
    """`enwik8` and `text8`: one stream of bytes, the usual 90/5/5 million of them to a split."""

    _EDGES: dict[Split, tuple[int, int]] = {
        "train": (0, 90_000_000),
        "validation": (90_000_000, 95_000_000),
        "test": (95_000_000, 100_000_000),
    }

    def __init__(self, name: str, where: str = "") -> None:
        self.name, self.file = name, Path(where).expanduser() if where else None
        if self.file and not self.file.is_file():
            raise UserError(f"corpus: {name}:{where} names no file; give the plain, .gz or .zip file.")

    def look(self, split: Split) -> Extent | None:
        """At the size of the file, where it is a local one; what a .gz file holds is seen only on reading."""
        if self.file is None:
            return None
        with reading(self.file), self.file.open("rb") as file:
            packed_as = file.read(2)
            if packed_as == _ZIP:
                with zipfile.ZipFile(self.file) as archive:
                    self._check_length(archive.infolist()[0].file_size)
            elif packed_as != _GZIP:
                self._check_length(self.file.stat().st_size)
        begin, end = self._EDGES[split]
        return Extent(files=1, bytes=end - begin)

    def documents(self, split: Split) -> Iterator[Document]:
        """The split as one document."""
        begin, end = self._EDGES[split]
        data = self._read()
        self._check_length(len(data))
        yield Document(data[begin:end])

    def _check_length(self, length: int) -> None:
        if length < self._EDGES["test"][1]:
            raise UserError(f"corpus: {self.file or self.name} holds {length} bytes; {self.name} has 100000000.")

    def fingerprint(self, split: Split) -> str:
        """A digest of the file as it lies on disk."""
        return _digest([read_bytes(self._path())])

    def token_limit(self, split: Split) -> int | None:
        """All of the stream."""
        return None

    def _path(self) -> Path:
        return self.file or _from_home_page(self.name)

    def _read(self) -> bytes:
        path = self._path()
        data = read_bytes(path)
        with reading(path):
            if data[:2] == _ZIP:
                with zipfile.ZipFile(path) as archive:
                    return archive.read(archive.namelist()[0])
            return gzip.decompress(data) if data[:2] == _GZIP else data


def split_articles(lines: Iterator[str]) -> Iterator[str]:
    """WikiText's lines as articles: each begins with ` = Title = `, where ` = = Section = = ` does not."""
    article: list[str] = []
    for line in lines:
        if re.fullmatch(r" = [^=](.*[^=])? = \n?", line) and any(part.strip() for part in article):
            yield "".join(article)
            article = []
        article.append(line)
    if any(part.strip() for part in article):
        yield "".join(article)


def _from_hub(name: str, path: str, config: str | None, split: Split, commit: str) -> Any:
    use_cache_where_offline()
    import datasets

    try:
        return datasets.load_dataset(path, config, split=split, revision=commit)
    except Exception as error:  # datasets and the Hub raise a dozen unrelated types for "cannot be had"
        raise _unreachable(name, f"the Hub ({path})", "DIR", error) from error


def _from_home_page(name: str) -> Path:
    """The archive as its author publishes it, downloaded once; the Hub has only scripts for it."""
    folder, url = cache_folder() / "downloads" / name, f"https://mattmahoney.net/dc/{name}.zip"
    if not folder.is_dir():
        try:
            with (
                urllib.request.urlopen(url, timeout=30) as answer,
                whole_folder(folder) as partial,
                (partial / f"{name}.zip").open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
                expected = int(answer.headers.get("Content-Length") or file.tell())
                if file.tell() != expected:
                    raise http.client.IncompleteRead(b"", expected - file.tell())
                file.flush()
                _check_digest(name, url, partial / f"{name}.zip")
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(name, url, "FILE", error) from error
    return folder / f"{name}.zip"


def _check_digest(name: str, url: str, archive: Path) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _ARCHIVES[name]:
        raise UserError(
            f"corpus: {url} gave another file than its author's (SHA-256 {found}, not {_ARCHIVES[name]}); it was not "
            f"kept. Give a file that you trust as {name}:FILE."
        )


def _unreachable(name: str, where: str, local: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(
        f"corpus: {name} could not be fetched from {where} ({reason[:160]}); check the network, or give local "
        f"files as {name}:{local}."
    )


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _open_hotpotqa(where: str) -> Corpus:
    if where:
        return hotpotqa_files(where)
    return HotpotQAHub(lambda split: _from_hub("hotpotqa", "hotpotqa/hotpot_qa", "distractor", split, _HOTPOTQA_COMMIT))


def _whole(corpus: Corpus) -> Callable[[str], Corpus]:
    """A built-in corpus that there is no choice in."""

    def opened(where: str) -> Corpus:
        if where:
            raise UserError(
                f"corpus: {corpus.name} takes nothing after its name, and {where!r} stands there; "
                f"write just {corpus.name}."
            )
        return corpus

    return opened


CORPORA: dict[str, CorpusKind] = {
    "stdlib": CorpusKind(
        "help topics and docstrings of this Python, about 2 MB of English", "nothing", _whole(StdlibCorpus())
    ),
    "tales": CorpusKind(
        "synthetic: made-up tales, each of one hero in one scene, which short windows soon forget", "nothing",
        _whole(TalesCorpus()),
    ),
    "recall": CorpusKind(
        "synthetic: a fact stated in one window is asked for LAG windows later (recall:lag=2)",
        "nothing", RecallCorpus.parse,
    ),
    "wikitext-103": CorpusKind(
        "29,000 Wikipedia articles, raw (wikitext-103:DIR for local files)", "the Hub or files", WikiText
    ),
    "pg19": CorpusKind(
        "books before 1919, the paper's subset of 1250 (pg19:DIR for local files)", "the Hub or files",
        lambda where: Pg19Folder(where) if where else Pg19Hub(),
    ),
    "enwik8": CorpusKind(
        "100 million bytes of Wikipedia's XML, split 90/5/5 (enwik8:FILE for a local file)", "network or a file",
        lambda where: HundredMillionBytes("enwik8", where),
    ),
    "text8": CorpusKind(
        "the same cleaned to a-z and spaces, split 90/5/5 (text8:FILE for a local file)", "network or a file",
        lambda where: HundredMillionBytes("text8", where),
    ),
    "text": CorpusKind("any folder of text files, text:DIR with train, validation and test in it", "files", TextFolder),
    "hotpotqa": CorpusKind(
        "questions over ten paragraphs each, distractor setting (hotpotqa:FILE for the official JSON)",
        "the Hub or files", _open_hotpotqa,
    ),
    "squad": CorpusKind("questions in SQuAD's file format, squad:FILE", "a file", squad_files),
    "spans": CorpusKind(
        "questions of words that recur in any folder of text files, spans:DIR as text:DIR", "files",
        lambda where: SpansCorpus(TextFolder(where, name="spans")),
    ),
    "facts": CorpusKind(
        "synthetic questions, whose answer needs a fact from LAG paragraphs before (facts:lag=1)", "nothing",
        FactsCorpus.parse,
    ),
}  # fmt: skip
