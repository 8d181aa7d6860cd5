"""Loading and saving models, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from recur_tune.common.errors import UserError
from recur_tune.common.shape import shape_of
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.models import RecurrentGPT2
from recur_tune.models.checked_weights import unread_remark
from recur_tune.models.pretrained import base_config, left_behind, load_base, load_model, save_model
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.recurrences.registry import settings_of
from tests.conftest import small_model

POOLED = PooledSpec(l_ins="all", embeddings=2, pooling="attention")
TOKENS = torch.arange(20)[None]


def saved(folder: Path, recurrence: PooledSpec | None = None) -> RecurrentGPT2:
    """A model in a folder; nothing in it is as initialisation left it."""
    model = small_model(recurrence, vocab_size=256)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    save_model(model, byte_tokenizer(), folder)
    return model


def seeing(model: RecurrentGPT2, state: torch.Tensor | None) -> torch.Tensor:
    """The logits of a window that sees a state."""
    return model.logits(model.read(TOKENS, state).top_BTK)


@pytest.mark.parametrize("recurrence", [None, PooledSpec(), POOLED], ids=["none", "pooled", "all layers"])
@torch.no_grad()
def test_a_model_comes_back_as_it_was(tmp_path, recurrence):
    model = saved(tmp_path, recurrence)
    again, tokenizer = load_model(tmp_path)
    state = model.read(TOKENS).state
    torch.testing.assert_close(again.read(TOKENS).state, state, rtol=0, atol=0)
    torch.testing.assert_close(seeing(again.eval(), state), seeing(model, state), rtol=0, atol=0)
    assert again.lm_head.weight is again.transformer.wte.weight
    assert tokenizer.encode("añ") == list("añ".encode())


@torch.no_grad()
def test_the_way_of_reading_is_saved_with_a_recurrent_model(tmp_path):
    model = small_model(POOLED, vocab_size=256)
    model.config.window, model.config.overlap = 20, 3
    save_model(model, byte_tokenizer(), tmp_path)
    config = load_model(tmp_path)[0].config
    assert (config.window, config.overlap, config.recurrence) == (20, 3, settings_of(POOLED))


@torch.no_grad()
def test_a_plain_models_folder_is_a_plain_gpt2(tmp_path):
    model = saved(tmp_path)
    plain, found = GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["unexpected_keys"] and not found["missing_keys"] and not found["mismatched_keys"]
    torch.testing.assert_close(plain(TOKENS).logits, model(TOKENS).logits, rtol=1e-4, atol=1e-4)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("gpt2", ["GPT2LMHeadModel"])
    assert not {"recurrence", "window", "overlap"} & config.keys()


@torch.no_grad()
def test_a_recurrent_models_folder_opens_by_its_type(tmp_path):
    model = saved(tmp_path, POOLED)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is RecurrentGPT2
    state = model.read(TOKENS).state
    torch.testing.assert_close(seeing(again, state), seeing(model, state), rtol=0, atol=0)
    body = GPT2LMHeadModel.from_pretrained(tmp_path)
    torch.testing.assert_close(body(TOKENS).logits, model(TOKENS).logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_base_keeps_its_weights_and_gets_a_fresh_recurrence(tmp_path):
    plain = saved(tmp_path)
    model = load_base(str(tmp_path), PooledSpec(), dropout=0.25).eval()
    torch.testing.assert_close(model(TOKENS).logits, plain(TOKENS).logits, rtol=0, atol=0)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    first = model.recurrence.network[0].weight
    assert first.std().item() == pytest.approx((2 / 24) ** 0.5, rel=0.1)
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.25}


def test_a_base_keeps_its_own_dropout_unless_told_otherwise(tmp_path):
    save_model(small_model(vocab_size=256, resid_pdrop=0.3), byte_tokenizer(), tmp_path)
    assert load_base(str(tmp_path), None).config.resid_pdrop == 0.3


def test_a_preset_is_made_on_the_spot():
    model = load_base("tiny", PooledSpec())
    assert (model.config.n_layer, model.config.n_embd, model.config.vocab_size) == (3, 64, 256)
    assert load_base("tiny", None, vocabulary=100).config.vocab_size == 100


@pytest.mark.parametrize("recurrence", [None, POOLED], ids=["none", "pooled"])
@pytest.mark.parametrize("keep", [0, 5, 2000])
def test_damaged_weights_are_refused(tmp_path, recurrence, keep):
    saved(tmp_path, recurrence)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(UserError, match=str(tmp_path)):
        load_model(tmp_path)


@pytest.mark.parametrize("recurrence", [None, POOLED], ids=["none", "pooled"])
def test_pickled_weights_are_refused(tmp_path, recurrence):
    model = saved(tmp_path, recurrence)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=str(tmp_path)):
        load_model(tmp_path)


def test_a_pickled_base_is_refused(tmp_path):
    model = saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="base: "):
        load_base(str(tmp_path), PooledSpec())


@pytest.mark.parametrize("open_base", [base_config, lambda name: load_base(name, None)], ids=["shape", "weights"])
def test_a_hub_name_without_a_network_is_refused(open_base):
    with pytest.raises(UserError, match="base: 'nobody/no-such-model'"):
        open_base("nobody/no-such-model")


@pytest.mark.parametrize("spec", [None, PooledSpec(width=8), POOLED], ids=["none", "another", "the same"])
@torch.no_grad()
def test_a_recurrent_base_keeps_its_body_and_a_recurrence_that_is_the_same(tmp_path, spec):
    before = saved(tmp_path, POOLED)
    model = load_base(str(tmp_path), spec).eval()
    torch.testing.assert_close(model(TOKENS).logits, before(TOKENS).logits, rtol=0, atol=0)
    assert model.config.recurrence == settings_of(spec)
    assert (left_behind(str(tmp_path), spec) is None) == (spec == POOLED)
    if spec == POOLED:
        state = before.read(TOKENS).state
        torch.testing.assert_close(seeing(model, state), seeing(before, state), rtol=0, atol=0)
    elif spec:
        first = model.recurrence.network[0].weight
        assert first.std().item() == pytest.approx((2 / 24) ** 0.5, rel=0.2), "as new"
    else:
        assert model.recurrence is None and left_behind("tiny", None) is None


def test_a_base_of_another_kind_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(UserError, match="t5"):
        base_config(str(tmp_path))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no model"):
        load_model(tmp_path)


def test_known_shapes_need_no_network():
    assert base_config("openai-community/gpt2-medium").n_layer == 24
    assert base_config("distilbert/distilgpt2").n_layer == 6


def test_a_half_precision_base_is_trained_in_single_precision(tmp_path: Path) -> None:
    save_model(small_model(vocab_size=256).bfloat16(), byte_tokenizer(), tmp_path)
    for recurrence in (None, PooledSpec(width=8)):
        model = load_base(str(tmp_path), recurrence)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        model.read(torch.zeros(1, 4, dtype=torch.long))


def edited(folder: Path, change: Callable[[dict[str, torch.Tensor]], object], **settings: object) -> str:
    """Change the tensors of a model's folder, and its configuration."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return str(folder)


