"""GGUF files, unpacked once: a process that opens one reads what the first has left in Hugging Face's format.

transformers parses a GGUF file in Python, every token of its vocabulary, for its configuration, its tokenizer and its
weights each, and a trial asks for some of them several times: half a minute before its first step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder, whole_folder
from recur_tune.common.made_once import made_once


def unpacked(base: str, part: str, unpack: Callable[[Path, Path], None]) -> str:
    """Where a part of a base lies: of a GGUF file in a folder of the cache, which `unpack` fills the first time; any
    other base is what it is called. A file that has changed, and another version of transformers, which may read it in
    another way, have folders of their own."""
    if not base.endswith(".gguf"):
        return base
    file = Path(base).expanduser()
    if not file.is_file():
        raise UserError(f"base: there is no file {base}.")
    if not all(map(find_spec, ("gguf", "accelerate"))):
        raise UserError(f"base: {base} is a GGUF file, which needs further packages: pip install 'recur-tune[gguf]'.")
    found = file.stat()
    read_from = f"{file.resolve()} {found.st_size} {found.st_mtime_ns} {version('transformers')}"
    folder = cache_folder() / "gguf" / f"{file.stem}-{hashlib.sha256(read_from.encode()).hexdigest()[:16]}" / part

    def make() -> None:
        with whole_folder(folder) as partial:
            unpack(file, partial)

    made_once(folder, make)
    return str(folder)
