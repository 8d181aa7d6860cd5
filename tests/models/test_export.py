"""A saved model opens where recur-tune cannot be imported, and is the same model to the last bit."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import BaseModel
from transformers import AutoModelForCausalLM
from transformers.dynamic_module_utils import get_imports

from recur_tune.common.errors import UserError
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.models import RecurrentGPT2
from recur_tune.models.pretrained import load_model, save_model
from recur_tune.recurrences.cache.spec import CacheSpec
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.recurrences.registry import MECHANISMS, Mechanism
from recur_tune.recurrences.second_parts import SecondParts
from tests.conftest import small_model
from tests.models.bodies import body

MODELS = {
    "recent": PooledSpec(l_ins="all", embeddings=3, pooling="recent", skip=True),
    "composition": CacheSpec(cache_rows=9, cache_keep="keydiff", overflow="gated_delta"),
    "beside": CacheSpec(cache_rows=9, beside="scores", score_heads=2),
}

# What is asked of a model, here and there; `model`, `tokens` and `prompt` are given.
QUESTIONS = """
with torch.no_grad():
    output, first = model(tokens, labels=tokens), model.read(tokens[:, :20])
    torch.manual_seed(3)
    answers = {
        "logits": output.logits, "loss": output.loss,
        "state": first.state[0], "second": model.read(tokens[:, 20:40], first.state).top_BTK,
        "greedy": model.generate(prompt, max_new_tokens=30, do_sample=False),
        "sampled": model.generate(prompt, max_new_tokens=30, do_sample=True, num_return_sequences=2),
    }
"""
ELSEWHERE = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "recur_tune":
            raise ImportError(f"{name} is not to be had here")

sys.meta_path.insert(0, Blocked())
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(1)
for folder in sys.argv[1:]:
    for opened, saved in ((folder, f"{folder}-again"), (f"{folder}-again", None)):
        model = AutoModelForCausalLM.from_pretrained(opened, trust_remote_code=True)
        tokenizer = AutoTokenizer.from_pretrained(opened, trust_remote_code=True)
        tokens = torch.tensor(tokenizer(TEXT).input_ids)[None]
        prompt = tokens[:, :30]
        exec(QUESTIONS)
        torch.save(answers, f"{opened}.pt")
        if saved:
            model.save_pretrained(saved)
            tokenizer.save_pretrained(saved)
assert "recur_tune" not in sys.modules
"""
TEXT = "A text of some windows, and the state of each goes into the next one. " * 2


def saved(folder: Path, recurrence: BaseModel | None, **changes: object) -> RecurrentGPT2:
    model = small_model(recurrence, vocab_size=256, window=20, overlap=4, tie_word_embeddings=False, **changes)
    save_model(model, byte_tokenizer(), folder)
    return model


@pytest.mark.slow
def test_it_is_the_same_model_where_recur_tune_cannot_be_imported(tmp_path: Path) -> None:
    models = {name: saved(tmp_path / name, recurrence) for name, recurrence in MODELS.items()}
    models["llama"] = body("llama", MODELS["recent"], vocab_size=256, max_position_embeddings=20).float()
    save_model(models["llama"], byte_tokenizer(), tmp_path / "llama")
    script = ELSEWHERE.replace("TEXT", repr(TEXT)).replace("QUESTIONS", repr(QUESTIONS))
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    folders = [str(tmp_path / name) for name in models]
    subprocess.run([sys.executable, "-c", script, *folders], cwd=tmp_path, env=environment, check=True)
    tokens = torch.tensor(list(TEXT.encode()))[None]
    for name, model in models.items():
        here = {"model": model, "tokens": tokens, "prompt": tokens[:, :30], "torch": torch}
        exec(QUESTIONS, here)
        for folder in (name, f"{name}-again"):
            there = torch.load(tmp_path / f"{folder}.pt")
            assert there.keys() == here["answers"].keys()
            for question, answer in here["answers"].items():
                assert torch.equal(there[question], answer), (folder, question)


