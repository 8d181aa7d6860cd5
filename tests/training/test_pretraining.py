"""Trials on bases of several families, from a folder to a model that opens without us."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from recur_tune.common.errors import UserError
from recur_tune.common.shape import shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.models.pretrained import base_config, load_model, save_model
from recur_tune.recurrences.cache.spec import CacheSpec
from recur_tune.training.evaluation_settings import evaluation_settings
from recur_tune.training.run_folder import run_in_folder
from tests.cli.run import run as command
from tests.models.bodies import body

pytestmark = pytest.mark.slow  # each trains


def saved(folder: Path, name: str) -> str:
    save_model(body(name, vocab_size=256).float(), load_tokenizer("bytes"), folder)
    return str(folder)


def trial(base: str, **changes: object) -> TrialConfig:
    fields = {
        "base": base, "tokenizer": "bytes", "corpus": "recall", "window": 16, "bptt_windows": 2, "batch": 2,
        "width": 8, "depth": 1, "tokens": 400, "validate_every": 200, "validation_tokens": 200, "learning_rate": 1e-3,
    }  # fmt: skip
    return TrialConfig(**fields | changes)


def run(config: TrialConfig, folder: Path) -> None:
    run_in_folder(config, folder, resume=False, listen=lambda report: None)


@pytest.mark.parametrize("name", ["llama, tied, with biases", "mistral", "qwen2", "qwen3"])
def test_a_plain_run_is_the_familys_own_model_again(name: str, tmp_path: Path) -> None:
    run(trial(saved(tmp_path / "base", name), recurrence="none"), tmp_path / "run")
    model, _ = load_model(tmp_path / "run")
    theirs, tokens = AutoModelForCausalLM.from_pretrained(tmp_path / "run"), torch.arange(20)[None]
    assert type(theirs).__module__.startswith("transformers.")
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, theirs(tokens).logits, rtol=1e-3, atol=1e-3)


def test_with_a_frozen_base_only_the_recurrence_learns(tmp_path: Path) -> None:
    config = trial(saved(tmp_path / "base", "llama"), trainable="recurrence")
    run(config, tmp_path / "whole")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "whole"))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert after["recurrence.layer_logits"].abs().max() > 0


@pytest.mark.parametrize("bits", [16, 4])
def test_a_run_by_lora_resumes_and_its_adapter_is_gone_on_from(bits: int, tmp_path: Path) -> None:
    config = trial(
        saved(tmp_path / "base", "llama"), trainable="lora", lora_rank=2, learning_rate=3e-2, precision="bfloat16",
        recurrence="cache", cache_rows=4, base_bits=bits,
    )  # fmt: skip
    run(config, tmp_path / "whole")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "whole"))
    changed = {name for name, tensor in before.items() if not torch.allclose(after[name], tensor, rtol=0.01, atol=1e-4)}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    assert all("lora" not in name and tensor.dtype == torch.float32 for name, tensor in after.items())
    assert_resumed_alike(config, tmp_path)
    assert command("export", tmp_path / "whole", "--adapter", "--to", tmp_path / "adapter").code == 0
    flags = ["--base", config.base, "--adapter", tmp_path / "adapter", "--tokenizer", "bytes", "--corpus", "recall"]
    sizes = ["--bptt-windows", 2, "--batch", 2, "--tokens", 60, "--learning-rate", 1e-9, "--validation-tokens", 200]
    held = ["--precision", "bfloat16", "--base-bits", bits]
    told = command("train", *flags, *sizes, *held, "--out", tmp_path / "on", "--json")
    assert told.code == 0 and "other weights" not in told.err, told.err
    last = json.loads((tmp_path / "whole" / "reports.jsonl").read_text().splitlines()[-1])["validation"]
    assert json.loads(told.out)["validation"]["loss"] == pytest.approx(last["loss"], rel=1e-4)


def assert_resumed_alike(config: TrialConfig, folder: Path) -> None:
    """A run that was cut and resumed is the whole one."""

    class Cut(Exception):
        pass

    def cut(report) -> None:
        if report.tokens > 300:
            raise Cut

    with pytest.raises(Cut):
        run_in_folder(config, folder / "cut", resume=False, listen=cut)
    run_in_folder(config, folder / "cut", resume=True, listen=lambda report: None)
    whole, again = (load_file(folder / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"window": 33}, "window: 33 is more than the 32 positions of "),
        ({"l_ins": 4}, "l_ins: 4 is not a layer of "),
    ],
)
def test_what_a_base_cannot_do_is_refused(fields: dict, sentence: str, tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "llama")
    with pytest.raises(UserError) as refusal:
        trial(base, **fields).check_base(shape_of(base_config(base).to_dict()))
    assert str(refusal.value).startswith(sentence)


def test_windows_without_room_for_a_model_s_rows_are_refused(tmp_path: Path) -> None:
    spec = CacheSpec(cache_rows=12)
    save_model(body("gpt2", spec, vocab_size=256).float(), load_tokenizer("bytes"), tmp_path)
    model, _ = load_model(tmp_path)
    assert evaluation_settings(tmp_path, model, window=20).windowing.size == 20
    with pytest.raises(UserError, match="window: 21 and the 12 rows beside it is more than the 32 positions of"):
        evaluation_settings(tmp_path, model, window=21)


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    save_model(body("qwen2").float(), load_tokenizer("bytes"), tmp_path / "base")
    with pytest.raises(UserError, match=r"^tokenizer: it has 256 tokens, and .* only knows 61; use the one"):
        run(trial(str(tmp_path / "base")), tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "t5"}, r"is of type 't5'.*gpt2, llama, mistral, qwen2, qwen3, roberta, bert, mpnet\.$"),
        ({"model_type": "bert", "pad_token_id": None}, r"does not say which token is padding \(pad_token_id"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10.0, "factor": 2.0}},
            r"in the way 'dynamic', which is not supported; these are: default, linear, llama3, yarn\.$",
        ),
    ],
)
def test_a_base_of_another_kind_is_one_sentence(changes: dict, sentence: str, tmp_path: Path) -> None:
    base = Path(saved(tmp_path / "base", "llama"))
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(UserError, match=sentence):
        base_config(str(base))
