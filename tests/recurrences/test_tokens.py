"""Windows between rows that they read and rows that they write, against loops over positions and heads."""

from __future__ import annotations

import pytest
import torch

from recur_tune.common.errors import UserError
from recur_tune.common.known_shapes import KNOWN_SHAPES
from recur_tune.common.shape import shape_of
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.flops import flops_per_token
from recur_tune.models.pretrained import base_config
from recur_tune.recurrences.tokens.spec import TOKENS, TokensSpec
from tests.models import some_tokens
from tests.models.bodies import body, hugging_face
from tests.models.naive import Naive, with_exact_turns

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
GPT2 = shape_of(base_config("gpt2").to_dict())


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("spec", [TokensSpec(state_tokens=3), TokensSpec(state_tokens=2, ring=2)], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
@torch.no_grad()
def test_three_windows_are_those_that_loops_make(name, spec, overlap):
    model, windowing = with_exact_turns(body(name, spec)), Windowing(5, overlap)
    text, naive, own = some_tokens(windowing.span(3)), Naive(model), model.recurrence
    state, ring = None, [*torch.zeros_like(own.read_NMK)]
    for window in range(3):
        tokens = text[window * windowing.stride :][: windowing.size]
        reading = model.read(tokens[None], state, overlap=overlap)
        read = spec.ring * spec.state_tokens
        before = [learned + own.scale_K * summary for learned, summary in zip(own.read_NMK, ring, strict=True)]
        rows = naive.run(torch.cat([*before, naive.embed(tokens), own.write_MK]), begin=-read)
        torch.testing.assert_close(reading.top_BTK[0], rows[read : read + 5], **CLOSE)
        torch.testing.assert_close(model.read(tokens[None], state, leave_state=False).top_BTK, reading.top_BTK, **CLOSE)
        ring = [*ring[1:], rows[read + 5 :]]
        state = reading.state
        torch.testing.assert_close(state[0][0], torch.stack(ring), **CLOSE)


@torch.no_grad()
def test_rotary_rows_that_are_embedded_tokens_are_those_tokens():
    model, text = with_exact_turns(body("llama", TokensSpec(state_tokens=4))), some_tokens(2, 14)
    state = (model.body.tokens(text[:, None, :4]),)
    own = model.recurrence
    own.write_MK.copy_(model.body.tokens(text[0, 10:]))
    own.read_NMK.zero_()
    own.scale_K.fill_(1)
    whole = with_exact_turns(hugging_face(model)).base_model(text).last_hidden_state
    reading = model.read(text[:, 4:10], state)
    torch.testing.assert_close(reading.top_BTK, whole[:, 4:10], **CLOSE)
    torch.testing.assert_close(reading.state[0][0, 0], whole[0, 10:], **CLOSE)


@torch.no_grad()
def test_at_first_a_state_changes_nothing_and_rows_are_small():
    model, tokens = body("llama", TokensSpec(state_tokens=50, ring=2)), some_tokens(2, 6)
    own = model.recurrence
    own.reset(own)
    for rows, spread in ((own.read_NMK, 0.001), (own.write_MK, 0.02)):
        assert rows.std().item() == pytest.approx(spread, rel=0.05) and abs(rows.mean().item()) < 0.1 * spread
    first = model.read(tokens)
    torch.testing.assert_close(model.read(tokens, first.state).top_BTK, first.top_BTK, **CLOSE)


def test_at_first_the_scale_learns_and_then_what_is_written():
    model, tokens = body("gpt2", TokensSpec(state_tokens=2)), some_tokens(2, 6)
    own = model.recurrence
    own.reset(own)

    def gradients():
        top = model.read(tokens, model.read(tokens).state, leave_state=False).top_BTK
        return torch.autograd.grad(top.square()[..., 0].sum(), [own.scale_K, own.write_MK])

    assert [bool(gradient.any()) for gradient in gradients()] == [True, False]
    own.scale_K.data += 0.01
    assert [bool(gradient.any()) for gradient in gradients()] == [True, True]


def test_costs_in_closed_form():
    config = TrialConfig(recurrence="tokens", window=300, state_tokens=10)
    plain = flops_per_token(config.model_copy(update={"recurrence": "none"}), GPT2)
    look, products = 4 * 768, 12 * 768**2 * 2  # of one pair, and of one row, in one layer
    pairs = 10 * 11 / 2 + 300 * 10 + sum(310 + row for row in range(1, 11))
    assert flops_per_token(config, GPT2) - plain == pytest.approx(12 * (20 * products + pairs * look) / 300)
    work = TOKENS.work(TokensSpec(state_tokens=10), GPT2, Windowing(300))
    assert work.made == 12 * (10 * products + (320**2 - 310**2) * look)
    assert work.used == 12 * (10 * products + (310**2 - 300**2) * look)
    assert TOKENS.state_floats(TokensSpec(state_tokens=10, ring=3), GPT2) == 3 * 10 * 768


def test_a_rotary_body_needs_positions_for_the_rows():
    llama, trial = shape_of(KNOWN_SHAPES["HuggingFaceTB/SmolLM2-135M"]), {"recurrence": "tokens", "base": "smol"}
    with pytest.raises(UserError) as refusal:
        TrialConfig(**trial, window=8163, ring=2).check_base(llama)
    assert str(refusal.value) == (
        "window: 8163 tokens and the 30 rows of 'tokens' beside them need 8193 positions, but smol has 8192; choose "
        "fewer of either."
    )
    TrialConfig(**trial, window=8162, ring=2).check_base(llama)
    TrialConfig(recurrence="tokens", window=1024).check_base(GPT2)  # rows have no learned position
