"""Show that two versions of recur-tune compute the same, to the last bit, on a CPU.

    python benchmarks/identical.py record before.json     # with one version importable
    python benchmarks/identical.py record after.json      # with the other
    python benchmarks/identical.py compare before.json after.json

A record has the losses and the weights of 50 steps with every recurrence on two bodies, the log, the front and the
confirmation of a small search, and the costs at corners of every shipped space. It is made by commands alone, so that
modules may move between the two. Both records have to come from one machine with one version of torch.

Nothing has a tolerance. What is left out says when, where or how fast something ran (`PASSING`), or comes at
intervals of time (stages, and reports without a validation). Lines of a search's log are compared trial by trial, since
their order among trials depends on time.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

COMMAND = "recur_tune.cli.main"  # the module that `python -m` runs
# Names of fields, as keys or as values, that the later version has others for; a dotted name is not looked into.
RENAMED = {"windows": "bptt_windows", "tune": "trainable"}
# Sentences of the log that say the same in other words; 0.2.0 has the second of each.
REWORDED = [
    ("other trials promised more for theirs", "its expected hypervolume gain was small beside that of other trials"),
    (
        "it was paused, and not wanted until the search's end",
        "it was paused at a rung, and its chance of ending on the front stayed small",
    ),
]
PASSING = {
    "time", "worker", "links", "tokens_per_second", "training_seconds", "device_flops", "id", "created", "folder",
    "results",
}  # fmt: skip
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    "RECUR_TUNE_DASHBOARD": "off",
}  # fmt: skip

RECURRENCES = {
    "none": "--recurrence none",
    "pooled": "--recurrence pooled --l-ins 1 --width 12 --depth 1",
    "pooled recent": "--recurrence pooled --l-ins all --width 12 --pooling recent --embeddings 3 --skip true",
    "tokens": "--recurrence tokens --state-tokens 3 --ring 2",
    "cache softmax": "--recurrence cache --cache-rows 12 --cache-sinks 2",
    "cache gate": "--recurrence cache --cache-rows 12 --cache-join gate",
    "fast_weights linear": "--recurrence fast_weights --write-rule linear",
    "fast_weights delta": "--recurrence fast_weights --write-rule delta",
    "fast_weights gated": "--recurrence fast_weights --write-rule gated",
    "scores": "--recurrence scores --score-heads 2 --dilation 2",
    "blocks fixed": "--recurrence blocks --state-vectors 4 --block-gate fixed",
    "blocks lstm": "--recurrence blocks --state-vectors 4 --block-gate lstm",
}
STEPS = 50
TRAINING = "--corpus tales --window 16 --overlap 2 --batch 4 --windows 3 --learning-rate 3e-3 --dropout 0.1 "
TRAINING += "--tokens 9k --validate-every 6k --validation-tokens 1k --seed 1"  # 52 steps, validated twice

SEARCH = {
    "space": {
        "base": "tiny-gpt2", "corpus": "tales", "window": [8, 16], "overlap": {"from": 0, "to": 0.5, "of": "window"},
        "recurrence": {"none": None, "pooled": {"width": {"from": 4, "to": 16}}, "cache": {"cache_rows": [4, 8]}},
        "windows": {2: {"batch": 8}, 4: {"batch": 4}}, "learning_rate": {"from": 1e-3, "to": 1e-2, "log": True},
        "depth": 1, "warmup_steps": 2, "validation_tokens": 500,
    },
    "objectives": ["token_perplexity", "flops_per_token"],
    "budget": {"tokens": 1200, "trials": 7, "rungs": 2, "reduction": 2},
    "resources": {"cpus": (os.cpu_count() or 1) / 2 + 0.5},  # which leaves no room for a second trial
    "sampler": {"name": "known-costs", "seed": 0},
}  # fmt: skip

# Shipped spaces, each with what has to be set where there is no network.
NO_BOOKS = ["--set", "space.corpus=tales", "--set", "space.tokenizer=bytes"]
SPACES: dict[str, list[str]] = {
    "quickstart": [], "wikitext-103": [], "pg19": [], "enwik8-bytes": [], "enwik8-bpe": [], "enwik8-short": [],
    "texts": NO_BOOKS, "recurrences": NO_BOOKS, "smollm2": [], "hotpotqa": [],
}  # fmt: skip
BOTH_ENDS_ONLY = ("smollm2",)  # pricing a step of its base takes seconds
NO_COST = ("learning_rate", "recurrence_rate")  # no cost depends on them


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write down what the importable version computes")
    recording.add_argument("file", type=Path, help="JSON to write")
    comparing = commands.add_parser("compare", help="compare two records; exit code 1 where they differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "record":
        chosen.file.write_text(json.dumps(record(), indent=1) + "\n")
    else:
        sys.exit(compare(json.loads(chosen.before.read_text()), json.loads(chosen.after.read_text())))


def record() -> dict[str, Any]:
    """All fingerprints: costs in one process, what trains in another."""
    began, package = time.monotonic(), find_spec(COMMAND.partition(".")[0])
    say(f"recording {package.origin if package else 'nothing: it is not installed'}")
    with tempfile.TemporaryDirectory() as place:
        os.environ |= ENVIRONMENT | {"RECUR_TUNE_CACHE": f"{place}/cache"}
        with ProcessPoolExecutor(2, get_context("spawn"), initializer=os.chdir, initargs=(place,)) as pool:
            pool.submit(make_bodies).result()
            sections = {"costs": pool.submit(costs), "training": pool.submit(training), "search": pool.submit(search)}
            found = {name: section.result() for name, section in sections.items()}
    say(f"recorded in {time.monotonic() - began:.0f} s")
    versions = {name: version(name) for name in ("recur-tune", "torch", "transformers", "ray", "optuna")}
    return {"about": {"python": sys.version.split()[0], **versions}, **found}


def training() -> dict[str, Any]:
    """Every loss and the digests of what is left, for every recurrence on every body."""
    found = {}
    for body in ("tiny-gpt2", "tiny-llama"):
        for name, flags in RECURRENCES.items():
            out = Path("runs", body, name.replace(" ", "-"))
            result = json.loads(
                command("train", "--base", body, *f"{flags} {TRAINING}".split(), "--out", out, "--json")
            )
            reports = [json.loads(line) for line in (out / "reports.jsonl").read_text().splitlines()]
            if len(reports) < STEPS:
                raise SystemExit(f"{body} {name} made {len(reports)} steps; give it more tokens.")
            found[f"{body} {name}"] = lasting({
                "steps": [[report["loss"], report["gradient_norm"]] for report in reports],
                "validations": [report["validation"] for report in reports if report["validation"]],
                "result": result,
                "weights": digest(out / "model.safetensors"),
                "checkpoint": digest(out / "resume" / "training_state.safetensors"),
            })  # fmt: skip
    return found


def search() -> dict[str, Any]:
    """A search's log by trial, its front, and the front confirmed with two seeds."""
    Path("space.yaml").write_text(json.dumps(SEARCH))  # JSON is YAML
    command("search", "space.yaml", "--name", "small", "--results", "results")
    found: dict[str, Any] = {"front": json.loads(command("front", "small", "--results", "results", "--json"))}
    found["confirmed"] = json.loads(command("confirm", "small", "--seeds", "2", "--results", "results", "--json"))
    for line in Path("results/small/events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "stage" or (event["kind"] == "report" and not event["validation"]):
            continue
        found.setdefault(f"T{event['trial']}" if "trial" in event else "log", []).append(event)
    return lasting(found)


def costs() -> dict[str, Any]:
    """Of every shipped space with which trials it begins, its worst costs, and the costs at its corners."""
    found = {}
    for name, settings in SPACES.items():
        seen = json.loads(command("search", name, *settings, "--dry-run", "--json"))
        told = {key: seen[key] for key in ("first", "worst", "steps")}
        told["corners"] = [
            {"fields": fields, "cost": cost(**fields)}
            for fields in corners(seen["spec"]["space"], alone=name not in BOTH_ENDS_ONLY)
        ]
        found[name] = told
    return found


@cache
def cost(**fields: Any) -> dict[str, Any]:
    """What `recur-tune cost` says; several spaces share corners."""
    words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    flags = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]
    try:
        return json.loads(command("cost", *flags, "--json"))
    except Refused:
        return {"refused": True}


