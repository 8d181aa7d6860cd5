"""`recur-tune continue` from prompts to a folder, on models of random weights."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from recur_tune.analysis.topics import continuations
from recur_tune.common.files import write_text
from recur_tune.data.tokenizers import byte_tokenizer, load_tokenizer
from recur_tune.models.pretrained import save_model
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.analysis.topics import TOPICS, text_about
from tests.cli.run import Outcome, run
from tests.cli.test_bad_input import refused
from tests.conftest import small_model
from tests.data import save_merging_tokenizer, text_folder

SHORT = ["--prompts", 6, "--prompt-tokens", 150, "--tokens", 40, "--topics", 3]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and a corpus of three topics, of which one held-out document is too short."""
    folder = tmp_path_factory.mktemp("place")
    for name, memory in (("recurrent", PooledSpec(width=8, depth=1)), ("plain", None)):
        model = small_model(memory, vocab_size=256)
        model.config.window, model.config.overlap = 16, 2
        save_model(model, byte_tokenizer(), folder / name)
    text_folder(
        folder / "books",
        train=[text_about(topic, 900) for topic in TOPICS],
        validation=[text_about("sea", 99)],
        test=[*(text_about(topic, 300, seed=1) for topic in TOPICS), "the harbour"],
    )
    return folder


def continued(place: Path, *words: Any, runs: tuple[str, ...] = ("recurrent", "plain"), **how: Any) -> Outcome:
    return run("continue", *(place / name for name in runs), "--corpus", f"text:{place / 'books'}", *words, **how)


def test_a_folder_holds_what_the_terminal_tells_and_the_texts(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = continued(place, *SHORT, "--out", out)
    assert shown.code == 0, shown.err
    assert "documents skipped, with fewer than 190 tokens: 1." in shown.err
    told = json.loads((out / "topics.json").read_text())
    assert json.loads(continued(place, *SHORT, "--json").out) == told  # from what was kept
    assert (told["prompts"], told["documents"], told["documents_too_short"], told["log_base"]) == (6, 3, 1, 2)
    names = [row["name"] for row in told["sources"]]
    assert names == ["true continuation", str(place / "recurrent"), str(place / "plain"), "another document's"]
    for row in told["sources"]:
        values = told["divergences"][row["name"]]
        assert row["divergence"] == pytest.approx(sum(values) / 6)
        assert f"{row['divergence']:.4f} ± {row['standard_error']:.4f}" in shown.out
    assert told["sources"][0]["divergence"] < 0.1 < 0.6 < told["sources"][-1]["divergence"]
    (difference,) = told["differences"]
    assert difference["mean"] == pytest.approx(told["sources"][1]["divergence"] - told["sources"][2]["divergence"])
    assert {frozenset(words.split(", ")[:8]) for words in told["topic_words"]} == {
        frozenset(words.split()) for words in TOPICS.values()
    }
    with (out / "topics.csv").open() as file:
        assert [float(row["divergence"]) for row in csv.DictReader(file)] == [r["divergence"] for r in told["sources"]]
    texts = (out / "texts.txt").read_text()
    assert texts.count("prompt 1 of 6") == 1 and texts.count(f"{place / 'plain'}: ") == 6 and "topic: " in texts
    assert (out / "topics.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in out.iterdir()} == {
        "topics.json", "topics.csv", "differences.csv", "topics.png", "texts.txt",
    }  # fmt: skip


def test_runs_with_several_tokenizers_continue_the_same_texts(place: Path, tmp_path: Path) -> None:
    save_merging_tokenizer(tmp_path / "bpe")
    tokenizer = load_tokenizer(str(tmp_path / "bpe"))
    save_model(small_model(vocab_size=len(tokenizer)), tokenizer, place / "merging")
    result = continued(place, *SHORT, runs=("plain", "merging"))
    assert result.code == 0 and "several tokenizers" in result.err and "topics are over words" in result.err


def test_notes_tell_of_a_single_window_and_of_too_little_room(place: Path) -> None:
    result = continued(place, "--prompts", 90, "--prompt-tokens", 8, "--tokens", 8, "--topics", 3, runs=("recurrent",))
    assert result.code == 0 and "passes no state on" in result.err
    wanted = continued(place, "--prompts", 40, "--prompt-tokens", 150, "--tokens", 9, "--topics", 3, "--json")
    assert "room for" in wanted.err and json.loads(wanted.out)["prompts"] < 40


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--topics", 1], ["--topics", "2"]),
        (["--prompts", "none"], ["prompts: 'none'", "500k"]),
        (["--tokens", 0], ["tokens: 0 is not greater than 0"]),
        (["--prompt-tokens", "9k"], ["prompt_tokens: 9000", "the test split", "the longest has"]),
        (["--temperature", "nan"], ["temperature: nan"]),
        (["--split", "train"], ["--split", "'train'"]),
        (["--corpus", "text:nowhere"], ["text:nowhere"]),
        (["--topics", 500, "--prompt-tokens", 9, "--tokens", 9], ["topics: 500", "24 words"]),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(place: Path, tmp_path: Path, words: list[Any], said: list[str]) -> None:
    refused(continued(place, *words, "--out", tmp_path / "out"), *said)
    assert not (tmp_path / "out").exists()


def test_what_is_no_run_or_no_place_is_one_sentence(place: Path, tmp_path: Path) -> None:
    refused(continued(place, runs=("plain", "books")), f"model: {place / 'books'} holds no model")
    refused(continued(place, runs=("plain", "plain")), f"run: {place / 'plain'} is given twice")
    refused(run("continue", "--corpus", "stdlib"), "RUN")
    (tmp_path / "notes.txt").write_text("mine")
    refused(continued(place, "--out", tmp_path), "out:", "holds other files")
    refused(continued(place, "--out", tmp_path / "notes.txt"), "out:", "is a file")
    (tmp_path / "books" / "test").mkdir(parents=True)
    (tmp_path / "books" / "train.txt").write_text("words enough")
    refused(run("continue", place / "plain", "--corpus", f"text:{tmp_path / 'books'}"), "test", "holds no file")


def test_runs_of_several_corpora_need_to_be_told_which(place: Path, tmp_path: Path) -> None:
    for name in ("recurrent", "plain"):
        (tmp_path / name).mkdir()
        for file in (place / name).iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
        (tmp_path / name / "trial.yaml").write_text(f"corpus: {name}\nwindow: 16\n")
    refused(run("continue", tmp_path / "recurrent", tmp_path / "plain"), "corpus: the runs", "--corpus")


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(place: Path, tmp_path: Path) -> None:
    long = ["--prompts", 6, "--prompt-tokens", 99, "--tokens", 50, "--topics", 3, "--batch", 1, "--seed", 5]
    cache = tmp_path / "cache" / "continuations"

    def write_and_press_ctrl_c(file: Path, text: str) -> None:
        write_text(file, text)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
        with patch.context() as first:
            first.setattr(continuations, "write_text", write_and_press_ctrl_c)
            stopped = continued(place, *long, "--out", tmp_path / "out")
        assert stopped.code == 130 and "the same command continues" in stopped.err
        assert not (tmp_path / "out").exists()
        (kept,) = cache.glob("*.jsonl")
        before = kept.read_text()
        whole = continued(place, *long, "--out", tmp_path / "out")
        assert whole.code == 0 and kept.read_text().startswith(before) and len(list(cache.iterdir())) == 2