COMMON = {
    "common_deprecated", "common_shape", "common_windowing", "models_attention", "models_bodies_gpt2", "models_decoder",
    "models_kv_cache", "models_windowed", "ops_autograd", "ops_body", "ops_lora", "ops_quantised",
    "ops_reference", "recurrences_composition",
    "recurrences_modules", "recurrences_seam",
}  # fmt: skip
OTHERS = {  # files of a mechanism beside its module
    "cache": {
        "ops_matmul",
        *(
            f"recurrences_cache_{name}"
            for name in ("collected", "joins", "keep", "leave", "measure", "quantised", "row_size", "rows", "weights")
        ),
    },
    "ttt": {"ops_matmul"},
    "gated_delta": {"ops_matmul", "recurrences_gated_delta_chunks", "recurrences_gated_delta_rule"},
}


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=lambda one: one.name)
def test_its_files_are_ours_and_need_torch_and_transformers_alone(tmp_path: Path, mechanism: Mechanism) -> None:
    saved(tmp_path, mechanism.spec(), n_head=4)
    files = {file.stem: file for file in tmp_path.glob("*.py")}
    assert files.keys() == COMMON | {f"recurrences_{mechanism.name}_module"} | OTHERS.get(mechanism.name, set())
    assert mechanism.load().__name__ in files.pop("recurrences_modules").read_text()
    for name, file in files.items():
        assert set(get_imports(file)) - sys.stdlib_module_names <= {"torch", "transformers", "numpy"}
        origin, *lines = file.read_text().splitlines()
        [module] = re.findall(r"recur_tune\.([.\w]+)", origin)
        theirs = inspect.getsource(sys.modules[f"recur_tune.{module}"]).splitlines()
        assert module.replace(".", "_") == name and len(lines) == len(theirs)
        changed = [pair for pair in zip(lines, theirs, strict=True) if pair[0] != pair[1]]
        assert all(mine.startswith("from .") and their.startswith("from recur_tune.") for mine, their in changed)


def plugin(folder: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> BaseModel:
    """The fields of another package's recurrence, whose module has this name; for one test alone."""
    file = folder.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("from recur_tune.recurrences.pooled.module import Pooled\n\n\nclass Guest(Pooled):\n    pass\n")
    monkeypatch.syspath_prepend(str(folder))
    guest = Mechanism(name="guest", spec=type("GuestSpec", (PooledSpec,), {}), module=f"{module}:Guest", summary="")
    monkeypatch.setitem(MECHANISMS, "guest", guest)
    return guest.spec()


def test_a_plugins_module_does_not_replace_ours_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "model", plugin(tmp_path, "guest_package.attention", monkeypatch))
    files = {file.stem: file.read_text() for file in (tmp_path / "model").glob("*.py")}
    assert files.keys() == COMMON | {"recurrences_pooled_module", "guest_package_attention"}
    assert "def attend(" in files["models_attention"] and "class Guest(" in files["guest_package_attention"]
    assert "from .guest_package_attention import Guest" in files["recurrences_modules"]
    imported = {name for code in files.values() for name in re.findall(r"^from \.(\w+) import ", code, re.MULTILINE)}
    assert imported <= files.keys()


def test_modules_that_would_be_saved_as_one_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = plugin(tmp_path, "models_attention", monkeypatch)
    with pytest.raises(UserError, match=r"models_attention.* would both be saved as models_attention\.py; rename one"):
        saved(tmp_path / "model", spec)
    assert not list((tmp_path / "model").glob("*.py"))


def test_with_recur_tune_the_packages_own_class_opens_it_trusted_or_not(tmp_path: Path) -> None:
    saved(tmp_path, PooledSpec())
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == {
        "AutoConfig": "models_bodies_gpt2.RecurrentGPT2Config",
        "AutoModelForCausalLM": "models_bodies_gpt2.RecurrentGPT2",
    }
    assert type(load_model(tmp_path)[0]) is RecurrentGPT2
    for trusting in ({}, {"trust_remote_code": True}):
        assert type(AutoModelForCausalLM.from_pretrained(tmp_path, **trusting)) is RecurrentGPT2


def test_a_plain_model_brings_no_code(tmp_path: Path) -> None:
    saved(tmp_path, None)
    assert not list(tmp_path.glob("*.py"))
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=lambda one: one.name)
def test_a_recurrence_has_the_fields_of_its_spec_and_their_defaults(mechanism: Mechanism) -> None:
    """A folder's configuration may be older than a field."""
    of_overflow = SecondParts.model_fields.keys() if issubclass(mechanism.spec, SecondParts) else set()
    own = {name: field for name, field in mechanism.spec.model_fields.items() if name not in of_overflow}
    fields = {name: field.default for name, field in own.items()}
    arguments = {name: one.default for name, one in inspect.signature(mechanism.load()).parameters.items()}
    assert {name: arguments.get(name) for name in fields} == fields
    assert arguments.keys() - fields.keys() == {"shape"}
