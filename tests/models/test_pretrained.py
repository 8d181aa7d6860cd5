"""Loading and saving models, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from recur_tune.common.errors import UserError
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.models import RecurrentGPT2
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
