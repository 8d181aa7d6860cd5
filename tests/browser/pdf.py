"""As much of a PDF as Chromium writes: the size of every page, and the words on it."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sheet:
    """A page of paper."""

    size: tuple[int, int]  # width and height in points
    words: list[str]  # pieces of text, as they were drawn


def sheets(path: Path) -> list[Sheet]:
    """Every page."""
    objects = {
        int(number): content
        for number, content in re.findall(rb"(?:^|\n)(\d+) 0 obj\n(.*?)\nendobj", path.read_bytes(), re.DOTALL)
    }
    return [_sheet(one, objects) for one in objects.values() if re.search(rb"/Type /Page\b", one)]


def _sheet(page: bytes, objects: dict[int, bytes]) -> Sheet:
    _, _, width, height = map(float, re.search(rb"/MediaBox \[(.*?)\]", page)[1].split())  # type: ignore[index]
    fonts = {
        name: _letters(objects[int(number)], objects)
        for listed in re.findall(rb"/Font <<(.*?)>>", page, re.DOTALL)
        for name, number in re.findall(rb"/(\w+) (\d+) 0 R", listed)
    }
    drawn = _stream(objects[_reference(page, b"Contents")])
    words = []
    for text in re.findall(rb"\bBT\n(.*?)\bET\b", drawn, re.DOTALL):
        letters: dict[int, str] = {}
        word = ""
        for font, glyphs in re.findall(rb"/(\w+) \S+ Tf|<([0-9A-F]+)> Tj", text):
            letters = fonts.get(font, letters)
            word += "".join(letters.get(int(glyphs[at : at + 4], 16), "") for at in range(0, len(glyphs), 4))
        words.append(word)
    return Sheet((round(width), round(height)), words)


def _letters(font: bytes, objects: dict[int, bytes]) -> dict[int, str]:
    """What each glyph of a font stands for."""
    table = _stream(objects[_reference(font, b"ToUnicode")])
    single = re.findall(rb"\n<(\w{4})> <(\w{4})>(?=\n)", table)
    letters = {int(glyph, 16): chr(int(code, 16)) for glyph, code in single}
    for first, last, code in re.findall(rb"<(\w{4})> <(\w{4})> <(\w{4})>\n", table):
        letters |= {int(first, 16) + at: chr(int(code, 16) + at) for at in range(int(last, 16) - int(first, 16) + 1)}
    return letters


def _reference(content: bytes, name: bytes) -> int:
    return int(re.search(rb"/" + name + rb" (\d+) 0 R", content)[1])  # type: ignore[index]


def _stream(content: bytes) -> bytes:
    return zlib.decompress(re.search(rb"stream\n(.*?)\nendstream", content, re.DOTALL)[1])  # type: ignore[index]
