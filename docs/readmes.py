"""For mkdocs: Markdown files outside of docs/ as pages, without a second copy of them.

On disk a link leads to a file of the repository. On the site it leads to the file's page. A file that is not a page is
copied to the site, and a link to a folder becomes plain text.
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
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"\[(?P<words>[^][]*)\]\((?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ to the pages."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a page's links for the site, and its lists for mkdocs."""
    source = ROOT / _SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def rewritten(link: re.Match[str]) -> str:
        target = (source.parent / link["target"]).resolve()
        if ":" in link["target"] or not target.exists():  # a URL, or broken: mkdocs warns
            return link[0]
        if target.is_dir():
            return link["words"]
        path = target.relative_to(ROOT).as_posix()
        place = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(target)))
        there = posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{link['words']}]({there}{link['anchor'] or ''})"

    return _LINK.sub(rewritten, "\n".join(_with_lists(markdown.splitlines())))


def _with_lists(lines: list[str]) -> list[str]:
    """Lists as mkdocs needs them: an empty line before a list, and four spaces of indentation.

    GitHub accepts a list right after a paragraph, and three spaces.
    """
    lines_out: list[str] = []
    fenced = listed = False
    for line in lines:
        fenced ^= line.startswith("```")
        if not fenced:
            begins = re.match(r"(-|\d+\.) ", line) is not None
            if begins and not listed and lines_out and lines_out[-1]:
                lines_out.append("")
            listed = begins or (listed and (not line or line.startswith(" ")))
        lines_out.append(f" {line}" if listed and line.startswith("   ") else line)
    return lines_out
