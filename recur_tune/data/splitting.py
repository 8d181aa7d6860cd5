"""Splitting: a folder of text files, or a single file, becomes the three splits of a corpus `text:DIR`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.files import whole_folder
from recur_tune.data.corpora.document import SPLITS, Extent, Split
from recur_tune.data.corpora.text_files import digest_of, read_texts

Files = dict[Split, dict[str, bytes]]  # by split and name

_GAP = b"\n\n"


def split_texts(source: Path, target: Path, validation: float, test: float, seed: int = 0) -> dict[Split, Extent]:
    """Copy the texts of `source` into the folders `train`, `validation` and `test` of `target`.

    A folder's files, those of folders within it too, are shuffled; each stays whole. Of files with equal content one is
    copied: a text that was trained on must not be scored. A single file is cut at empty lines into three documents, in
    its own order.

    Args:
        source: The folder, or the file.
        target: A new folder.
        validation: The share of the bytes for validation; roughly, because no file of a folder is cut.
        test: The same for test.
        seed: Decides which file goes where.

    Returns:
        What each split has.
    """
    shares: dict[Split, float] = {"train": 1 - validation - test, "validation": validation, "test": test}
    if shares["train"] <= 0:
        raise UserError(f"validation: {validation:.0%}, and {test:.0%} for test, leave nothing to train on; take less.")
    files = _cut(source, shares) if source.is_file() else _deal(source, shares, seed)
    with whole_folder(target) as folder:
        for split, texts in files.items():
            (folder / split).mkdir()
            for name, text in texts.items():
                (folder / split / name).write_bytes(text)
    return {split: Extent(len(texts), sum(map(len, texts.values()))) for split, texts in files.items()}


def _deal(source: Path, shares: Mapping[Split, float], seed: int) -> Files:
    """Whole files, each to the split that lacks most of its share. The longest one is trained on."""
    texts = _different_texts(source)
    if len(texts) < len(SPLITS):
        raise UserError(
            f"source: {source} has {len(texts)} text files with different text, and every one of the {len(SPLITS)} "
            "splits needs one; add some, or give a single file, which is cut in three."
        )
    lacking = {split: share * sum(map(len, texts.values())) for split, share in shares.items()}
    longest, *others = sorted(texts, key=lambda name: (-len(texts[name]), name))
    random.Random(seed).shuffle(others)
    files: Files = {split: {} for split in SPLITS}
    for number, name in enumerate([longest, *others]):
        split = SPLITS[number] if number < len(SPLITS) else max(SPLITS, key=lacking.__getitem__)
        files[split][name] = texts[name]
        lacking[split] -= len(texts[name])
    return files


def _different_texts(source: Path) -> dict[str, bytes]:
    """Texts by the name of their copy, without empty ones and copies of others."""
    paths = sorted(path for path in source.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(source)))
    texts: dict[str, bytes] = {}
    known: set[str] = set()
    for path, text in zip(paths, read_texts(paths), strict=True):
        if text and (digest := digest_of([text])) not in known:
            known.add(digest)
            name = "-".join(path.relative_to(source).parts)
            if name in texts:
                raise UserError(f"source: two files in {source} would both be called {name}; rename one of them.")
            texts[name] = text
    return texts


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _cut(source: Path, shares: Mapping[Split, float]) -> Files:
    """One file in three, each ending after an empty line."""
    text = next(read_texts([source]))
    files: Files = {}
    begin, share = 0, 0.0
    for split in SPLITS:
        share += shares[split]
        gap = text.find(_GAP, max(begin, round(share * len(text)) - len(_GAP)))
        end = len(text) if gap < 0 or split == SPLITS[-1] else gap + len(_GAP)
        if not text[begin:end].strip():
            raise UserError(f"source: {source} has too few empty lines to be cut in three there; give several files.")
        files[split] = {source.name: text[begin:end]}
        begin = end
    return files
