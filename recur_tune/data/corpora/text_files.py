"""Text files: UTF-8 without NUL bytes. A file that is anything else is refused by its name, never repaired.

A program or a picture among the books would become half of a corpus without a word, and a book in another encoding one
full of replacement characters.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.files import reading
from recur_tune.data.corpora.document import Extent

_HEAD_BYTES = 4096  # what a look at a file reads; in programs, pictures and archives it never is text
_NAMED = 3  # files of a refusal; the others are counted


def read_bytes(path: Path) -> bytes:
    """A file's content; one that cannot be read is one sentence."""
    with reading(path):
        return path.read_bytes()


def read_texts(files: Sequence[Path]) -> Iterator[bytes]:
    """The content of each. At the first that is no text all of them are looked through, so that the refusal can name
    and count every such file."""
    for path in files:
        data = read_bytes(path)
        if flaw(data):
            found = {each: why for each in files if (why := flaw(read_bytes(each)))}
            raise _refusal(found, len(files))
        yield data


def look_at(files: Sequence[Path], split: str) -> Extent:
    """How much text a split has, by its files' sizes and first few thousand bytes; `split` is how it is called."""
    if not files:
        raise UserError(f"corpus: {split} holds no file; put its text files there.")
    sizes = {path: _size(path) for path in files}
    if max(sizes.values()) < 2:
        many = f"its {len(files)} files have" if len(files) > 1 else f"{files[0]} has"
        raise UserError(f"corpus: {split} holds no text: {many} less than two bytes.")
    found = {path: why for path in files if (why := flaw(_head(path), whole=sizes[path] <= _HEAD_BYTES))}
    if found:
        raise _refusal(found, len(files))
    return Extent(files=len(files), bytes=sum(sizes.values()))


def digest_of(parts: Iterable[bytes]) -> str:
    """A digest of contents in their order."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def flaw(data: bytes, whole: bool = True) -> str | None:
    """Why these bytes are no text; None where they are. A character may be cut at the end of what is not `whole`."""
    if (at := data.find(b"\0")) >= 0:
        return f"a NUL byte at offset {at}"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError as error:
        return f"byte 0x{data[error.start]:02x} at offset {error.start}"
    return None


def _refusal(flaws: Mapping[Path, str], files: int) -> UserError:
    named = ", ".join(f"{path.name} ({why})" for path, why in list(flaws.items())[:_NAMED])
    if files == 1:
        (path,) = flaws
        return UserError(f"corpus: {path} is no text in UTF-8 ({flaws[path]}); convert it to UTF-8.")
    more = f" and {len(flaws) - _NAMED} more" if len(flaws) > _NAMED else ""
    verb, them = ("is", "it") if len(flaws) == 1 else ("are", "them")
    return UserError(
        f"corpus: {len(flaws)} of {files} files in {next(iter(flaws)).parent} {verb} no text in UTF-8: {named}{more}; "
        f"convert {them} to UTF-8 or take {them} out."
    )


def _size(path: Path) -> int:
    with reading(path):
        return path.stat().st_size


def _head(path: Path) -> bytes:
    with reading(path), path.open("rb") as file:
        return file.read(_HEAD_BYTES)
