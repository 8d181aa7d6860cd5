"""`look`, `eval --baselines` and `data teach`, on a run that was trained with a teacher."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.run import run as command
from tests.search.run.searches import make_world

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a text, and a run with a cache that learned from the base."""
    folder = tmp_path_factory.mktemp("look")
    make_world(folder, sentences=8)
    fields = (
        "--base", folder / "base", "--corpus", f"text:{folder / 'text'}", "--window", 16, "--recurrence", "cache",
        "--cache-rows", 16, "--bptt-windows", 2, "--batch", 2, "--tokens", 200, "--validation-tokens", 200,
    )  # fmt: skip
    said = command("train", *fields, "--loss", "distill", "--teacher-top", 4, "--out", folder / "run", "--json")
    assert said.code == 0, said.err
    result = json.loads(said.out)
    assert result["untrained_validation"]["loss"] != result["validation"]["loss"]
    taught = command("data", "teach", *fields[:4], "--teacher-top", 4, "--json", "--dry-run")
    told = json.loads(taught.out)
    assert (told["bytes"], told["flops"]) == (result["teacher_bytes"], result["teacher_flops"])
    assert told["bytes"] == told["tokens"] * (4 * 2 + 5 * 2)
    return folder


def test_groups_lie_between_own_state_and_none(world: Path, tmp_path: Path) -> None:
    said = command("look", world / "run", "--out", tmp_path / "look", "--json")
    told = json.loads(said.out)
    assert json.loads((tmp_path / "look" / "look.json").read_text()) == told
    assert (tmp_path / "look" / "look.png").stat().st_size > 10_000
    [whole] = [one for one in told["groups"] if one["by"] == "all"]
    for state, name in (("own", "recurrent"), ("none", "plain")):
        scored = json.loads(command("eval", world / "run", "--state", state, "--json").out)
        assert whole[name] == pytest.approx(scored["loss"], rel=1e-5)
    said = command("look", world / "run", "--tokens", 300).err
    assert "below 0 the state helps" in said and "tokens each; --tokens says how many" in said


def test_a_fact_is_asked_for_of_both(world: Path) -> None:
    words = ("--recall", "--questions", 2, "--distance")
    too_far = command("look", world / "run", *words, "20k").err
    assert "more than any document has" in too_far and too_far.endswith("; choose fewer by --distance.\n")
    told = json.loads(command("look", world / "run", *words, 120, "--json").out)
    assert [one["asked"] for those in told["recall"].values() for one in those] == [2, 2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("base",), "has no state that could be switched off; give a baseline by --against."),
        (("run", "--distance", "200"), "distance: it is of --recall; add it."),
        (("run", "--questions", "9"), "questions: it is of --recall; add it."),
        (("run", "--recall", "--tokens", "9k"), "--recall reads as many as its questions have; leave one of them out."),
        (("run", "--out", "text"), "holds other files; give a folder that is new or empty."),
    ],
)
def test_what_cannot_be_looked_at_is_one_sentence(world: Path, words: tuple[str, ...], sentence: str) -> None:
    said = command("look", *(world / word if (world / word).exists() else word for word in words))
    assert said.code == 2 and said.err.strip().endswith(sentence)


def test_baselines_hold_as_much_as_the_state(world: Path) -> None:
    said = command("eval", world / "run", "--baselines", "--json")
    told = json.loads(said.out)
    baselines = {one["name"]: one for one in told["baselines"]}
    assert list(baselines) == [
        "plain windows", "plain, half read again", "sliding cache of 16 rows", "plain windows of 32",
        "plain windows of 32, 16 read again",
    ]  # fmt: skip
    assert "scoring baseline 3 of 5, sliding cache of 16 rows, on" in said.err
    sliding, longer = (
        baselines[name]["inference_memory"] for name in ("sliding cache of 16 rows", "plain windows of 32")
    )
    assert sliding == longer + 12  # it holds how many rows there are
    assert told["inference_memory"] == pytest.approx(longer, rel=0.01), "the model's own"
    alone = command("eval", world / "base", "--corpus", f"text:{world / 'text'}", "--window", 32, "--json")
    assert json.loads(alone.out)["loss"] == pytest.approx(baselines["plain windows of 32"]["loss"], rel=1e-6)


def test_baselines_read_what_the_model_reads(world: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(world / "text", other)
    for file in other.rglob("*.txt"):
        file.write_text(file.read_text()[::-1])
    read = ("--corpus", f"text:{other}", "--window", 12, "--overlap", 2)
    told = command("eval", world / "run", *read, "--baselines")
    names = [line.partition("   ")[0] for line in told.out.splitlines()]
    rows = names[names.index("this model") :]
    assert rows[3:5] == ["its base, sliding cache of 16 rows", "its base, plain windows of 28"]
    alone = command("eval", world / "base", *read[:4], "--json")
    [plain] = [line.split()[4] for line in told.out.splitlines() if line.startswith("its base, plain windows  ")]
    assert float(plain) == pytest.approx(json.loads(alone.out)["token_perplexity"], rel=1e-4)
