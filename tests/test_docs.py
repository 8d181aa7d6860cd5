"""What the documentation says is there: its links, pictures, files and pages, and every command with its options."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml

import recur_tune
from recur_tune.cli.main import cli
from recur_tune.common.shipped import SEARCH_SPACES, find_space
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.models.pretrained import save_model
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.search.record.objectives import OBJECTIVES
from recur_tune.search.record.spec import SearchSpec
from tests.cli.books import make_books
from tests.conftest import small_model
from tests.tracking.tracked import rich_search

ROOT = Path(__file__).parents[1]
OUTSIDE = {  # pages of the site that do not lie in docs/, as docs/readmes.py has them
    "index.md": ROOT / "README.md",
    "slurm.md": ROOT / "recur_tune" / "sites" / "profiles" / "README.md",
    "dashboards.md": ROOT / "dashboards" / "README.md",
    "benchmarks.md": ROOT / "benchmarks" / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "changelog.md": ROOT / "CHANGELOG.md",
    "security.md": ROOT / "SECURITY.md",
}
PAGES = [*OUTSIDE.values(), *sorted((ROOT / "docs").rglob("*.md"))]
PICTURES = [*sorted((ROOT / "docs").glob("*.png")), *sorted((ROOT / "docs" / "pictures").iterdir())]
MOST_BYTES = 300_000  # of a picture
MOST_LINES = 150  # of the README

_FENCED = re.compile(r"^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_ELSEWHERE = ("http://", "https://", "#")
_PLACEHOLDERS = {"COMMAND"}
_FILE = re.compile(r"`((?:recur_tune|tests|docs|trials|experiments|benchmarks|dashboards)/[\w/.-]+)`")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def links(page: Path) -> Iterator[Path]:
    """The files and folders that a page leads to or shows."""
    for target in _LINK.findall(_FENCED.sub("", page.read_text())):
        if not target.startswith(_ELSEWHERE):
            yield page.parent / target.partition("#")[0]


def commands(text: str) -> Iterator[list[str]]:
    """What stands after `recur-tune` wherever it is typed: without comments, brackets, bars and dots."""
    for line in text.replace("\\\n", " ").splitlines():  # a backslash continues a line
        plain = re.sub(r"[][|…]", " ", re.sub(r"\s#.*", "", line))
        for typed in re.findall(r"(?<!\S)recur-tune (.*?)(?=\srecur-tune |[;>&]|$)", plain):
            words = shlex.split(typed)
            if words and words[0] not in _PLACEHOLDERS:
                yield words


def check(words: list[str], whole: bool = True) -> None:
    """Refuse what the command line would refuse before it begins."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    if isinstance(command, click.Group) and not words:
        return
    try:
        command.make_context(command.name, list(words))
    except click.exceptions.Exit:  # --help
        pass
    except click.MissingParameter:
        assert not whole


@every_page
def test_what_a_page_leads_to_is_there(page: Path) -> None:
    assert [str(target) for target in links(page) if not target.exists()] == []


@every_page
def test_a_file_that_a_page_names_is_there(page: Path) -> None:
    named = [name for name in _FILE.findall(page.read_text()) if "NAME" not in name]
    assert [name for name in named if not (ROOT / name).exists()] == []


@every_page
def test_what_a_page_says_to_type_can_be_typed(page: Path) -> None:
    text = page.read_text()
    wrong = []
    typed = [(words, True) for block in _FENCED.finditer(text) for words in commands(block["text"])]
    named = (" ".join(code.split()) for code in _INLINE.findall(_FENCED.sub("", text)))
    typed += [(words, False) for code in named for words in commands(code)]
    for words, whole in typed:
        try:
            check(words, whole)
        except (click.ClickException, AssertionError) as error:
            wrong.append(f"recur-tune {shlex.join(words)}: {error}")
    assert wrong == []


@pytest.mark.parametrize(
    "wrong", ["serch", "search --nams books", "search --trials many", "status a b", "dashboards sideways", "remove"]
)
def test_a_command_that_is_none_would_be_found(wrong: str) -> None:
    (words,) = commands(f"$ recur-tune {wrong}   # a remark")
    with pytest.raises((click.ClickException, AssertionError)):
        check(words)


def test_every_command_of_a_line_is_looked_at() -> None:
    line = "  recur-tune status [books] [--follow]     recur-tune eval a ; recur-tune front b [--json | --csv] > f  # x"
    assert [*commands(line)] == [["status", "books", "--follow"], ["eval", "a"], ["front", "b", "--json", "--csv"]]


