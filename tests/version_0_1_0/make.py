"""Make the files of this folder: run with version 0.1.0 installed, `python make.py NEW_FOLDER`.

A search, a run that was stopped, an exported model and the base that they start from, as 0.1.0 leaves them. The two
YAML files beside this one are read, and the plugin is written by hand. Everything runs in a folder of its own: where
the program writes that folder's path, a relative path takes its place, and the host's name becomes `node`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

HERE = Path(__file__).parent
COMMAND = [sys.executable, "-m", "recur_tune.cli.main"]
SHARED = ("base", "search", "run", "run-resumed.json", "exported", "exported-loss.json")
# Not needed to read or resume a search or a run: pictures and pages, notes of Ray and MLflow, a second checkpoint,
# and the code beside models, of which `exported` has a copy.
NOT_NEEDED = (
    "search/*.html", "search/*.png", "search/ray", "search/lease", "search/mlflow.json",
    "run/resume/training_state.before.safetensors", "run/*.py", "search/trials/*/model/*.py",
)  # fmt: skip
TEXT = "Ada mended the sail. Ada hauled the net at the harbour. Ben counted the cows."
LOSS = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("exported", trust_remote_code=True)
tokens = list(sys.argv[1].encode())
with torch.no_grad():
    output = model(torch.tensor([tokens]), labels=torch.tensor([tokens]))
last = output.logits[0, -1, :8].tolist()
print(json.dumps({"tokens": tokens, "loss": output.loss.item(), "first_logits_of_last_position": last}))
"""


def main() -> None:
    """Make all files in a new folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new folder, for what is made")
    target = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        os.environ |= {
            "RECUR_TUNE_CACHE": str(place / "cache"), "HF_MODULES_CACHE": str(place / "modules"),
            "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "RECUR_TUNE_DASHBOARD": "off", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        make_base(place / "base")
        make_search(place)
        make_run(place)
        make_exported(place)
        for path in [path for pattern in NOT_NEEDED for path in place.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        target.mkdir(parents=True)
        for shared in SHARED:
            source = place / shared
            shutil.copytree(source, target / shared) if source.is_dir() else shutil.copy(source, target)
        make_relative(target, place)


def make_base(folder: Path) -> None:
    """A random GPT-2 of two layers that reads bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    letters = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=32, n_layer=2, n_embd=8, n_head=2, initializer_range=0.2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def make_search(place: Path) -> None:
    """A finished search, one trial at a time, and its front confirmed with two seeds."""
    alone = f"resources.cpus={(os.cpu_count() or 1) / 2 + 0.5}"
    run(place, "search", str(HERE / "space.yaml"), "--name", "search", "--results", ".", "--set", alone)
    run(place, "confirm", "search", "--seeds", "2", "--results", ".")


def make_run(place: Path) -> None:
    """A run that was stopped by Ctrl-C some steps after its first validation, and the losses with which it goes on."""
    words = ["train", str(HERE / "trial.yaml"), "--tokens", "6k", "--validate-every", "1k", "--out", "run"]
    with subprocess.Popen([*COMMAND, *words], cwd=place) as training:
        reports = place / "run" / "reports.jsonl"
        while not reports.exists() or len(reports.read_text().splitlines()) < 12:
            time.sleep(0.02)
        training.send_signal(signal.SIGINT)
    if training.returncode != 130:
        raise SystemExit(f"train ended with {training.returncode} and not by the signal.")
    shutil.copytree(place / "run", place / "resumed")
    run(place, "train", "--out", "resumed", "--resume")
    lines = map(json.loads, (place / "resumed" / "reports.jsonl").read_text().splitlines())
    losses = {line["step"]: line["loss"] for line in lines}
    (place / "run-resumed.json").write_text(json.dumps(losses, indent=1) + "\n")


def make_exported(place: Path) -> None:
    """The best trial of the search that has a cache, and what the code beside it says of a text."""
    said = run(place, "front", "search", "--json", "--results", ".")
    found = [row for row in json.loads(said)["front"] if row["params"]["recurrence"] == "cache"]
    if not found:
        raise SystemExit("The front has no trial with a cache.")
    run(place, "export", "search", "--trial", str(found[0]["trial"]), "--to", "exported", "--results", ".")
    words = [sys.executable, "-c", LOSS, TEXT]
    told = json.loads(subprocess.run(words, cwd=place, check=True, stdout=subprocess.PIPE, text=True).stdout)
    evaluated = json.loads(run(place, "eval", "exported", "--corpus", "tales", "--split", "test", "--json"))
    kept = {name: evaluated[name] for name in ("corpus", "split", "tokens", "loss", "token_perplexity", "accuracy")}
    (place / "exported-loss.json").write_text(json.dumps(told | {"eval": kept}) + "\n")


def run(place: Path, *words: str) -> str:
    """What a command says on stdout."""
    return subprocess.run([*COMMAND, *words], cwd=place, check=True, stdout=subprocess.PIPE, text=True).stdout


def make_relative(folder: Path, place: Path) -> None:
    """Paths below the place where all this ran become relative to it, and its host is called `node`."""
    instead = {f"{place}/": "", str(place): ".", f'"{socket.gethostname()}:': '"node:'}
    for file in filter(Path.is_file, folder.rglob("*")):
        content = before = file.read_bytes()
        for old, new in instead.items():
            content = content.replace(old.encode(), new.encode())
        if content != before:
            print("made neutral:", file.relative_to(folder))
            file.write_bytes(content)


if __name__ == "__main__":
    main()
