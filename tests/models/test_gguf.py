"""A base in a GGUF file, as llama.cpp has it."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
import transformers

from recur_tune.common import gguf as gguf_files
from recur_tune.common.errors import UserError
from recur_tune.common.shape import shape_of
from recur_tune.data.tokenizers import fingerprint, load_tokenizer
from recur_tune.models import WindowedDecoder
from recur_tune.models.pretrained import base_config, load_base, load_model, save_model
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.models import some_tokens
from tests.models.bodies import body, hugging_face

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write(file: Path, model: WindowedDecoder) -> None:
    """A file with a Llama's weights, its heads' numbers in llama.cpp's order: pairs side by side."""
    shape = model.config.shape
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_value_heads)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(100_000.0)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", *(f"<{number}>" for number in range(3, shape.vocabulary))])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    for name, tensor in model.state_dict().items():
        place = name.removesuffix(".weight")
        if place.startswith("model.layers."):
            _, _, layer, part = place.split(".", 3)
            place = f"blk.{layer}.{NAMES[part]}"
            heads = {"self_attn.q_proj": shape.heads, "self_attn.k_proj": shape.key_value_heads}.get(part)
            if heads:
                tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        else:
            place = WHOLE[place]
        writer.add_tensor(f"{place}.weight", tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "small.gguf", body("llama").float())
    return tmp_path / "small.gguf"


@torch.no_grad()
def test_a_base_from_a_file_has_its_weights_and_its_rotary_base(tmp_path):
    rotary = {"rope_type": "default", "rope_theta": 100_000.0}
    model, tokens = body("llama", rope_parameters=rotary), some_tokens(2, 20)
    write(tmp_path / "small.gguf", model)
    base = str(tmp_path / "small.gguf")
    assert shape_of(base_config(base).to_dict()) == model.config.shape
    loaded = load_base(base, PooledSpec(l_ins="all")).double()
    torch.testing.assert_close(loaded(tokens).logits, hugging_face(model)(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", [None, PooledSpec()], ids=["plain", "pooled"])
def test_a_model_from_a_file_is_saved_and_read_without_a_trace_of_the_files_bits(file, tmp_path, monkeypatch, spec):
    read = transformers.AutoModelForCausalLM.from_pretrained

    def noting(*given, **named):  # as transformers 5.17 does
        model, found = read(*given, **named)
        model.config.quantization_config = {"quant_method": "gguf", "gguf_file": file.name}
        return model, found

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", noting)
    save_model(load_base(str(file), spec), load_tokenizer("bytes"), tmp_path / "run")
    monkeypatch.undo()
    assert type(load_model(tmp_path / "run")[0].recurrence) is type(load_base(str(file), spec).recurrence)


def test_a_file_is_parsed_once_and_again_when_it_has_changed(file, monkeypatch):
    def opened() -> tuple[dict, str, dict]:
        base = str(file)
        return base_config(base).to_dict(), fingerprint(load_tokenizer(base)), load_base(base, None).state_dict()

    settings, tokenizer, weights = opened()
    with monkeypatch.context() as patched:
        patched.setattr(gguf, "GGUFReader", None)
        again = opened()
    assert again[:2] == (settings, tokenizer)
    assert again[2].keys() == weights.keys()
    assert all(torch.equal(again[2][name], weights[name]) for name in weights)
    model = body("llama").float()
    torch.nn.init.ones_(model.lm_head.weight)
    write(file, model)
    assert torch.equal(opened()[2]["lm_head.weight"], torch.ones_like(weights["lm_head.weight"]))


def test_a_file_that_is_cut_off_or_missing_is_one_sentence(file):
    file.write_bytes(file.read_bytes()[:5000])
    for load in (base_config, lambda base: load_base(base, None), load_tokenizer):
        with pytest.raises(UserError, match=r"small\.gguf could not be read as a GGUF file \(.*\); is it whole\?$"):
            load(str(file))
    with pytest.raises(UserError, match=r"^base: there is no file .*none\.gguf\.$"):
        base_config(str(file.with_name("none.gguf")))


def test_without_its_package_a_file_says_what_to_install(file, monkeypatch):
    monkeypatch.setattr(gguf_files, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs further packages: pip install 'recur-tune\[gguf\]'\.$"):
        base_config(str(file))
