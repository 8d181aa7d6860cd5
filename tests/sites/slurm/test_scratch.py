"""Who comes next removes the scratch folders of the dead, and of nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from recur_tune.common.errors import UserError
from recur_tune.search.record.process_identity import ProcessIdentity
from recur_tune.sites.slurm.scratch import own_scratch

_MAKE_ONE = """
import pathlib, sys
from recur_tune.sites.slurm.scratch import own_scratch
print(own_scratch(pathlib.Path(sys.argv[1])))
"""


@pytest.fixture
def parent() -> Iterator[Path]:
    """As short a path as a node's own, for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="s") as folder:
        yield Path(folder)


def left_by(parent: Path, name: str, holder: ProcessIdentity | None) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "ray.log").write_text("x")
    if holder is not None:
        (folder / "holder.json").write_text(json.dumps(asdict(holder)))
    return folder


def test_a_killed_steps_folder_is_removed_by_the_next(parent: Path) -> None:
    said = subprocess.run([sys.executable, "-c", _MAKE_ONE, str(parent)], capture_output=True, text=True, check=True)
    left = Path(said.stdout.strip())
    assert left.is_dir(), "its maker is gone, and it is not"
    own = own_scratch(parent)
    assert own.is_dir() and not left.exists()
    assert own_scratch(parent) != own and own.is_dir(), "the living keep theirs"


def test_what_nobody_can_tell_of_is_left_alone(parent: Path) -> None:
    elsewhere = replace(ProcessIdentity.current(), host="other", machine="other", boot="other")
    kept = [left_by(parent, "rt-elsewhere", elsewhere), left_by(parent, "rt-unsigned", None)]
    damaged = left_by(parent, "rt-damaged", None)
    (damaged / "holder.json").write_text("{")
    own_scratch(parent)
    assert all(one.is_dir() for one in (*kept, damaged))


def test_a_path_that_sockets_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at most 40 characters"):
        own_scratch(tmp_path / ("long" * 10))