def test_the_readmes_python_can_be_pasted_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the README, and those of the page on one trial."""
    model = small_model(PooledSpec(width=8, depth=1), vocab_size=256)
    model.config.window, model.config.overlap = 16, 4
    save_model(model, byte_tokenizer(), tmp_path / "runs" / "a")
    searched = []

    def search(space: str, name: str) -> SimpleNamespace:
        searched.append(find_space(space))
        make_books(tmp_path / "results")
        (tmp_path / "results" / "books").rename(tmp_path / "results" / name)
        return SimpleNamespace(front=name)

    monkeypatch.setattr(recur_tune, "search", search)
    monkeypatch.delenv("RECUR_TUNE_RESULTS", raising=False)
    monkeypatch.chdir(tmp_path)
    pasted: dict[str, Any] = {}
    for page in (ROOT / "README.md", ROOT / "docs" / "one-trial.md"):
        for block in _FENCED.finditer(page.read_text()):
            if block["language"] == "python":
                exec(block["text"], pasted)
    assert searched == [SEARCH_SPACES / "quickstart.yaml"]
    assert pasted["result"].status == "interrupted", "opened again by its name"
    assert pasted["logits"].shape == (1, len("The file is open for "), 256)
    assert pasted["loss"].isfinite() and pasted["written"].startswith("The file is open for ")


def test_the_script_for_wandb_logs_what_the_log_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb is not among our packages: a stand-in keeps what it is told."""
    directory, told = rich_search(tmp_path / "results", name="books"), []

    class Run:
        def __init__(self, **about: Any) -> None:
            self.about, self.logged, self.summary, self.finished = about, [], {}, False
            told.append(self)

        def log(self, metrics: dict[str, float], step: int) -> None:
            self.logged.append((step, metrics))

        def finish(self) -> None:
            self.finished = True

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=Run))
    monkeypatch.chdir(tmp_path)
    [script] = [
        block["text"]
        for block in _FENCED.finditer((ROOT / "docs" / "other-tools.md").read_text())
        if block["language"] == "python"
    ]
    exec(script, {})
    trials = directory.state().trials.values()
    assert [run.about["name"] for run in told] == [trial.name for trial in trials]
    assert len({run.about["id"] for run in told}) == len(told) and {run.about["group"] for run in told} == {"books"}
    for run, trial in zip(told, trials, strict=True):
        assert (run.about["config"], run.about["tags"]) == (trial.params, [trial.state])
        assert run.logged == [(one.tokens, one.metrics) for one in trial.validations]
        assert run.summary == trial.costs and run.finished


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_shown_and_small(picture: Path) -> None:
    assert picture.resolve() in {target.resolve() for page in PAGES for target in links(page)}
    assert picture.stat().st_size <= MOST_BYTES


def test_every_space_field_and_objective_of_a_search_is_explained() -> None:
    text = (ROOT / "docs" / "spaces.md").read_text()
    shipped, _, fields_and_objectives = text.partition("## From a shipped space to your own")
    assert {path.stem for path in SEARCH_SPACES.glob("*.yaml")} <= set(re.findall(r"`([\w-]+)`", shipped))
    explained = set(re.findall(r"^\| `([\w.]+)` \|", fields_and_objectives, re.MULTILINE))
    fields = set(SearchSpec.model_fields) - {"space"}
    for section in ("budget", "resources", "sampler"):
        fields.remove(section)
        fields |= {f"{section}.{name}" for name in SearchSpec.model_fields[section].annotation.model_fields}
    assert explained == fields | OBJECTIVES.keys()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES


def nav() -> list[str]:
    """The pages of the site's menu, section by section."""
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    return [page for section in sections for pages in section.values() for one in pages for page in one.values()]


def test_the_menu_has_every_page_once() -> None:
    pages = [OUTSIDE.get(name, ROOT / "docs" / name) for name in nav()]
    assert sorted(pages) == sorted(PAGES)


def test_links_lead_from_the_readme_to_every_page() -> None:
    reached, new = set[Path](), {ROOT / "README.md"}
    while new:
        reached |= new
        new = {target.resolve() for page in new for target in links(page) if target.suffix == ".md"} - reached
    assert {page.relative_to(ROOT) for page in set(PAGES) - reached} == set()


def test_the_site_is_built_without_a_warning_and_needs_no_other_server(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages = {page.stem: page.read_text() for page in tmp_path.glob("*.html")}
    assert {name.removesuffix(".md") for name in nav() if "/" not in name} <= pages.keys()
    for text in pages.values():
        assert re.findall(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*", text) == []
