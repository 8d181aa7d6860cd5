"""Bad input through the command line: one sentence, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.run import Outcome, run
from tests.data import text_folder
from tests.models.test_adapter import by_peft

SHORT = ["--tokens", "1k", "--validation-tokens", "500"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to go wrong with: three layers, 128 positions."""
    folder = tmp_path_factory.mktemp("base") / "model"
    assert run("pretrain", "--corpus", "recall", "--window", 16, *SHORT, "--out", folder).code == 0
    return folder


def refused(outcome: Outcome, *words: str) -> None:
    """One sentence that holds these words, and nothing else."""
    lines = [line for line in outcome.err.splitlines() if line.strip() and not line.endswith("…")]
    assert outcome.code == 2, outcome
    assert len(lines) == 1 and lines[0].startswith("recur-tune: "), outcome.err
    assert outcome.out == ""
    for word in words:
        assert word in lines[0], lines[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--window", 64, "--overlap", 64], ["overlap: 64", "0 to 63"]),
        (["--window", 200], ["window: 200", "128 positions"]),
        (["--window", 64, "--l-ins", 4], ["l_ins: 4", "1 to 3"]),
        (["--window", 64, "--l-ins", 0], ["l_ins: 0"]),
        (["--window", 64, "--corpus", "stdlb"], ["'stdlb'", "did you mean 'stdlib'?"]),
        (["--window", 64, "--corpus", "recall:lag=x"], ["lag=x", "FIELD=NUMBER"]),
        (["--window", 64, "--tokens", "many"], ["tokens: 'many'", "500k"]),
        (["--window", 64, "--learning-rate", "-1"], ["learning_rate: '-1'", "greater than 0"]),
        (["--window", 64, "--recurrence", "lstm"], ["recurrence: 'lstm'", "is not 'none', 'pooled'"]),
        (["--window", 64, "--bptt-windows", 1], ["bptt_windows: 1", "2 or more"]),
        (["--window", 64, "--checkpointing", "auto"], ["memory_budget", "16GiB"]),
        (["--window", 64, "--tokenizer", "no/such-tokenizer"], ["tokenizer: 'no/such-tokenizer'", "network"]),
        (["--window", 64, "--corpus", "wikitext-103"], ["wikitext-103", "Hub", "wikitext-103:DIR"]),
        (["--window", 64, "--corpus", "enwik8"], ["enwik8", "enwik8:FILE"]),
        (["--window", 64, "--corpus", "text:/nowhere"], ["text:/nowhere", "train, validation and test"]),
    ],
)
def test_a_trial_that_cannot_be_run_is_refused_before_anything_is_written(
    base: Path, tmp_path: Path, flags: list[object], words: list[str]
) -> None:
    given = flags if "--corpus" in flags else [*flags, "--corpus", "recall"]
    refused(run("train", "--base", base, *given, "--out", tmp_path / "run"), *words)
    assert not (tmp_path / "run").exists()


def test_a_hub_name_without_a_network_is_one_sentence(tmp_path: Path) -> None:
    refused(run("train", "--base", "gpt2", "--corpus", "recall", "--out", tmp_path / "run"), "base: 'gpt2'", "network")
    refused(run("cost", "--base", "someone/gpt2-tuned"), "base: 'someone/gpt2-tuned'", "Hub")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--batch", 3, "--workers", 4), ("batch: 3 chains are fewer than 4 workers", "multiple of 4")),
        (("--batch", 6, "--workers", 4), ("batch: 6 chains cannot be shared evenly by 4 workers", "multiple of 4")),
        (("--batch", 4, "--shard"), ("shard: one worker", "--workers 2")),
    ],
)
def test_workers_that_cannot_share_are_refused(flags: tuple[object, ...], words: tuple[str, ...]) -> None:
    refused(run("cost", "--base", "tiny", *flags), *words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--base-bits", 4), ("base_bits: 4 holds a frozen base", "'all'", "'lora'")),
        (("--base-bits", 5, "--trainable", "lora"), ("base_bits: 5 is not 16, 8 or 4",)),
        (("--lora-rank", 5000, "--trainable", "lora"), ("lora_rank: 5000 is above", "choose at most")),
        (("--adapter", "mine"), ("adapter: mine goes with trainable 'lora'",)),
    ],
)
def test_what_does_not_go_with_what_learns_is_refused(flags: tuple[object, ...], words: tuple[str, ...]) -> None:
    refused(run("cost", "--base", "tiny", *flags), *words)


def test_an_adapter_that_the_base_cannot_take_is_refused(base: Path, tmp_path: Path) -> None:
    by_peft("llama", tmp_path / "other", target_modules=["q_proj"])
    words: list[object] = ["train", "--base", base, "--corpus", "recall", "--window", 64, "--trainable", "lora"]
    out = ["--recurrence", "none", "--out", tmp_path / "run"]
    other, own = tmp_path / "other", tmp_path / "own"
    refused(run(*words, "--adapter", other, *out), f"adapter: {other} is for another base", "q_proj", str(base))
    refused(run(*words, "--adapter", tmp_path, *out), f"adapter: {tmp_path} holds none")
    by_peft("gpt2", own, target_modules=["c_attn"], use_dora=True)
    refused(run(*words, "--adapter", own, *out), "DoRA, which is not supported")
    by_peft("gpt2", own, target_modules=["c_attn"])
    beside = own / "recurrence.json"
    for recurrence, sentence in (
        ({"kind": "cache", "cache_rows": 100}, "need 200 positions"),
        ({"kind": "unheard-of"}, "'unheard-of', which is not installed"),
        ("cache", f"{beside} cannot be read"),
    ):
        beside.write_text(json.dumps({"recurrence": recurrence, "window": 100}))
        refused(run(*words[:5], "--adapter", own, "--out", tmp_path / "run"), sentence)
    assert not (tmp_path / "run").exists()


