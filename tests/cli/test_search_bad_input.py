"""Bad input to a search: one sentence that names field and value, exit code 2, and nothing left in the results."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import recur_tune
import recur_tune.cli.search
from recur_tune.common.errors import UserError
from recur_tune.search.record.directory import FORMAT, IDENTITY, SPEC, SearchDirectory
from tests.cli.run import Outcome, run
from tests.data import text_folder
from tests.ports import free_port
from tests.search.record import search

GOOD: dict[str, Any] = {
    "space": {"base": "tiny", "corpus": "stdlib", "window": [16, 32], "batch": 3},
    "objectives": ["token_perplexity", "flops_per_token"],
    "budget": {"tokens": "80k", "trials": 3},
}


def refused(outcome: Outcome, *words: str) -> None:
    """One sentence that holds these words, and nothing else."""
    [line] = refusals(outcome)
    for word in words:
        assert word in line, line


def refusals(outcome: Outcome) -> list[str]:
    """The sentences that are said, and nothing else is."""
    lines = [line for line in outcome.err.splitlines() if line.strip() and not line.endswith("…")]
    assert outcome.code == 2, outcome
    assert all(line.startswith("recur-tune: ") and line.endswith((".", "?", ")")) for line in lines), outcome.err
    assert outcome.out == "" and "Traceback" not in outcome.err
    return [line.removeprefix("recur-tune: ") for line in lines]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECUR_TUNE_RESULTS", str(tmp_path / "results"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results"


@pytest.fixture
def space(tmp_path: Path, results: Path) -> Path:
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(GOOD))
    return tmp_path / "space.yaml"


@pytest.fixture
def books(results: Path) -> SearchDirectory:
    """A search that was stopped."""
    made = SearchDirectory.create(results, "books", search(space={"base": "tiny", "window": [16, 32], "batch": 4}))
    made.record("search", status="started")
    made.record("trial", trial=0, params={"window": 16}, costs={"flops_per_token": 1.0, "peak_memory": 1.0})
    made.record("end", trial=0, state="paused")
    made.record("search", status="paused")
    return made


def snapshot(directory: SearchDirectory) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.path.iterdir() if file.is_file()}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        # unknown names, at each level, with the nearest
        (["corpus=tales"], ["corpus: ", "write --set space.corpus=VALUE."]),
        (["budgt.trials=3"], ["budgt", "did you mean 'budget'?"]),
        (["budget.trails=3"], ["budget.trails", "did you mean 'trials'?"]),
        (["resources.gpu=1"], ["resources.gpu", "did you mean 'gpus'?"]),
        (["sampler.sed=1"], ["sampler.sed", "did you mean 'seed'?"]),
        (["space.windw=64"], ["space.windw: ", "did you mean 'window'?"]),
        (["space.recurrence={none: , pooled: {l_in: [1]}}"],
         ["space.recurrence.pooled.l_in: ", "did you mean 'l_ins'?"]),
        (["space.width={from: 1, to: 2, stp: 1}"], ["width", "'stp'", "did you mean 'step'?"]),
        (["limits.peak_memry=1GiB"], ["'peak_memry'", "did you mean 'peak_memory'?"]),
        (["objectives=[perplexty, parameters]"], ["'perplexty'", "did you mean 'perplexity'?"]),
        (["reference.perplexty=1"], ["'perplexty'", "objectives"]),
        (["objectives=[perplexity, flops]"], ["'flops'", "did you mean 'flops_per_token'?"]),
        (["space.corpus=stdlb"], ["space.corpus: ", "'stdlb'", "did you mean 'stdlib'?"]),
        (["budget.1=2"], ["budget.1"]),
        # values
        (["space.width={from: 9, to: 3}"], ["width", "from 9 to 3"]),
        (["space.width={from: 0, to: 3}"], ["width", "0"]),
        (["space.learning_rate={from: 0, to: 1e-3, log: true}"], ["learning_rate", "0"]),
        (["space.learning_rate={from: 1e-3, to: .inf}"], ["learning_rate"]),
        (["space.width={from: 3}"], ["width", "both from and to"]),
        (["space.width={from: 1, to: 9, step: 20}"], ["width", "step 20"]),
        (["space.width=[]"], ["width", "at least one"]),
        (["space.width=[7, 7]"], ["width", "twice"]),
        (["space.width=wide"], ["width", "'wide'"]),
        (["space.overlap={from: 0, to: 1, of: window}"], ["overlap", "below 1"]),
        (["space.overlap=[0, 16]"], ["space.overlap: it can be 16", "window of 16"]),
        (["space.overlap={from: 0, to: 0.5, of: windw}"], ["overlap", "'windw'", "did you mean 'window'?"]),
        (["space.corpus=[stdlib, recall]"], ["corpus", "name one"]),
        (["space.tokenizer=[bytes, gpt2]"], ["token_perplexity", "tokenizers"]),
        (["space.tokens=5M"], ["tokens", "budget.tokens"]),
        (["space=7"], ["space", "7"]),
        (["space.recurrence={none: 5}"], ["recurrence", "5"]),
        (["budget.tokens=many"], ["budget.tokens", "'many'"]),
        (["budget.trials=0"], ["budget.trials", "0"]),
        (["budget.trials=null"], ["budget", "trials, wall_clock or both"]),
        (["budget=5"], ["budget", "5"]),
        (["budget.wall_clock=soon"], ["wall_clock", "'soon'", "30m"]),
        (["budget.reduction=1"], ["reduction", "1"]),
        (["budget.rungs=30"], ["30 rungs"]),
        (["budget.tokens=2k"], ["budget", "500 tokens", "1.92k (batch 3, bptt_windows 20, window 32)"]),
        (["limits.peak_memory=huge"], ["peak_memory", "'huge'", "16GiB"]),
        (["limits.peak_memory=10"], ["limits.peak_memory: 10 bytes?", "10GiB"]),
        (["budget.wall_clock=5"], ["budget.wall_clock: 5 seconds?", "5m"]),
        (["space.memory_budget=10"], ["space.memory_budget: 10 bytes?"]),
        (["budget.tokens=2e22"], ["budget.tokens: 2e+22 tokens a trial", "--yes"]),
        # what nothing in the space can meet: said before anything is made
        (["limits.flops_per_token=1k"], ["limits: nothing in the space is within FLOPs/token 1k", "the least found"]),
        (["limits.peak_memory=1MiB"], ["nothing in the space is within peak memory 1 MiB", "the least found is"]),
        (["objectives=perplexity"], ["objectives", "'perplexity'"]),
        (["objectives=[perplexity]"], ["'perplexity' alone"]),
        (["sampler.name=cmaes"], ["sampler.name", "'cmaes'"]),
        (["keep=best"], ["keep", "'best'"]),
        # --set itself
        (["budget.tokens"], ["'budget.tokens'", "KEY=VALUE"]),
        (["=5"], ["'=5'", "KEY=VALUE"]),
        (["space.window=[16"], ["set:", "'[16'", "space.window"]),
        # what this machine will never have
        (["resources.gpus=3"], ["resources", "3 GPUs", "this machine"]),
        (["resources.gpus=1.5"], ["gpus 1.5"]),
        (["resources.cpus=99"], ["resources", "99 CPUs", "this machine"]),
        (["resources.workers=99"], ["resources", "99 workers", "this machine"]),
        (["resources.cpus=0.5", "resources.workers=2"], ["space.batch: 3 chains", "2 workers"]),
        # what the base is not
        (["space.window=[16, 200]"], ["space.window: 200", "128 positions of tiny"]),
        (["space.l_ins=[1, 9]"], ["space.l_ins: 9", "1 to 3"]),
        (["space.base=no/such"], ["space.base: 'no/such'", "Hub"]),
        (["space.tokenizer=no/such", "objectives=[perplexity, parameters]"], ["space.tokenizer: 'no/such'", "Hub"]),
    ],
    ids=lambda value: " ".join(value) if value and "=" in value[0] else None,
)  # fmt: skip
def test_a_search_that_makes_no_sense(space: Path, results: Path, settings: list[str], words: list[str]) -> None:
    flags = [word for setting in settings for word in ("--set", setting)]
    refused(run("search", space, *flags, "--name", "x"), *words)
    assert not results.exists()


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        # what pydantic refuses, what stands in the space, what does not fit together, what does not fit the base
        (["budgt.trials=3", "budget.trails=3", "budget.rungs=0", "keep=best"],
         ["budgt", "budget.trails", "budget.rungs", "keep"]),
        (["limits.speed=1", "space.windw=3", "space.batch=0", "space.recurrence.pooled.l_inns=1", "sampler.name=nsga2",
          "budget.plateau=0.1"],
         ["limits", "budget.plateau", "space.windw", "space.batch", "space.recurrence.pooled.l_inns"]),
        (["space.bptt_windows=[1, 2]", "space.checkpointing=auto"], ["space.bptt_windows", "space.memory_budget"]),
        (["space.window=[16, 200]", "space.recurrence.pooled.l_ins=[1, 9]", "resources.workers=2"],
         ["space.window", "space.recurrence.pooled.l_ins", "space.batch"]),
    ],
    ids=["spec", "space", "trial", "base"],
)  # fmt: skip
def test_everything_that_is_wrong_is_said_at_once(
    space: Path, results: Path, settings: list[str], fields: list[str]
) -> None:
    """Each by the name that `--set` takes."""
    flags = [word for setting in settings for word in ("--set", setting)]
    said = refusals(run("search", space, *flags, "--dry-run"))
    assert sorted(line.partition(": ")[0] for line in said) == sorted(fields)


@pytest.mark.parametrize(
    "dry", [[], ["--dry-run"], ["--dry-run", "--slurm", "cpu-only"]], ids=["search", "dry run", "dry run in SLURM"]
)
@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({}, ["has no train split"]),
        ({"train": ["some text"]}, ["has no validation split"]),
        ({"train": ["some text"], "validation": ["", ""]}, ["validation split", "its 2 files"]),
        (
            {"train": ["some text", b"\x7fELF\0"], "validation": ["text"]},
            ["1 of 2 files", "001.txt", "NUL", "offset 4"],
        ),
    ],
    ids=["nothing", "one split", "empty files", "a program"],
)
def test_a_corpus_that_cannot_be_read(
    space: Path, results: Path, tmp_path: Path, splits: dict[str, Any], words: list[str], dry: list[str]
) -> None:
    (tmp_path / "books").mkdir()
    name = text_folder(tmp_path / "books", **splits)
    refused(run("search", space, "--set", f"space.corpus={name}", "--name", "x", *dry), "corpus", "books", *words)
    assert not results.exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--trials", 0], ["--trials", "0"]),
        (["--trials", "many"], ["--trials", "'many'"]),
        (["--time", "soon"], ["wall_clock", "'soon'"]),
        (["--time", "5"], ["wall_clock", "has no unit", "5m"]),
        (["--name", "a/b"], ["name", "'a/b'"]),
        (["--name", "../x"], ["name", "'../x'"]),
        (["--name", "-x"], ["name", "'-x'"]),
        (["--name", ""], ["name"]),
        (["--nmae", "x"], ["--nmae", "--name"]),
        (["--address", "nonsense"], ["address", "'nonsense'", "ray://"]),
        (["--address", ""], ["address", "''"]),
        (["--address", "host:99999999"], ["address", "host:99999999"]),
    ],
)
def test_flags_that_make_no_sense(space: Path, results: Path, flags: list[object], words: list[str]) -> None:
    refused(run("search", space, *flags), *words)
    assert not results.exists()


@pytest.mark.parametrize("kind", ["{}", "ray://{}", "http://{}"])
def test_an_address_where_nothing_answers(space: Path, results: Path, books: SearchDirectory, kind: str) -> None:
    address = kind.format(f"127.0.0.1:{free_port()}")
    before = snapshot(books)
    refused(run("search", space, "--name", "x", "--address", address), "address", address)
    refused(run("resume", "books", "--trials", 9, "--address", address), "address", address)
    assert [folder.name for folder in results.iterdir()] == ["books"] and snapshot(books) == before


def test_no_cluster_to_join(space: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def nothing_there(**settings: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", nothing_there)
    refused(run("search", space, "--name", "x", "--address", "auto"), "address", "auto", "no Ray cluster")
    assert not results.exists()


def test_a_space_that_is_not_there_or_not_a_space(tmp_path: Path, results: Path) -> None:
    refused(run("search", "pg20"), "space", "pg20", "quickstart", "pg19", "wikitext-103", "enwik8-bytes", "enwik8-bpe")
    refused(run("search", tmp_path / "none.yaml"), "none.yaml")
    refused(run("search", tmp_path), str(tmp_path))
    for text, words in (
        ("a: [1\n", ["space:", "no readable YAML"]),
        ("- a\n", ["space:", "list"]),
        ("just words\n", ["space:", "str"]),
        ("budget: {trials: 1}\n", ["space", "missing"]),
        ("space: {window: [1]}\n", ["budget", "missing"]),
        ("1: 2\nspace: {}\nbudget: {trials: 1}\n", ["1"]),
        ("space: {1: 2}\nbudget: {trials: 1}\n", ["1"]),
        ("space: {window: 2020-01-01}\nbudget: {trials: 1}\n", ["window"]),
        ("space: {window: 16, ? [a] : 1}\n", ["space:"]),
        ("space:\n  window: 16\n  batch: 2\n  window: 32\n", ["has 'window' twice, in lines 2 and 4"]),
    ):
        (tmp_path / "bad.yaml").write_text(text)
        refused(run("search", tmp_path / "bad.yaml"), *words)
        refused(run("search", tmp_path / "bad.yaml", "--dry-run"), *words)
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\0bin")
    refused(run("search", tmp_path / "bad.yaml"), "bad.yaml", "no readable YAML")
    assert not results.exists()


def test_a_name_that_is_taken(space: Path, books: SearchDirectory) -> None:
    before = snapshot(books)
    refused(run("search", space, "--name", "books"), "'books' is taken", "recur-tune resume books")
    assert snapshot(books) == before


@pytest.mark.parametrize("name", ["../evil", "a b", ""])
def test_a_dry_run_refuses_a_name_as_the_search_would(space: Path, name: str) -> None:
    refused(run("search", space, "--name", name, "--dry-run"), "name", "letters, digits")


def test_a_finished_search_is_given_more_trials_and_not_fewer(books: SearchDirectory) -> None:
    books.record("end", trial=0, state="complete")
    books.record("search", status="finished")
    before = snapshot(books)
    refused(run("resume", "books", "--trials", 1), "trials", "1", "no more than the 1 that have ended")
    assert snapshot(books) == before


@pytest.mark.parametrize("command", [["status"], ["front", "books"], ["report", "books"], ["ui"]], ids=str)
def test_a_file_is_no_folder_of_searches(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(run(*command, "--results", tmp_path / "file"), "results", "is a file")


def test_results_that_cannot_be_written(space: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(run("search", space, "--name", "x", "--results", tmp_path / "file"), str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--set", "space.window=64"], ["space.window", "[16, 32]", "64", "another name"]),
        (["--set", "budget.tokens=5M"], ["budget.tokens", "20000000", "5000000"]),
        (["--set", "sampler.name=random"], ["sampler.name", "'known-costs'", "'random'"]),
        (["--set", "objectives=[loss, parameters]"], ["objectives", "loss"]),
        (["--set", "resources.gpus=3"], ["3 GPUs"]),
        (["--set", "resources.cpus=99"], ["99 CPUs"]),
        (["--set", "budget.trails=9"], ["budget.trails", "'trials'"]),
        (["--set", "nothing"], ["'nothing'", "KEY=VALUE"]),
        (["--trials", 0], ["--trials"]),
    ],
)
def test_a_search_cannot_go_on_as_another(books: SearchDirectory, flags: list[object], words: list[str]) -> None:
    before = snapshot(books)
    refused(run("resume", "books", *flags), *words)
    assert snapshot(books) == before, "a resume that is refused changes nothing"


def test_a_search_that_runs_is_not_changed_or_run_twice(books: SearchDirectory) -> None:
    with books.hold_lease():
        before = snapshot(books)
        refused(run("resume", "books", "--trials", 9), "books is running already", "recur-tune stop books")
        refused(run("track", "books"), "books is running")
        assert snapshot(books) == before


@pytest.mark.parametrize("flags", [[], ["--detach"]], ids=str)
def test_a_search_that_another_begins_to_run_meanwhile_is_not_changed(
    books: SearchDirectory, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question whether it runs and the lock are two moments; the other process comes between them."""
    with ExitStack() as other:
        before: list[dict[str, str]] = []

        def begun_by_another(*_: object) -> None:
            other.enter_context(books.hold_lease())
            before.append(snapshot(books))

        monkeypatch.setattr(recur_tune.cli.search, "_check_runnable", begun_by_another)
        refused(run("resume", "books", "--trials", 30, *flags), "books is running already")
        assert [snapshot(books)] == before


