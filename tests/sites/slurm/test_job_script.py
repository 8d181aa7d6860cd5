"""The job script, as golden files; and nothing that a user may call something runs as shell."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.common.shipped import KUBERAY, SITE_PROFILES
from recur_tune.sites.slurm.job_script import render
from recur_tune.sites.slurm.profile import Profile, read_profile

_GOLDEN = Path(__file__).parent / "golden"


def profile(**fields: Any) -> Profile:
    return parse(Profile, fields)


@pytest.mark.parametrize("name", sorted(path.stem for path in SITE_PROFILES.glob("*.yaml") if path != KUBERAY))
def test_shipped_profiles_make_these_scripts(name: str) -> None:
    site = read_profile(name, nodes=2, python="python")
    script = render(site, "books", Path("/shared/results/books"), "job", "host")
    golden = _GOLDEN / f"{name}.sh"
    if os.environ.get("RECUR_TUNE_WRITE_GOLDEN"):
        golden.write_text(script)
    assert script == golden.read_text()


def test_every_field_has_its_directive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "physics")
    site = profile(
        partition="gpu", account="lab", qos="high", nodes=3, gpus_per_node=2, gpu_type="h100",
        gpu_request="gpus-per-node", cpus_per_node=16, memory_per_node="64GiB", time="1-12", constraint="ib&fast",
        reservation="night", directives=["--exclusive", "--mail-type=END"], skip=["no-kill"], requeue=False,
        warning="10m", setup=["module load cuda"], environment={"A": "it's $LAB"}, python="python3 -X dev",
    )  # fmt: skip
    assert render(site, "s", Path("/r/s")).splitlines() == [
        "#!/bin/bash", "#SBATCH --job-name=recur-tune-s", "#SBATCH --output=job-%j.log", "#SBATCH --open-mode=append",
        "#SBATCH --partition=gpu", "#SBATCH --account=lab", "#SBATCH --qos=high", "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=1", "#SBATCH --cpus-per-task=16", "#SBATCH --mem=65536M",
        "#SBATCH --gpus-per-node=h100:2", "#SBATCH --time=1-12:00:00", "#SBATCH --constraint=ib&fast",
        "#SBATCH --reservation=night", "#SBATCH --signal=B:USR1@600", "#SBATCH --no-requeue", "#SBATCH --exclusive",
        "#SBATCH --mail-type=END", "",
        "trap 'echo \"recur-tune: the set-up failed at: $BASH_COMMAND\" >&2' ERR", "set -e", "module load cuda",
        "set +e", "trap - ERR", "export A='it'\"'\"'s physics'",
        "exec python3 -X dev -m recur_tune.sites.slurm.job /r/s",
    ]  # fmt: skip


def test_a_variable_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB", raising=False)
    with pytest.raises(UserError, match=r"environment.A: '\$LAB/cache' names a variable that is not set here"):
        render(profile(environment={"A": "$LAB/cache"}), "s", Path("/r/s"))


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40))
def test_no_folder_or_value_runs_as_shell(text: str) -> None:
    """The shell takes every path as one word, letter by letter, and runs nothing but the one command."""
    folder = Path("/r") / text.replace("/", "_")
    try:
        script = render(profile(python="printf '%s\\n'", environment={"A": text}), "s", folder, "job")
    except UserError:  # a value of several lines, or a variable that is not set
        script = render(profile(python="printf '%s\\n'"), "s", folder, "job")
    body = script.splitlines(keepends=True)
    command = script[script.index("exec ") :]
    assert shlex.split(command, comments=False)[-1] == str(folder)
    assert all(line.startswith("#SBATCH --") for line in body[1 : body.index("\n")])


@pytest.mark.parametrize("hostile", ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "', "a\ntouch pwned", "&& touch pwned"])  # fmt: skip  # noqa: E501
def test_bash_runs_a_hostile_path_as_a_word(hostile: str, tmp_path: Path) -> None:
    script = render(profile(python="printf '%s\\n'"), "s", Path("/r") / hostile, "job")
    ran = subprocess.run(["bash"], input=script, text=True, capture_output=True, cwd=tmp_path, check=True)
    assert ran.stdout == f"-m\nrecur_tune.sites.slurm.job\n/r/{hostile}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"partition": "a b"}, "partition"),
        ({"partition": "gpu\n#SBATCH --uid=0"}, "partition"),
        ({"account": "x'y"}, "account"),
        ({"qos": "$(id)`"}, "qos"),
        ({"directives": ["rm -rf /"]}, "no option of sbatch"),
        ({"directives": ["--a\ntouch pwned"]}, "directives"),
        ({"setup": ["a\nb"]}, "setup"),
        ({"environment": {"A B": "1"}}, "no name of a variable"),
        ({"partitoin": "gpu"}, "partition"),
        ({"time": "soon"}, "time"),
        ({"nodes": 0}, "nodes"),
        ({"gpu_request": "gpu"}, "gpu_request"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused_in_a_sentence(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        profile(**fields)
    assert "\n" not in str(refused.value)