def test_an_empty_split_is_named(base: Path, tmp_path: Path) -> None:
    for split, text in (("train", "words enough to train on"), ("validation", ""), ("test", "x")):
        (tmp_path / f"{split}.txt").write_text(text)
    out = tmp_path / "run"
    refused(
        run("train", "--base", base, "--window", 64, "--corpus", f"text:{tmp_path}", "--out", out), "validation split"
    )


@pytest.mark.parametrize("command", ["train", "data prepare"])
def test_a_bad_corpus_is_refused_before_it_is_tokenised(
    base: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
    name = text_folder(tmp_path / "text", train=["words enough to train on"], test=["text"])
    words: list[object] = ["data", "prepare", name]
    if command == "train":
        words = ["train", "--base", base, "--window", 64, "--corpus", name, "--out", tmp_path / "run"]
    refused(run(*words), "has no validation split")
    text_folder(tmp_path / "text", validation=["some text", b"GIF89a\0"])
    refused(run(*words), "1 of 2 files", str(tmp_path / "text" / "validation"), "001.txt (a NUL byte at offset 6)")
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()


def test_a_schedule_that_does_not_fit_its_budget_is_told_and_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recur_tune.training.run_folder.run_in_folder", lambda *_, **__: {"trained": True})
    words = ["train", "--window", 64, "--bptt-windows", 8, "--tokens", "500k", "--out", tmp_path / "run", "--json"]
    for given, told in ([], False), (["--warmup-steps", 62], True), (["--tokens", "4k"], True):
        outcome = run(*words, *given)
        assert outcome.code == 0 and "trained" in outcome.out
        assert ("note: " in outcome.err) == told


def test_an_unknown_key_in_yaml_names_the_nearest(base: Path, tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text(f"base: {base}\nwindwo: 64\n")
    refused(run("train", tmp_path / "trial.yaml", "--out", tmp_path / "run"), "windwo", "did you mean 'window'")
    (tmp_path / "trial.yaml").write_text("- a\n- list\n")
    refused(run("train", tmp_path / "trial.yaml", "--out", tmp_path / "run"), "list", "field: value")
    (tmp_path / "trial.yaml").write_text("a: [1\n")
    refused(run("train", tmp_path / "trial.yaml", "--out", tmp_path / "run"), "no readable YAML")
    refused(run("train", tmp_path / "missing.yaml", "--out", tmp_path / "run"), "missing.yaml")


@pytest.mark.slow
def test_a_damaged_model_or_checkpoint_is_named(base: Path, tmp_path: Path) -> None:
    reading = ["--window", 16, "--bptt-windows", 2]
    run("train", "--base", base, "--corpus", "recall", *reading, *SHORT, "--out", tmp_path / "run")
    for state in (tmp_path / "run" / "resume").iterdir():
        state.write_bytes(state.read_bytes()[:1000])
    refused(
        run("train", "--out", tmp_path / "run", "--resume", "--tokens", "2k"), "training_state.safetensors", "damaged"
    )
    weights = tmp_path / "run" / "model.safetensors"
    weights.write_bytes(b"\0" * 100)
    refused(run("eval", tmp_path / "run"), str(tmp_path / "run"), "could not be read")
    refused(run("eval", tmp_path), "holds no model")


def test_a_folder_with_a_run_in_it_is_not_written_over(base: Path) -> None:
    refused(run("pretrain", "--corpus", "recall", "--out", base), "already holds a run", "--resume")
    refused(run("train", "--out", base / "nowhere", "--resume"), "no interrupted run")
    refused(run("train", "--out", base, "--resume", "--window", 99), "window", "16", "99")


def test_reading_a_model_in_impossible_windows_is_refused(base: Path) -> None:
    refused(run("eval", base, "--window", 8, "--overlap", 8), "overlap: 8", "0 to 7")
    refused(run("eval", base, "--window", 999), "window: 999", "128 positions")
    refused(run("eval", base, "--split", "exam"), "exam", "test")
    refused(run("eval", base, "--cache-rows", 8), "cache_rows", "--recurrence")
    refused(run("eval", base, "--recurrence", "cache"), "window: 300", "128 positions")
    refused(run("eval", base, "--recurrence", "cache", "--window", 16, "--cache-rows", 0), "cache_rows")
    refused(run("generate", base, "--prompt", ""), "prompt", "no token")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(base: Path, small_disk: Path) -> None:
    flags = ["--base", base, "--corpus", "recall", "--window", 16, "--bptt-windows", 2, "--tokens", "1k"]
    outcome = run("train", *flags, "--out", small_disk / "run")
    assert outcome.code == 2 and "the disk is full" in outcome.err.splitlines()[-1]
    assert "Traceback" not in outcome.err
    assert not list(small_disk.rglob("*partial*")) and not list(small_disk.rglob("*.safetensors"))