def corners(space: dict[str, Any], alone: bool) -> Iterator[dict[str, Any]]:
    """For each recurrence all fields at their first or smallest value, all at their last or largest, and with `alone`
    each field of its own at its last with the others at their first; what every trial has, as window and overlap, is
    moved alone with the first recurrence."""
    branches = list(space["recurrence"])
    for branch in branches:
        lowest, highest = at_ends(space, branch, set()), at_ends(space, branch, None)
        yield lowest
        yield highest
        own = set(space["recurrence"][branch] or {})
        for name in [name for name in lowest if alone and (name in own or branch == branches[0])]:
            moved = at_ends(space, branch, {name})
            if moved not in (lowest, highest):
                yield moved


def at_ends(space: dict[str, Any], branch: str, high: set[str] | None) -> dict[str, Any]:
    """The fields with those in `high` at their last value, all of them where it is None, and the others at their
    first."""
    fields: dict[str, Any] = {}
    for name, value in space.items():
        end = -1 if high is None or name in high else 0
        if name == "recurrence":
            fields |= {name: branch} | at_ends(value[branch] or {}, branch, high)
        elif isinstance(value, dict) and "of" in value:
            fields[name] = value  # a share of a field that may come later
        elif isinstance(value, dict) and "from" in value:
            fields[name] = (value["from"], value["to"])[end]
        elif isinstance(value, dict):
            chosen, below = list(value.items())[end]
            fields |= {name: chosen} | at_ends(below or {}, branch, high)
        else:
            fields[name] = value[end] if isinstance(value, list) else value
    for name, value in fields.items():
        if isinstance(value, dict) and value["of"] in fields:
            share = value["to"] if high is None or name in high else value["from"]
            fields[name] = int(float(share) * int(fields[value["of"]]))
    if "question_tokens" not in fields:
        fields.pop("corpus", None)  # a text makes no difference
    return {name: value for name, value in fields.items() if name not in NO_COST}


