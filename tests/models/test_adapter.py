"""Adapters: peft opens what is written here, and what peft wrote is read here or refused."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from pydantic import BaseModel
from safetensors.torch import load_file, save_file

from recur_tune.common.errors import UserError
from recur_tune.common.lora import LoraSpec
from recur_tune.data.tokenizers import load_tokenizer
from recur_tune.models import WindowedDecoder
from recur_tune.models.adapter import (
    SETTINGS,
    WEIGHTS,
    adapter_fields,
    load_adapter,
    other_base,
    recurrence_left_behind,
    write_adapter,
)
from recur_tune.models.pretrained import load_model, save_model
from recur_tune.models.trained import Trained, lay_frozen_together, merged
from recur_tune.recurrences.cache.spec import CacheSpec
from tests.models import some_tokens
from tests.models.bodies import body, hugging_face

LORA = LoraSpec(rank=3, alpha=5.0)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def learned(name: str, spec: BaseModel | None, lora: LoraSpec = LORA, seed: int = 0) -> WindowedDecoder:
    """A body in single precision, with the weights of its seed, that has learned by LoRA."""
    torch.manual_seed(seed)
    model = body(name, spec).float()
    model.config.window = 12
    Trained("lora", lora).apply(model)
    with torch.no_grad():
        for layer in model.body.lora:
            layer.up.normal_(std=0.3)
    return model


def stock(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return hugging_face(body(name).float())


def by_peft(name: str, folder: Path, **settings: Any) -> Any:
    """An adapter that peft made on a stock base, and saved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(stock(name), LoraConfig(r=2, **settings))
        with torch.no_grad():
            for weight in (one for name, one in model.named_parameters() if ".lora_B." in name):
                weight.normal_(std=0.3)
        model.save_pretrained(folder)
    return model.eval()


def saved(model: WindowedDecoder, tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "adapter").mkdir()
    save_model(model, load_tokenizer("bytes"), tmp_path / "run")
    write_adapter(tmp_path / "run", "some-base", tmp_path / "adapter")
    return tmp_path / "adapter"


def fresh(name: str, folder: Path, spec: BaseModel | None = None) -> WindowedDecoder:
    """A model that is told to go on from an adapter."""
    fields = adapter_fields(folder)
    lora = LoraSpec(fields["lora_rank"], fields["lora_alpha"], fields["lora_targets"])
    torch.manual_seed(0)
    model = body(name, spec).float()
    Trained("lora", lora).apply(model)
    load_adapter(folder, model, lora, "here")
    return model


@torch.no_grad()
@pytest.mark.parametrize(("name", "targets"), [("gpt2", "attention"), ("qwen2", "all")])
def test_peft_opens_what_is_written_on_the_stock_base(name: str, targets: Any, tmp_path: Path) -> None:
    model, tokens = learned(name, None, LORA._replace(targets=targets)), some_tokens(2, 11)
    folder = saved(model, tmp_path)
    theirs = PeftModel.from_pretrained(stock(name), folder)
    torch.testing.assert_close(theirs(tokens).logits, model(tokens).logits, **CLOSE)
    again, _ = load_model(tmp_path / "run")
    torch.testing.assert_close(again.eval()(tokens).logits, model(tokens).logits, **CLOSE)
    assert json.loads((folder / SETTINGS).read_text())["base_model_name_or_path"] == "some-base"
    assert adapter_fields(folder)["recurrence"] == "none", "what goes on from it is plain too"
    assert recurrence_left_behind(folder, None) is None


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_another_base_of_the_same_shape_is_told(name: str, tmp_path: Path) -> None:
    model = learned(name, None)
    folder = saved(model, tmp_path)

    def beside(plain: WindowedDecoder, **how: Any) -> str | None:
        Trained("lora", LORA, **how).apply(plain)
        lay_frozen_together(plain)
        return other_base(folder, plain, "here")

    def base(seed: int) -> WindowedDecoder:
        torch.manual_seed(seed)
        return body(name, None).float()

    assert beside(base(0)) is beside(base(0), bfloat16=True) is beside(base(0), bits=4) is None
    said = f"adapter: {folder} was trained beside other weights than those of here"
    for other in (beside(base(1)), beside(base(1), bits=4), beside(merged(model))):
        assert str(other).startswith(said)
    by_peft(name, tmp_path / "peft")
    assert other_base(tmp_path / "peft", base(1), "here") is None, "nothing is known of its base"


