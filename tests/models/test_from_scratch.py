"""Models of random weights, whose shape is written by its sizes or named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recur_tune.common.errors import UserError
from recur_tune.common.from_scratch import known_settings
from recur_tune.common.parsing import parse
from recur_tune.common.shape import shape_of
from recur_tune.config.base_shape import base_shape, is_preset
from recur_tune.config.trial import TrialConfig
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.models.pretrained import base_config, base_tokenizer, left_behind, load_base, save_model
from recur_tune.recurrences.cache.spec import CacheSpec
from tests.conftest import small_model

RSA_XL = CacheSpec(cache_rows=8, cache_sinks=0, beside="scores")


def test_sizes_are_a_body_of_llamas_form():
    shape = base_shape("none:3x24x4", "bytes")
    assert (shape.family, shape.layers, shape.hidden, shape.heads, shape.head_size) == ("llama", 3, 24, 4, 6)
    assert (shape.inner, shape.vocabulary, shape.tied) == (64, 256, True)
    assert base_shape("none:2x128", None).heads == 2
    assert base_shape("none", None) == base_shape("none:14x512x8", "bytes")
    model = load_base("none:3x24x4", None, vocabulary=256)
    assert sum(one.numel() for one in model.parameters()) == shape.parameters


@pytest.mark.parametrize(("base", "family"), [("none:tiny", "gpt2"), ("none:Qwen/Qwen2.5-0.5B", "qwen2")])
def test_a_shape_can_be_a_models_with_another_vocabulary(base, family):
    own, ours = (base_shape(one, "bytes" if one == base else None) for one in (base.removeprefix("none:"), base))
    assert (ours.family, ours.layers, ours.hidden, ours.vocabulary) == (family, own.layers, own.hidden, 256)
    assert not is_preset(base), "a search does not pretrain it"
    assert shape_of(known_settings(base)).layers == own.layers
    assert known_settings(base, "elsewhere/tokenizer") is None  # its vocabulary may have any size


def test_the_usual_tokenizer_is_bytes_or_the_named_models():
    bases = ("none", "none:2x64", "none:mini", "none:gpt2")
    assert [base_tokenizer(base, None) for base in bases] == ["bytes", "bytes", "gpt2", "gpt2"]
    assert base_tokenizer("none", "a-folder") == "a-folder"


def test_of_a_folder_only_the_shape_is_taken(tmp_path: Path):
    saved = small_model(CacheSpec(cache_rows=3), vocab_size=300)
    save_model(saved, byte_tokenizer(), tmp_path)
    base = f"none:{tmp_path}"
    assert base_config(base).vocab_size == 300 and left_behind(base, None) is None
    model = load_base(base, None, vocabulary=256)
    assert model.config.vocab_size == 256 and model.recurrence is None
    assert not torch.equal(model.transformer.wpe.weight, saved.transformer.wpe.weight)


def test_the_seed_alone_decides_the_weights_and_gates_begin_open():
    def loaded(base: str, seed: int):
        torch.manual_seed(seed)
        return load_base(base, RSA_XL, vocabulary=256).state_dict()

    one, again, other = (loaded("none:2x16x4", seed) for seed in (0, 0, 1))
    gates = "recurrence.beside.gate_logits"
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one[gates], other[gates])
    assert len(one[gates].unique()) == 8, "as the paper draws them"
    assert len(loaded("tiny", 0)[gates].unique()) == 1, "a base's are closed"


def test_training_from_nothing_learns_and_reads_on(tmp_path: Path):
    """Losses fall, and the folder is a model like any other."""
    from recur_tune.training.run_folder import run_in_folder

    config = TrialConfig(
        base="none:1x16x4", corpus="tales", recurrence="cache", window=16, bptt_windows=2, batch=8, tokens=4000,
        validate_every=1000, validation_tokens=1000, learning_rate=1e-2, **RSA_XL.model_dump(),
    )  # fmt: skip
    losses: list[float] = []
    run_in_folder(config, tmp_path / "run", resume=False, listen=lambda report: losses.append(report.loss))
    assert losses[-1] < losses[0] - 0.5 and abs(losses[0] - 5.5) < 0.5  # at first every byte is as likely
    assert base_config(str(tmp_path / "run")).recurrence["beside"] == "scores"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"base": "none:"}, "base: none: names no shape; write layers, width and heads behind it, as none:14x512x8"),
        ({"base": "none:2x30x4"}, "base: none:2x30x4 has 2 layers of 30 in 4 heads; choose a width that is an even mu"),
        ({"base": "none:0x64"}, "base: none:0x64 has 0 layers of 64 in 1 heads"),
        ({"base": "none:2x64x0"}, "base: none:2x64x0 has 2 layers of 64 in 0 heads"),
        ({"base": "none", "trainable": "recurrence"}, "trainable: 'recurrence' freezes the base, and none has rand"),
        ({"base": "none:gpt2", "trainable": "lora"}, "trainable: 'lora' freezes the base, and none:gpt2 has rand"),
    ],
    ids=str,
)  # fmt: skip
def test_a_shape_that_cannot_be_is_refused_in_a_sentence(fields, said):
    with pytest.raises(UserError) as refusal:
        parse(TrialConfig, fields)
    assert str(refusal.value).startswith(said)


def test_an_encoders_shape_is_refused():
    with pytest.raises(UserError) as refusal:
        base_config("none:roberta-base")
    assert str(refusal.value) == (
        "base: none:roberta-base is the shape of an encoder, which predicts no next tokens; name a decoder's."
    )
