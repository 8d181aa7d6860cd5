"""`stdlib`: the English that every Python carries, so that a first run needs no network.

One document per help topic of `pydoc_data.topics` and one per module or package of the standard library,
made of its docstrings. A tenth of the documents goes to validation and a tenth to test, by a
hash of their names.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pydoc_data import topics

from recur_tune.data.corpora.document import Corpus, Document, Split
from recur_tune.data.corpora.kind import CorpusKind, without_options

# Not written to be read: tests, generated tables, vendored wheels and other people's packages.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "ensurepip", "pydoc_data"}
_SHORTEST_BYTES = 400


class StdlibCorpus(Corpus):
    """The documents described above; the same for every install of the same Python version."""

    name = "stdlib"

    def documents(self, split: Split) -> Iterator[Document]:
        """The documents of a split, by name."""
        for name, text in sorted(_texts().items()):
            if _split_of(name) == split:
                yield Document(text.encode())

    def fingerprint(self, split: Split) -> str:
        """Which files the text would be read from, without reading them."""
        listing = [f"{path} {path.stat().st_size}" for path in source_files()]
        return hashlib.sha256("\n".join([f"{sys.version} without repeats", *listing]).encode()).hexdigest()


def _split_of(name: str) -> Split:
    bucket = hashlib.sha256(name.encode()).digest()[0] % 10
    return "test" if bucket == 0 else "validation" if bucket == 1 else "train"


@cache
def source_files() -> list[Path]:
    """Once a process: every trial of a search asks, and a library does not change under a running Python."""
    found = []
    for folder, subfolders, files in os.walk(sysconfig.get_paths()["stdlib"]):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]  # site-packages may be large
        found += [Path(folder, name) for name in files if name.endswith(".py") and name not in _LEFT_OUT]
    return sorted(found)


@cache
def _texts() -> dict[str, str]:
    """Every document by name; parsing the library takes seconds, so once a process."""
    texts = {f"topic {name}": text for name, text in topics.topics.items()}
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in source_files():
        module = path.relative_to(root).parts[0].removesuffix(".py")
        texts[f"module {module}"] = texts.get(f"module {module}", "") + _docstrings(path)
    texts = _without_repeats(texts)
    return {name: text for name, text in texts.items() if len(text) >= _SHORTEST_BYTES}


def _without_repeats(texts: dict[str, str]) -> dict[str, str]:
    """Keep the first of equal paragraphs: topics quote each other, and what is tested must not have been trained on."""
    seen: set[str] = set()
    kept: dict[str, str] = {}
    for name, text in sorted(texts.items()):
        paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph.strip() not in seen]
        seen.update(paragraph.strip() for paragraph in paragraphs)
        kept[name] = "\n\n".join(paragraphs)
    return kept


def _docstrings(path: Path) -> str:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a few files of the library are broken on purpose
        return ""
    named = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    parts = []
    for node in ast.walk(tree):
        if isinstance(node, named) and (text := ast.get_docstring(node, clean=False)):
            heading = getattr(node, "name", path.stem)
            parts.append(f"{heading}: {inspect.cleandoc(text)}\n\n")
    return "".join(parts)


STDLIB = CorpusKind(
    name="stdlib",
    summary="help topics and docstrings of this Python, about 2 MB of English",
    needs="nothing",
    open=without_options(StdlibCorpus()),
)
