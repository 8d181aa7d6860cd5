"""What a site cannot do, or a profile cannot mean, is one sentence before anything is submitted."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import run
from tests.sites.slurm.mini_slurm import MiniSlurm
from tests.sites.slurm.site import Site

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"partition": "gpu"}, "partition: there is no 'gpu' here; there are main, preempt, short, urgent."),
        ({"partition": "short", "time": "0:10:00"}, "time: 00:10:00 is beyond the limit of short, 00:02:00."),
        ({"time": "0:02:00", "warning": "3m"}, "warning: 3m before the end is no time to work in"),
        ({"nodes": 9}, "nodes: 9 is too many; partition main has at most 3 nodes."),
        ({"gpus_per_node": 4}, "gpus_per_node: 4 is too many; partition main has at most 2 GPUs on a node."),
        ({"cpus_per_node": 64}, "cpus_per_node: 64 is too many; partition main has at most 4 cores on a node."),
        ({"storage": "/elsewhere"}, "is not in /elsewhere, which the nodes share (storage)"),
        ({"storage": None}, "is local, and the nodes do not see it"),
        ({"storage": "$NOWHERE/x"}, "storage: '$NOWHERE/x' names a variable that is not set here"),
        ({"partitoin": "main"}, "did you mean 'partition'"),
        ({"constraint": "warp-drive"}, "slurm: sbatch refused the job"),
    ],
)
def test_a_profile_that_this_site_cannot_serve(
    site: Site, slurm: MiniSlurm, fields: dict[str, Any], words: str
) -> None:
    refused = site.type("search", site.space(), "--name", "refused", "--slurm", site.profile(**fields), code=2)
    assert words in " ".join(refused.err.split())
    assert not (site.results / "refused").exists()
    assert not slurm.run("squeue", "--noheader", "--name=recur-tune-refused").stdout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resources__gpus": 3}, "a trial needs 1 CPU and 3 GPUs, which an allocation of this profile"),
        ({"resources__workers": 3, "resources__cpus": 2}, "a trial needs 3 workers with 2 CPUs and 2 GPUs each"),
    ],
)
def test_trials_that_no_allocation_has_room_for(site: Site, changes: dict[str, Any], words: str) -> None:
    profile = site.profile(nodes=2, gpus_per_node=2, cpus_per_node=2)
    fields = {"resources__gpus": 2} | changes
    refused = site.type("search", site.space(**fields), "--name", "refused", "--slurm", profile, code=2)
    assert words in refused.err
    assert not (site.results / "refused").exists()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["search", "--slurm"], "slurm: it needs a profile of your site"),
        (["search", "--slurm", "nowhere.yaml"], "slurm: there is no file nowhere.yaml"),
        (["search", "--slurm", "cpu-only", "--address", "auto"], "slurm: --address auto is given too"),
        (["search", "--nodes", "2"], "nodes: --nodes is for a search that is submitted"),
        (["search", "--slurm", "here"], "slurm: this is not inside an allocation"),
        (["search", "--slurm", "cpu-only", "--time", "soon"], "time"),
        (["grow", "nobody"], "name: there is no search 'nobody'"),
        (["tunnel", "nobody"], "name: there is no search 'nobody'"),
        (["logs", "nobody"], "name: there is no search 'nobody'"),
    ],
)
def test_words_that_make_no_sense_together(site: Site, words: list[str], answer: str) -> None:
    refused = site.type(*words, code=2)
    assert answer in refused.err
    assert refused.err.count("\n") == 1


def test_a_dry_run_prints_the_script_and_leaves_nothing(site: Site) -> None:
    shown = site.type("search", site.space(), "--name", "dry", "--slurm", site.profile(nodes=2), "--dry-run")
    assert shown.out.startswith("#!/bin/bash\n#SBATCH --job-name=recur-tune-dry\n")
    assert "#SBATCH --nodes=2\n" in shown.out
    script = site.results / "dry" / "slurm" / "job.sh"
    command = shlex.split(shown.err.splitlines()[-1])
    assert command[:3] == ["sbatch", "--parsable", f"--chdir={script.parent}"] and command[-1] == str(script)
    assert not (site.results / "dry").exists()


def test_without_slurm_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    refused = run("search", "--slurm", "cpu-only")
    assert refused.code == 2
    assert "slurm: there is no sbatch on this machine" in refused.err
    assert not list(tmp_path.iterdir())
