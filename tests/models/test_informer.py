"""Informer's ProbSparse attention, and RSA in it, against their equations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from recur_tune.common.shape import CALENDAR
from recur_tune.models.pretrained import fresh_model, made_config, recurrent_config
from recur_tune.recurrences.scores.spec import ScoresSpec

WINDOW, HORIZON, COLUMNS, WIDTH, HEADS = 16, 4, 2, 8, 4


def model_of(spec: ScoresSpec | None = None, factor: int = 100, **changes: Any) -> Any:
    settings = {
        "model_type": "informer", "columns": COLUMNS, "patch": WINDOW, "horizon": HORIZON, "label": 8,
        "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "sampling_factor": factor,
    }  # fmt: skip
    torch.manual_seed(0)
    return fresh_model(recurrent_config(made_config(settings | changes), spec, 0.0)).double().eval()


def parts(attention: Any, x_BTK: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(
        one(x_BTK).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for one in (attention.q_proj, attention.k_proj, attention.v_proj)
    )


def full(attention: Any, x_BTK: torch.Tensor, is_causal: bool, mixed: Any = lambda weights: weights) -> torch.Tensor:
    """Attention of all queries by its definition; `mixed` changes the weights [B, H, T, T]."""
    q, k, v = parts(attention, x_BTK)
    scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
    if is_causal:
        scores = scores + torch.full_like(scores, float("-inf")).triu(1)
    return attention.out_proj((mixed(scores.softmax(-1)) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("is_decoder", [False, True])
@torch.no_grad()
def test_with_all_queries_it_is_attention(is_decoder: bool) -> None:
    model, x = model_of(), torch.randn(3, WINDOW, WIDTH).double()
    attention = (model.decoder if is_decoder else model.encoder)[0].self_attn
    torch.testing.assert_close(attention(x)[0], full(attention, x, is_decoder))


@pytest.mark.parametrize("is_decoder", [False, True])
@torch.no_grad()
def test_few_queries_attend_and_the_others_have_a_mean_or_a_sum_so_far(is_decoder: bool) -> None:
    model, x = model_of(factor=1), torch.randn(1, WINDOW, WIDTH).double()
    attention = (model.decoder if is_decoder else model.encoder)[0].self_attn
    q, k, v = parts(attention, x)
    whole = q @ k.transpose(-1, -2)
    count = math.ceil(math.log(WINDOW))
    expected = torch.empty_like(v)
    for head in range(HEADS):
        least_even = []
        for query in range(WINDOW):
            sampled = [float(whole[0, head, query, (query + step * WINDOW // count) % WINDOW]) for step in range(count)]
            least_even.append(max(sampled) - sum(sampled) / WINDOW)
        kept = sorted(range(WINDOW), key=least_even.__getitem__, reverse=True)[:count]
        for query in range(WINDOW):
            seen = query + 1 if is_decoder else WINDOW
            rest = v[0, head, :seen].sum(0) if is_decoder else v[0, head].mean(0)
            weights = (whole[0, head, query, :seen] / math.sqrt(WIDTH // HEADS)).softmax(-1)
            expected[0, head, query] = weights @ v[0, head, :seen] if query in kept else rest
    torch.testing.assert_close(attention(x)[0], attention.out_proj(expected.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("is_decoder", [False, True])
@torch.no_grad()
def test_rsa_mixes_weights_by_distance_into_some_heads(is_decoder: bool, dilation: int) -> None:
    model, x = model_of(ScoresSpec(score_heads=3, dilation=dilation)), torch.randn(3, WINDOW, WIDTH).double()
    scores, layer = model.recurrence, 2 if is_decoder else 0
    scores.gate_logits.normal_(0, 0.03)
    attention = (model.decoder if is_decoder else model.encoder)[0].self_attn
    attention.added = model._weights_by_lag(WINDOW)[layer]
    share = (30 * scores.gate_logits[layer]).sigmoid()
    radius, angle = (one[layer].tolist() for one in scores.numbers())

    def mixed(weights: torch.Tensor) -> torch.Tensor:
        weights = weights.clone()
        for number, head in enumerate(scores.heads):
            step = dilation if number % 2 else 1
            for one in range(WINDOW):
                for other in range(WINDOW):
                    lag = one - other if is_decoder else abs(one - other)
                    steps = lag // step
                    turn = math.sin if number == 2 else math.cos  # one regular, one cosine, one sine
                    is_there = lag > 0 and lag % step == 0
                    p = radius[number] ** steps * turn(angle[number] * steps) if is_there else 0.0
                    own = weights[:, head, one, other]
                    weights[:, head, one, other] = (1 - share[number]) * own + share[number] * p
        return weights

    torch.testing.assert_close(attention(x)[0], full(attention, x, is_decoder, mixed))


@torch.no_grad()
def test_rsas_rows_are_those_of_the_queries_that_are_kept() -> None:
    plain, x = model_of(factor=1), torch.randn(2, WINDOW, WIDTH).double()
    model = model_of(ScoresSpec(score_heads=4), factor=1)
    attention, without = model.encoder[0].self_attn, plain.encoder[0].self_attn
    without.load_state_dict(attention.state_dict())
    model.recurrence.gate_logits.fill_(10.0)  # open: P alone
    attention.added = model._weights_by_lag(WINDOW)[0]
    q, k, v = parts(attention, x)
    kept = attention._kept_queries(q, k)
    assert kept.shape[-1] == 3 < WINDOW
    distance = (torch.arange(WINDOW)[:, None] - torch.arange(WINDOW)).abs()
    expected = v.mean(2, keepdim=True).expand_as(v).clone()
    for head in range(HEADS):
        whole_p = model.recurrence.by_lag(torch.arange(WINDOW))[0, head][distance]
        for row in range(2):
            for query in kept[row, head]:
                expected[row, head, query] = whole_p[query] @ v[row, head]
    torch.testing.assert_close(attention(x)[0], attention.out_proj(expected.transpose(1, 2).flatten(2)))


@torch.no_grad()
def test_values_of_the_horizon_are_not_read_and_its_calendar_is() -> None:
    model, rows = model_of(), torch.randn(COLUMNS + CALENDAR, WINDOW + HORIZON).double()
    rows[:COLUMNS, WINDOW:] = 0
    made = model(rows)
    rows[COLUMNS:, WINDOW:] += 1
    assert made.shape == (COLUMNS, HORIZON) and (model(rows) - made).abs().max() > 1e-3
