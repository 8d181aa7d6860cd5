"""For mkdocs: the README files of this repository as pages, without a second copy of them.

On disk a link leads to a file of the repository. On the site it leads to the file's page; a file that is none goes
along as it is, and of a link to a folder only the words stay.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "recur_tune/sites/profiles/README.md": "slurm.md",
    "dashboards/README.md": "dashboards.md",
    "benchmarks/README.md": "benchmarks.md",
}
_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"\[(?P<words>[^][]*)\]\((?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README files to the pages."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mend a page's links, and its lists for mkdocs."""
    source = ROOT / _SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def mended(link: re.Match[str]) -> str:
        target = (source.parent / link["target"]).resolve()
        if ":" in link["target"] or not target.exists():  # an address, or broken: mkdocs says so
            return link[0]
        if target.is_dir():
            return link["words"]
        path = target.relative_to(ROOT).as_posix()
        place = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(target)))
        there = posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{link['words']}]({there}{link['anchor'] or ''})"

    return _LINK.sub(mended, "\n".join(_with_lists(markdown.splitlines())))


def _with_lists(lines: list[str]) -> list[str]:
    """GitHub knows a list that follows a paragraph, and what is three spaces further in than its numbers.

    mkdocs wants an empty line before the list, and four spaces.
    """
    mended: list[str] = []
    fenced = listed = False
    for line in lines:
        fenced ^= line.startswith("```")
        if not fenced:
            begins = re.match(r"(-|\d+\.) ", line) is not None
            if begins and not listed and mended and mended[-1]:
                mended.append("")
            listed = begins or (listed and (not line or line.startswith(" ")))
        mended.append(f" {line}" if listed and line.startswith("   ") else line)
    return mended
