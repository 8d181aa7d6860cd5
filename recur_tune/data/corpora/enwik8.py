"""`enwik8` and `text8`: the first 100 million bytes of Wikipedia, as XML and as plain letters (Mahoney)."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import shutil
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder, reading, whole_folder
from recur_tune.data.corpora.document import Corpus, Document, Extent, Split
from recur_tune.data.corpora.fetching import unreachable
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.text_files import digest_of, read_bytes

_ZIP, _GZIP = b"PK", b"\x1f\x8b"  # how such a file begins
_ARCHIVES = {  # SHA-256 of what their author publishes
    "enwik8": "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    "text8": "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
}


class WikipediaBytes(Corpus):
    """One stream of bytes, the usual 90/5/5 million of them to a split."""

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
        return digest_of([read_bytes(self._path())])

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
            raise unreachable(name, url, "FILE", error) from error
    return folder / f"{name}.zip"


def _check_digest(name: str, url: str, archive: Path) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _ARCHIVES[name]:
        raise UserError(
            f"corpus: {url} gave another file than its author's (SHA-256 {found}, not {_ARCHIVES[name]}); it was not "
            f"kept. Give a file that you trust as {name}:FILE."
        )


ENWIK8 = CorpusKind(
    name="enwik8",
    summary="100 million bytes of Wikipedia's XML, split 90/5/5 (enwik8:FILE for a local file)",
    needs="network or a file",
    open=lambda where: WikipediaBytes("enwik8", where),
)
TEXT8 = CorpusKind(
    name="text8",
    summary="the same cleaned to a-z and spaces, split 90/5/5 (text8:FILE for a local file)",
    needs="network or a file",
    open=lambda where: WikipediaBytes("text8", where),
)