C_ATTN = "transformer.h.0.attn.c_attn.weight"


@pytest.mark.parametrize("recurrence", [None, POOLED], ids=["none", "pooled"])
def test_a_weight_that_is_not_there_is_named_and_never_made_up(tmp_path, recurrence):
    saved(tmp_path, recurrence)
    edited(tmp_path, lambda weights: weights.pop(C_ATTN))
    for field, load in (("model", load_model), ("base", lambda folder: load_base(str(folder), recurrence))):
        with pytest.raises(UserError, match=rf"{field if recurrence else 'base'}: {tmp_path} lacks {C_ATTN}, which"):
            load(tmp_path)


def test_a_recurrence_that_lost_a_weight_is_not_made_anew(tmp_path):
    saved(tmp_path, POOLED)
    edited(tmp_path, lambda weights: weights.pop("recurrence.pooling_key"))
    with pytest.raises(UserError, match=rf"model: {tmp_path} lacks recurrence\.pooling_key"):
        load_model(tmp_path)
    with pytest.raises(UserError, match=rf"base: {tmp_path} lacks recurrence\.pooling_key"):
        load_base(str(tmp_path), POOLED)


def test_a_weight_of_another_shape_is_named(tmp_path):
    saved(tmp_path)
    edited(tmp_path, lambda weights: weights.update({C_ATTN: torch.zeros(24, 60)}))
    with pytest.raises(UserError, match=rf"base: {tmp_path} has {C_ATTN} in another shape than its config\.json"):
        load_base(str(tmp_path), None)


def test_a_scale_beside_a_weight_is_no_part_that_can_be_left_out(tmp_path):
    saved(tmp_path)
    edited(tmp_path, lambda weights: weights.update({f"{C_ATTN}_scale_inv": torch.ones(1)}))
    with pytest.raises(UserError, match=rf"has {C_ATTN}_scale_inv beside weights that are read"):
        load_base(str(tmp_path), None)


def test_tensors_that_no_such_model_has_are_named(tmp_path):
    saved(tmp_path)
    more = {f"score.{number}.weight": torch.ones(1) for number in range(5)}
    edited(tmp_path, lambda weights: weights.update({**more, "transformer.h.0.attn.masked_bias": torch.ones(1)}))
    unread = load_base(str(tmp_path), None).unread
    assert unread == {*more, "transformer.h.0.attn.masked_bias"}
    assert unread_remark("gpt2", unread) == (
        "base: gpt2 has score.0.weight, score.1.weight, score.2.weight and 3 more, which the model does not use."
    )
    assert unread_remark("gpt2", load_base("tiny", None).unread) is None


QUANTISED = ["gptq", "awq", "bitsandbytes", "hqq", "quanto", "torchao", "compressed-tensors", "bitnet", "exl2", "fp8"]


@pytest.mark.parametrize("method", [*QUANTISED, None])
def test_a_quantised_base_is_refused_whatever_is_installed(tmp_path, method):
    saved(tmp_path)
    base = edited(tmp_path, lambda weights: None, quantization_config={"quant_method": method, "bits": 4})
    said = rf"base: {tmp_path} is quantised \({method or 'by a method'}.*GGUF file\.$"
    for load in (base_config, lambda name: load_base(name, None)):
        with pytest.raises(UserError, match=said):
            load(base)


LLAMA = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (LLAMA | {"is_causal": False}, r"attends to later tokens \(is_causal: false\), and llama is read causally"),
        (LLAMA | {"layer_types": ["full_attention", "chunked_attention"]}, "layers of type 'chunked_attention'"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 2}, "layers of type 'sliding_attention'"),
        (LLAMA | {"model_type": "qwen3", "layer_types": ["linear_attention"] * 2}, "of type 'linear_attention'"),
        ({"model_type": "bert", "is_decoder": True}, r"is a decoder \(is_decoder: true\), and bert is read in both"),
    ],
)
def test_a_base_that_is_read_in_another_way_elsewhere_is_refused(tmp_path, settings, said):
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=f"base: {tmp_path} .*{said}"):
        base_config(str(tmp_path))


def test_layers_with_a_sliding_window_are_read_within_it(tmp_path):
    settings = {"model_type": "qwen3", "sliding_window": 16, "use_sliding_window": True}
    types = {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | settings | types))
    assert shape_of(base_config(str(tmp_path)).to_dict()).context == 16
