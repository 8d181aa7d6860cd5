"""What comes from a Hub, through transformers' and datasets' own code: a small one on loopback, with its faults.

All is asked for by one process, because Hugging Face's packages read their settings when they are loaded.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from recur_tune.data.corpora.document import SPLITS
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.models import RecurrentGPT2
from recur_tune.models.pretrained import save_model
from tests.command import CHECKOUT
from tests.conftest import small_model
from tests.hub import Hub, Repository

CLIENT = """
import json, sys
from recur_tune.common.errors import UserError
from recur_tune.data.corpora.registry import open_corpus
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.models.pretrained import load_base

def base(name):
    return float(sum(one.double().sum() for one in load_base(name, None).state_dict().values()))

def texts(name):
    return {split: [one.data.decode() for one in open_corpus(name).documents(split)] for split in ("train", "test")}

def questions(name):
    return [[one.name, one.answers, one.spans] for one in open_corpus(name).questions("test")]

def tokenizer(name):
    return load_tokenizer(name).encode("abc")

for kind, name in json.loads(sys.argv[1]):
    try:
        print(json.dumps(["had", globals()[kind](name)]), flush=True)
    except UserError as error:
        print(json.dumps(["refused", str(error)]), flush=True)
"""
ASKED = [
    ("base", "gpt2"), ("tokenizer", "gpt2"), ("base", "some/shards"), ("base", "some/cut"), ("base", "some/flipped"),
    ("base", "some/flipped"), ("base", "some/restricted"), ("base", "some/nothing"), ("base", "some/shard-missing"),
    ("texts", "wikitext-103"), ("texts", "wikitext-103"), ("texts", "pg19"), ("questions", "hotpotqa"),
]  # fmt: skip


def parquet(**columns: list[Any]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file, compression="none")
    return file.getvalue()


def in_splits(place: str, columns: dict[str, dict[str, list[Any]]]) -> dict[str, bytes]:
    return {f"{place}/{split}-00000-of-00001.parquet": parquet(**of_split) for split, of_split in columns.items()}


def card(config: str, splits: list[str]) -> bytes:
    files = "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
    return f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n".encode()


def a_model() -> RecurrentGPT2:
    torch.manual_seed(1)
    return small_model(vocab_size=256)


def model_files(folder: Path, shard: str | None = None) -> dict[str, bytes]:
    model = a_model()
    save_model(model, byte_tokenizer(), folder)
    if shard:
        (folder / "model.safetensors").unlink()
        config = (folder / "config.json").read_bytes()
        model.save_pretrained(folder, max_shard_size=shard)
        (folder / "config.json").write_bytes(config)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def had(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], tuple[str, Any]]:
    """By kind, name and how often it had been asked for before, what came."""
    place = tmp_path_factory.mktemp("hub")
    whole, shards = model_files(place / "whole"), model_files(place / "shards", shard="40KB")
    last = max(name for name in shards if name.startswith("model-"))
    raw, context = "wikitext-103-raw-v1", {"title": ["T"], "sentences": [["A ", "is B."]]}
    question = {
        "id": ["q"], "question": ["what?"], "answer": ["B"], "context": [context],
        "supporting_facts": [{"title": ["T"], "sent_id": [0]}],
    }  # fmt: skip
    books = {"url": ["http://g/ebooks/9", "http://g/ebooks/10"], "text": ["nine", "ten"]}
    lines = {split: {"text": ["\n", " = A = \n", f"of {split}\n", " = B = \n", "more\n"]} for split in SPLITS}
    hub = Hub({
        "models/gpt2": Repository(whole),
        "models/some/shards": Repository(shards),
        "models/some/cut": Repository(whole, cuts=1),
        "models/some/flipped": Repository(whole, flips=1),
        "models/some/restricted": Repository(whole, token="another"),
        "models/some/shard-missing": Repository({k: v for k, v in shards.items() if k != last}),
        "datasets/Salesforce/wikitext": Repository(
            {**in_splits(raw, lines), "README.md": card(raw, [*SPLITS])}, flips=1
        ),
        "datasets/emozilla/pg19": Repository(in_splits("data", dict.fromkeys(SPLITS, books))),
        "datasets/hotpotqa/hotpot_qa": Repository({
            **in_splits("distractor", dict.fromkeys(("train", "validation"), question)),
            "README.md": card("distractor", ["train", "validation"]),
        }),
    })  # fmt: skip
    with hub.serving():
        env = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
        env |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(place / "home"), "HF_TOKEN": "hf_mine"}
        env |= {"PYTHONPATH": str(CHECKOUT), "RECUR_TUNE_CACHE": str(place / "cache")}
        ran = subprocess.run(
            [sys.executable, "-c", CLIENT, json.dumps(ASKED)], env=env, capture_output=True, text=True, check=False
        )
    assert ran.returncode == 0, ran.stderr
    answers = [tuple(json.loads(line)) for line in ran.stdout.splitlines()]
    asked_before = [ASKED[:at].count(asked) for at, asked in enumerate(ASKED)]
    return {(*asked, before): one for asked, before, one in zip(ASKED, asked_before, answers, strict=True)}


@pytest.mark.parametrize("name", ["gpt2", "some/shards", "some/cut"])
def test_a_base_is_downloaded_whole_in_shards_and_after_a_cut(had, name: str) -> None:
    weights = float(sum(one.double().sum() for one in a_model().state_dict().values()))
    assert had["base", name, 0] == ("had", pytest.approx(weights, rel=1e-12))


def test_a_tokenizer_is_downloaded(had) -> None:
    assert had["tokenizer", "gpt2", 0] == ("had", [97, 98, 99])


def test_a_file_with_another_digest_is_not_kept_and_comes_whole_the_next_time(had) -> None:
    for asked, what in ((("base", "some/flipped"), "model.safetensors"), (("texts", "wikitext-103"), ".parquet")):
        kind, said = had[*asked, 0]
        assert kind == "refused" and what in said and said.endswith("it was not kept. Run the command again.")
        assert had[*asked, 1][0] == "had"
    assert had["base", "some/flipped", 1] == had["base", "gpt2", 0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("some/restricted", ["'some/restricted' is restricted on the Hub", "HF_TOKEN"]),
        ("some/nothing", ["'some/nothing' is neither a local folder nor", "check the spelling"]),
        ("some/shard-missing", ["'some/shard-missing'", "model-"]),
    ],
)
def test_what_cannot_be_had_is_one_sentence(had, name: str, words: list[str]) -> None:
    kind, said = had["base", name, 0]
    assert kind == "refused" and said.startswith("base: ") and "\n" not in said
    assert [word for word in words if word not in said] == []


def test_corpora_of_the_hub_are_read_by_their_own_rules(had) -> None:
    assert had["texts", "wikitext-103", 1][1]["test"] == ["\n = A = \nof test\n", " = B = \nmore\n"]
    assert had["texts", "pg19", 0] == ("had", {"train": ["ten", "nine"], "test": ["ten", "nine"]})
    assert had["questions", "hotpotqa", 0] == ("had", [["q", ["B"], [[0, 8, 9]]]])
