"""A trial's fields: what they accept, refuse and mean."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import nearest, parse, read_yaml, write_yaml
from recur_tune.common.shape import shape_of
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.models.pretrained import base_config
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.search.record.objectives import OBJECTIVES


def test_the_defaults_are_the_papers() -> None:
    config = TrialConfig()
    assert config.recurrence_spec == PooledSpec(l_ins=2, width=200, depth=3, pooling="mean", embeddings=1)
    assert (config.windowing, config.bptt_windows, config.step_tokens) == (Windowing(300, 0), 20, 48_000)
    assert TrialConfig(recurrence="none").recurrence_spec is None


@given(
    window=st.integers(2, 1024),
    share=st.floats(0, 0.99),
    l_ins=st.one_of(st.integers(1, 12), st.just("all")),
    learning_rate=st.floats(1e-8, 1),
    tokens=st.integers(1, 10**12),
)
def test_a_trial_survives_its_yaml_file(
    tmp_path_factory: pytest.TempPathFactory,
    window: int,
    share: float,
    l_ins: int | str,
    learning_rate: float,
    tokens: int,
) -> None:
    config = TrialConfig(
        window=window, overlap=int(window * share), l_ins=l_ins, learning_rate=learning_rate, tokens=tokens
    )  # fmt: skip
    path = tmp_path_factory.getbasetemp() / "trial.yaml"
    write_yaml(path, config.plain_values())
    assert parse(TrialConfig, read_yaml(path)) == config


def test_text_from_flags_means_the_same_as_values() -> None:
    flags = {"l_ins": "3", "window": "64", "tokens": "1.5M", "memory_budget": "2GiB", "learning_rate": "1e-3"}
    config = parse(TrialConfig, flags)
    assert (config.l_ins, config.window, config.tokens, config.memory_budget) == (3, 64, 1_500_000, 2**31)
    assert parse(TrialConfig, {"l_ins": "all"}).l_ins == "all"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"overlap": 300}, "overlap: 300 is not smaller than the window of 300; choose one from 0 to 299."),
        ({"window": 0}, "window: 0 is not greater than 0."),
        ({"window": "wide"}, "window: 'wide' is not a valid integer, unable to parse string as an integer."),
        ({"tokens": "x"}, "tokens: 'x' is not a count such as 500k or 20M."),
        ({"pooling": "sum"}, "pooling: 'sum' is not 'mean', 'max', 'attention' or 'recent'."),
        ({"l_inns": 2}, "l_inns: there is no such field; did you mean 'l_ins'?"),
        ({"dropout": 1.0}, "dropout: 1.0 is not less than 1."),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse(TrialConfig, fields)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("flops", OBJECTIVES, "flops_per_token"),  # which begins so, where training_flops_per_token has it inside
        ("memory", OBJECTIVES, "peak_memory' or 'inference_memory"),
        ("los", OBJECTIVES, "loss"),
        ("warmup", TrialConfig.model_fields, "warmup_steps"),
        ("token", TrialConfig.model_fields, "tokens"),  # the shorter of two
        ("rate", TrialConfig.model_fields, "lora_rate' or 'learning_rate' or 'recurrence_rate"),
        ("windwo", TrialConfig.model_fields, "window"),
    ],
)
def test_a_hint_contains_the_typed_name_or_is_spelled_like_it(typed: str, known: Iterable[str], meant: str) -> None:
    assert nearest(typed, known) == f"did you mean '{meant}'?"


def test_two_letters_are_in_too_many_names_for_a_hint() -> None:
    assert nearest("to", OBJECTIVES).startswith("known: perplexity, token_perplexity")


def test_a_trial_is_checked_against_the_bases_shape() -> None:
    gpt2 = shape_of(base_config("gpt2").to_dict())
    TrialConfig(window=1024, l_ins=12).check_base(gpt2)
    TrialConfig(l_ins=99, recurrence="none").check_base(gpt2)  # a plain model has no use for it
    with pytest.raises(UserError, match="window: 1025 is more than the 1024 positions"):
        TrialConfig(window=1025).check_base(gpt2)
    with pytest.raises(UserError, match="l_ins: 13 is not a layer of gpt2; choose one from 1 to 12, or 'all'"):
        TrialConfig(l_ins=13).check_base(gpt2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        read_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("tokens", "fields", "every"),
    [
        (20_000_000, {}, 2_000_000), (1_000_000, {}, 250_000), (50_000, {}, 25_000), (1, {}, 1),
        (1_000_000, {"validation_tokens": 1_000}, 100_000), (1_000_000, {"validate_every": 10_000}, 10_000),
    ],
)  # fmt: skip
def test_validations_read_a_tenth_of_what_is_trained_on_or_are_two(
    tokens: int, fields: dict[str, int], every: int
) -> None:
    config = TrialConfig(tokens=tokens, **fields)  # type: ignore[arg-type]
    assert config.validation_interval == every
    read = config.validation_size * (tokens // every)
    assert read <= tokens / 10 or tokens // every <= 2 or fields.get("validate_every")


@pytest.mark.parametrize(
    ("fields", "base", "sentence"),
    [
        ({"lora_rank": 193, "lora_targets": "attention"}, "HuggingFaceTB/SmolLM2-135M", "lora_rank: 193 is above 192"),
        ({"lora_rank": 577, "lora_targets": "mlp"}, "HuggingFaceTB/SmolLM2-135M", "lora_rank: 577 is above 576"),
        ({"lora_rank": 769}, "gpt2", "lora_rank: 769 is above 768"),
        ({}, "bert-base-uncased", "trainable: 'lora' needs a decoder, and bert-base-uncased reads in both"),
    ],
)
def test_a_body_that_cannot_learn_by_lora_is_refused(fields: dict, base: str, sentence: str) -> None:
    corpus = "squad" if base.startswith("bert") else "stdlib"
    config = TrialConfig(base=base, corpus=corpus, recurrence="none", trainable="lora", **fields)
    with pytest.raises(UserError, match=f"^{sentence}"):
        config.check_base(shape_of(base_config(base).to_dict()))


def test_a_base_that_learns_is_not_quantised() -> None:
    with pytest.raises(UserError, match=r"^base_bits: 4 holds a frozen base, and trainable 'all' changes it; choose"):
        parse(TrialConfig, {"base_bits": "4"})
    with pytest.raises(UserError, match=r"^base_bits: 6 is not 16, 8 or 4\."):
        parse(TrialConfig, {"base_bits": "6", "trainable": "lora"})
    assert parse(TrialConfig, {"base_bits": "8", "trainable": "lora"}).base_bits == 8


def test_an_adapter_without_lora_is_refused() -> None:
    with pytest.raises(UserError, match=r"^adapter: mine goes with trainable 'lora', and this is 'all'\."):
        parse(TrialConfig, {"adapter": "mine"})
