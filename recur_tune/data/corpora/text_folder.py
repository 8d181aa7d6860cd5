"""`text`: any folder of text files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.data.corpora.document import Corpus, Document, Extent, Split
from recur_tune.data.corpora.kind import CorpusKind
from recur_tune.data.corpora.text_files import digest_of, look_at, read_bytes, read_texts

_FOLDER_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


class TextFolder(Corpus):
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
        raise UserError(
            f"corpus: {self.root} has no {split} split; it needs a folder or a .txt file called {split}. "
            f"`recur-tune data split {self.root} --to texts` makes all three from a folder of texts."
        )

    def look(self, split: Split) -> Extent:
        """At the files of the split."""
        return look_at(self.files(split), f"the {split} split of {self.name}:{self.root}")

    def documents(self, split: Split) -> Iterator[Document]:
        """One document per file."""
        return map(Document, read_texts(self.files(split)))

    def fingerprint(self, split: Split) -> str:
        """A digest of the files' contents in order."""
        return digest_of(map(read_bytes, self.files(split)))

    def token_limit(self, split: Split) -> int | None:
        """As the corpus prescribes."""
        return self._limits.get(split)


TEXT = CorpusKind(
    name="text",
    summary="any folder of text files, text:DIR with train, validation and test in it",
    needs="files",
    open=TextFolder,
)