@torch.no_grad()
def test_a_recurrence_travels_beside_its_adapter(tmp_path: Path) -> None:
    spec, tokens = CacheSpec(cache_rows=5, cache_join="gate"), some_tokens(1, 30)
    model = learned("llama", spec)
    folder = saved(model, tmp_path)
    fields = adapter_fields(folder)
    assert (fields["recurrence"], fields["cache_rows"], fields["window"]) == ("cache", 5, 12)
    again = fresh("llama", folder, spec)
    again.config.window = 12
    again.load_state_dict({n: p for n, p in model.state_dict().items() if n.startswith("recurrence.")}, strict=False)
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits, **CLOSE)
    assert all(
        torch.equal(one, other)
        for one, other in zip(
            fresh("llama", folder, spec).recurrence.state_dict().values(), model.recurrence.state_dict().values(),
            strict=True,
        )
    )  # fmt: skip
    PeftModel.from_pretrained(stock("llama"), folder)  # which leaves it where it is
    assert recurrence_left_behind(folder, spec) is None
    assert str(recurrence_left_behind(folder, None)).endswith("since the trial has none; its matrices are kept.")
    other = spec.model_copy(update={"cache_rows": 6})
    assert "or has other fields" in str(recurrence_left_behind(folder, other))


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama", {"target_modules": ["q_proj", "v_proj"], "lora_alpha": 7}),
        ("llama", {"target_modules": "all-linear", "use_rslora": True}),
        ("gpt2", {"target_modules": ["c_fc"]}),
    ],
)
def test_what_peft_wrote_is_what_peft_computes(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    theirs, tokens = by_peft(name, tmp_path, **settings), some_tokens(2, 9)
    ours = fresh(name, tmp_path)
    ours.config.window = 9
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, **CLOSE)
    torch.testing.assert_close(merged(ours)(tokens).logits, theirs(tokens).logits, **CLOSE)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"use_dora": True}, "has DoRA, which is not supported"),
        ({"peft_type": "IA3"}, "is of type 'IA3', which is not supported"),
        ({"bias": "all"}, r"has trained biases \(bias: all\)"),
        ({"rank_pattern": {"q_proj": 4}}, "has several ranks"),
        ({"modules_to_save": ["lm_head"]}, "has modules trained whole"),
        ({"init_lora_weights": "pissa_niter_16"}, "has a changed base"),
        ({"r": 0}, "which is no rank"),
    ],
)
def test_what_is_not_plain_lora_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    by_peft("llama", tmp_path, target_modules=["q_proj"])
    settings = json.loads((tmp_path / SETTINGS).read_text())
    (tmp_path / SETTINGS).write_text(json.dumps(settings | change))
    with pytest.raises(UserError, match=f"^adapter: .*{sentence}"):
        adapter_fields(tmp_path)


def test_what_does_not_fit_is_refused_by_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^adapter: .* holds none"):
        adapter_fields(tmp_path)
    by_peft("llama", tmp_path, target_modules=["q_proj", "lm_head"])
    with pytest.raises(UserError, match=r"has base_model.*lm_head.*, which is no matrix of LoRA"):
        fresh("llama", tmp_path)
    by_peft("llama", tmp_path, target_modules=["down_proj"], lora_alpha=4)
    with pytest.raises(UserError, match=r"down_proj, which lora_targets 'attention' does not"):
        load_adapter(
            tmp_path, learned("llama", None, LoraSpec(2, 4.0, "attention")), LoraSpec(2, 4.0, "attention"), "here"
        )
    by_peft("llama", tmp_path, target_modules=["q_proj"])
    with pytest.raises(UserError, match=r"is for another base: it changes model.layers.0.self_attn.q_proj, which here"):
        fresh("gpt2", tmp_path)
    with pytest.raises(
        UserError, match=r"is for another base: its matrices of .* have \[40, 2\] numbers, .* \[32, 2\]"
    ):
        by_peft("mistral", tmp_path, target_modules=["q_proj"])
        fresh("qwen3", tmp_path)
    with pytest.raises(UserError, match=r"^lora_rank: 3 is not that of .*, which has 2; choose that."):
        load_adapter(tmp_path, learned("llama", None), LORA, "here")
    (tmp_path / WEIGHTS).write_bytes(b"no tensors")
    with pytest.raises(UserError, match=r"is damaged"):
        adapter_fields(tmp_path)


def test_a_recurrence_of_another_size_is_refused(tmp_path: Path) -> None:
    spec = CacheSpec(cache_rows=5, cache_join="gate")
    folder = saved(learned("llama", spec), tmp_path)
    own = load_file(folder / "recurrence.safetensors")
    save_file({name: torch.cat([one, one]) for name, one in own.items()}, folder / "recurrence.safetensors")
    with pytest.raises(UserError, match=r"has a recurrence 'cache' for a body of other sizes than here"):
        fresh("llama", folder, spec)