def test_a_search_from_python_does_not_change_one_that_runs(books: SearchDirectory) -> None:
    fields = yaml.safe_load((books.path / SPEC).read_text())
    with books.hold_lease():
        before = snapshot(books)
        with pytest.raises(UserError, match="books is running already"):
            recur_tune.search(fields, name="books", settings={"budget.trials": 30})
        assert snapshot(books) == before


def commands_on(name: str, folder: Path) -> list[list[object]]:
    return [
        ["resume", name], ["stop", name], ["status", name], ["status", name, "--follow"], ["front", name],
        ["track", name], ["export", name, "--trial", "T0", "--to", folder / "model"],
    ]  # fmt: skip


def test_a_search_that_is_not_there(books: SearchDirectory, tmp_path: Path) -> None:
    for command in commands_on("boks", tmp_path):
        refused(run(*command), "'boks'", "books")
    for command in commands_on("../books", tmp_path):
        refused(run(*command), "../books")
    for command in commands_on("x", tmp_path):
        refused(run(*command, "--results", tmp_path / "elsewhere"), "'x'", "none yet")
    assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "model").exists()


def test_a_search_of_a_newer_version(books: SearchDirectory, tmp_path: Path) -> None:
    (books.path / IDENTITY).write_text(json.dumps({**books.identity, "format": FORMAT + 1}))
    before = snapshot(books)
    for command in commands_on("books", tmp_path):
        refused(run(*command), str(books.path), f"format {FORMAT + 1}", "upgrade")
    assert snapshot(books) == before and not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("file", "text"), [(IDENTITY, "{"), (IDENTITY, "{}"), (IDENTITY, "[]"), (SPEC, "a: [1"), (SPEC, "- 1")]
)
def test_a_damaged_search(books: SearchDirectory, tmp_path: Path, file: str, text: str) -> None:
    (books.path / file).write_text(text)
    for command in commands_on("books", tmp_path):
        if command[0] != "stop" or file == IDENTITY:  # to stop it, what it searches does not matter
            refused(run(*command), str(books.path / file) if file == IDENTITY or command[0] != "export" else "")


def test_nothing_to_stop_nothing_to_export_no_such_objective(books: SearchDirectory, tmp_path: Path) -> None:
    refused(run("stop", "books"), "books is not running")
    assert not books.stop_requested
    refused(run("front", "books", "--objectives", "perplexity,speed"), "objectives", "'speed'", "flops_per_token")
    refused(run("front", "books", "--objectives", "perplexty"), "did you mean 'perplexity'?")
    refused(run("front", "books", "--objectives", ""), "objectives", "''")
    refused(run("export", "books", "--trial", "T9", "--to", tmp_path / "model"), "'T9'")
    refused(run("export", "books", "--trial", "T0", "--to", tmp_path / "model"), "T0 is paused")
    refused(run("export", "books", "--to", tmp_path / "model"), "--trial")
    refused(run("resume"), "NAME")
    assert not (tmp_path / "model").exists()
