"""Packages from outside, as the documentation has them: its pages are their source."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.forked import HOOK

ROOT = Path(__file__).parents[2]
_FENCED = re.compile(r"^```\w+\n# (?P<file>\S+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(page: str) -> dict[str, str]:
    """The files that a page shows: every block of code begins with a comment that names its file."""
    return {block["file"]: block["text"] for block in _FENCED.finditer((ROOT / "docs" / f"{page}.md").read_text())}


def install(page: str, folder: Path, **changed: str) -> dict[str, Any]:
    """Leave of a page's package what pip would leave, with words in its files `changed`; what it says of itself."""
    files = files_of(page)
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    for name, text in files.items():
        for old, new in changed.items():
            text = text.replace(old, new)
        (folder / name).write_text(text)
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return project


def python(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A new Python, which finds the packages in this folder."""
    places = os.pathsep.join([str(folder), str(ROOT)])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places, **environment}
    env.pop(HOOK, None)  # the fork server has looked for packages before these were there
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)


# One process for all commands: each would load torch again.
_PROGRAM = """
import json, sys
from click.testing import CliRunner
from recur_tune.cli.main import cli

said = {}
for name, words in json.loads(sys.argv[1]).items():
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, (words, done.stderr)
    said[name] = done.stdout
    said.setdefault("torch", "torch" in sys.modules)
exec(sys.argv[2])
print(json.dumps(said))
"""


def commands(folder: Path, named: dict[str, list[str]], then: str = "", **environment: str) -> dict[str, Any]:
    """What each command says on stdout, whether the first one loaded `torch`, and what code `then` adds to it."""
    done = python(folder, "-c", _PROGRAM, json.dumps(named), then, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