class Refused(Exception):
    """A command ended with an error."""


def command(*words: object) -> str:
    """What a command prints on stdout. It runs as by `python -m`, but in this process, which has torch loaded."""
    began, out, err, before = time.monotonic(), io.StringIO(), io.StringIO(), sys.argv
    sys.argv, code = [COMMAND, *map(str, words)], None
    sys.modules.pop(COMMAND, None)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    shown = " ".join(map(str, words))
    say(f"{time.monotonic() - began:5.1f} s  {shown[:110]}{' …' if len(shown) > 110 else ''}")
    if code:
        raise Refused(f"`{shown}` ended with {code}: {err.getvalue()[-2000:]}")
    return out.getvalue()


def make_bodies() -> None:
    """A random GPT-2 and a random Llama that read bytes, in folders whose names are no other model's."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    shape: dict[str, Any] = {"vocab_size": 256, "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None}
    gpt2 = GPT2Config(n_positions=64, n_layer=2, n_embd=24, n_head=4, **shape)
    llama = LlamaConfig(
        max_position_embeddings=64, num_hidden_layers=2, hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, **shape,
    )  # fmt: skip
    # A tokenizer of bytes: a token's id is the byte's value.
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in bytes_to_unicode().items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    for name, model in (("tiny-gpt2", GPT2LMHeadModel(gpt2)), ("tiny-llama", LlamaForCausalLM(llama))):
        model.save_pretrained(name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(name)


def digest(file: Path) -> str:
    """SHA-256 of a safetensors file's tensors: names, types, shapes and bytes, but not what else stands at its head."""
    from safetensors.numpy import load_file

    found = hashlib.sha256()
    for name, tensor in sorted(load_file(file).items()):
        found.update(f"\n{name} {tensor.dtype} {tensor.shape}\n".encode() + tensor.tobytes())
    return found.hexdigest()


def lasting(value: Any) -> Any:
    """A value without what differs between two runs of one version."""
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if key not in PASSING}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what is equal and what is not; 1 where anything differs."""
    if before["about"] != after["about"]:
        print(f"before: {before['about']}\nafter:  {after['about']}\n")
    differing = 0
    for section in ("training", "search", "costs"):
        ours, theirs = (in_new_words(each[section]) for each in (before, after))
        for part in [*ours, *(part for part in theirs if part not in ours)]:
            old, new = (flat(side[part]) if part in side else {} for side in (ours, theirs))
            unequal = [path for path in {**old, **new} if path not in old or path not in new or old[path] != new[path]]
            differing += bool(unequal)
            verdict = (
                f"{len(unequal)} of {len({**old, **new})} values differ" if unequal else f"{len(old)} values equal"
            )
            print(f"{section:10}{part:32}{verdict}")
            for path in unequal[:5]:
                print(f"    {path}: {old.get(path, 'nothing')!s} -> {new.get(path, 'nothing')!s}")
    print(f"\n{differing} parts differ" if differing else "\nidentical")
    return 1 if differing else 0


def in_new_words(value: Any) -> Any:
    """A value with fields under their later names."""
    if isinstance(value, dict):
        return {RENAMED.get(key, key): in_new_words(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [in_new_words(inner) for inner in value]
    if not isinstance(value, str):
        return value
    for old, new in REWORDED:
        value = value.replace(old, new)
    return RENAMED.get(value, value)


def flat(value: Any, path: str = "") -> dict[str, str]:
    """Every number and word by where it stands, in all its digits."""
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {where: leaf for key, inner in pairs for where, leaf in flat(inner, f"{path}.{key}".strip(".")).items()}
    return {path: json.dumps(value)}


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.__stderr__, flush=True)


if __name__ == "__main__":
    main()
