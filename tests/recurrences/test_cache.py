"""Windows with a cache are Transformer-XL's, or Memorizing Transformers', written out in loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from recur_tune.bptt.plan import Plan
from recur_tune.common.errors import UserError
from recur_tune.common.known_shapes import KNOWN_SHAPES
from recur_tune.common.shape import shape_of
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.flops import recomputed_windows
from recur_tune.models import WindowedDecoder
from recur_tune.models.pretrained import base_config
from recur_tune.recurrences.cache.spec import CACHE, CacheSpec
from recur_tune.recurrences.registry import Work
from tests.models import some_tokens
from tests.models.bodies import body, hugging_face
from tests.models.naive import Naive, look, with_exact_turns

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
GPT2 = shape_of(base_config("gpt2").to_dict())
rotary = pytest.mark.parametrize("name", ["llama", "qwen3"])


def naive_window(naive: Naive, model: WindowedDecoder, spec: CacheSpec, tokens_T, kept, stride: int):
    """A window's last layer; `kept` has each layer's earlier keys and values, one pair [G, D] a position, and grows.

    In one softmax of a body with learned positions they are kept less what their place adds.
    """
    own, placed = model.recurrence, not naive.rotary and spec.cache_join == "softmax"
    first = min(len(kept[0]), spec.cache_rows) if placed else 0
    x_TK = naive.embed(tokens_T, first)
    for number, layer in enumerate(naive.layers):
        q_THD, k_TGD, v_TGD = layer.qkv(x_TK)
        is_site = spec.cache_layer in ("all", number + 1)
        site = 0 if spec.cache_layer != "all" else number
        rows = of_all(kept[number], spec) if is_site else []
        columns = naive.groups * naive.head_size
        rotated = [[naive.apply_rotary(key, s) for key in k_TGD[s]] for s in range(len(tokens_T))]
        before = []
        if spec.cache_join == "softmax":
            for place, (k_GD, v_GD) in enumerate(rows):
                added_C = own.offsets[site] + (own.places[site, place] if placed else 0)
                by_key, by_value = added_C.view(2, naive.groups, naive.head_size)
                before.append(([naive.apply_rotary(key, place - len(rows)) for key in k_GD + by_key], v_GD + by_value))
        heads_TC = torch.zeros(len(tokens_T), naive.heads * naive.head_size).double()
        for t in range(len(tokens_T)):
            for head in range(naive.heads):
                g, query = naive.group(head), naive.apply_rotary(q_THD[t, head], t)
                keys = [rotated[s][g] for s in range(t + 1)] + [k[g] for k, _ in before]
                values = [v_TGD[s, g] for s in range(t + 1)] + [v[g] for _, v in before]
                taken = look(query, keys, values)
                if spec.cache_join == "gate" and rows:
                    scale_k, scale_v = own.scales[site, :columns], own.scales[site, columns:]
                    scale_k, scale_v = (one.view(naive.groups, -1)[g] for one in (scale_k, scale_v))
                    found = look(q_THD[t, head], [k[g] * scale_k for k, _ in rows], [v[g] * scale_v for _, v in rows])
                    gate = 1 / (1 + (-30 * own.gates[site, head]).exp())
                    taken = (1 - gate) * taken + gate * found
                heads_TC[t, head * naive.head_size : (head + 1) * naive.head_size] = taken
        for t in range(min(stride, len(tokens_T))):
            row_C = torch.cat([k_TGD[t].flatten(), v_TGD[t].flatten()])
            row_C = row_C - own.places[site, first + t] if placed and is_site else row_C
            kept[number].append(row_C.view(2, naive.groups, naive.head_size))
        x_TK = x_TK + layer.out(heads_TC)
        x_TK = x_TK + layer.mlp(x_TK)
    return naive.final_norm(x_TK)


def of_all(kept: list, spec: CacheSpec) -> list:
    """A document's first rows and the last of all."""
    if len(kept) <= spec.cache_rows:
        return kept
    return kept[: spec.cache_sinks] + kept[len(kept) - (spec.cache_rows - spec.cache_sinks) :]


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize(
    "spec",
    [
        CacheSpec(cache_rows=7, cache_join="softmax", cache_sinks=2),
        CacheSpec(cache_rows=4, cache_layer=2, cache_join="softmax", cache_sinks=4),
        CacheSpec(cache_rows=7, cache_sinks=1),
        CacheSpec(cache_rows=5, cache_layer=3, cache_sinks=0),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
@torch.no_grad()
def test_three_windows_are_those_that_loops_make(name, spec, overlap):
    model, windowing = with_exact_turns(body(name, spec)), Windowing(5, overlap)
    text, naive, kept = some_tokens(windowing.span(3)), Naive(model), [[] for _ in range(3)]
    state = None
    for window in range(3):
        tokens = text[window * windowing.stride :][: windowing.size]
        reading = model.read(tokens[None], state, overlap=overlap)
        expected = naive_window(naive, model, spec, tokens, kept, windowing.stride)
        torch.testing.assert_close(reading.top_BTK[0], expected, **CLOSE)
        state = reading.state
        assert state[1].tolist() == [min(spec.cache_rows, (window + 1) * windowing.stride)]


@pytest.mark.parametrize("overlap", [0, 2])
@rotary
@torch.no_grad()
def test_rotary_cache_of_a_whole_text_is_one_long_window(name, overlap):
    spec, windowing = CacheSpec(cache_rows=20, cache_join="softmax"), Windowing(6, overlap)
    model = with_exact_turns(body(name, spec))
    model.recurrence.offsets.zero_()
    text = some_tokens(2, windowing.span(3))
    whole = with_exact_turns(hugging_face(model)).base_model(text).last_hidden_state
    state = None
    for begin in range(0, 3 * windowing.stride, windowing.stride):
        reading = model.read(text[:, begin : begin + 6], state, overlap=overlap)
        torch.testing.assert_close(reading.top_BTK, whole[:, begin : begin + 6], **CLOSE)
        state = reading.state


@torch.no_grad()
def test_a_place_is_the_mean_of_keys_and_values_there():
    model, texts = body("gpt2", CacheSpec(cache_layer=1)), some_tokens(20, 9)
    model.calibrate(lambda: texts)
    naive = Naive(model)
    rows = [torch.cat(naive.layers[0].qkv(naive.embed(text, 0))[1:], dim=-1) for text in texts]
    expected = torch.stack(rows).mean(0).unflatten(-1, (2, -1)).transpose(1, 2).flatten(1)
    torch.testing.assert_close(model.recurrence.places[0, :9], expected, **CLOSE)
    assert (model.recurrence.places[0, 9:] == model.recurrence.places[0, 8]).all()  # none was so long


@torch.no_grad()
def test_learned_cache_of_equal_tokens_is_one_long_window():
    # There keys and values depend on the place alone, so that a mean is what each place adds, to all digits.
    model, text = body("gpt2", CacheSpec(cache_rows=20)), torch.zeros(2, 18, dtype=torch.long)
    model.calibrate(lambda: text)
    model.recurrence.offsets.zero_()
    whole = hugging_face(model).base_model(text).last_hidden_state
    state = None
    for begin in range(0, 18, 6):
        reading = model.read(text[:, begin : begin + 6], state)
        torch.testing.assert_close(reading.top_BTK, whole[:, begin : begin + 6], **CLOSE)
        state = reading.state


@torch.no_grad()
def test_rows_that_were_never_filled_are_not_seen():
    for join in ("softmax", "gate"):
        model, tokens = body("llama", CacheSpec(cache_rows=9, cache_join=join)), some_tokens(2, 6)
        rows, filled = model.read(tokens).state
        assert filled.tolist() == [6, 6]
        other = rows.clone()
        other[:, :, :3] = 1e6
        one, another = (model.read(tokens, (state, filled)).top_BTK for state in (rows, other))
        torch.testing.assert_close(one, another, **CLOSE)


@pytest.mark.parametrize("join", ["softmax", "gate"])
def test_no_gradient_goes_to_the_window_before(join):
    model, tokens = body("llama", CacheSpec(cache_rows=4, cache_join=join)), some_tokens(1, 6)
    state = model.read(tokens).state
    assert not any(one.requires_grad for one in state)
    state[0].requires_grad_()
    model.read(tokens, state).top_BTK.sum().backward()
    assert state[0].grad is None


@torch.no_grad()
def test_a_cache_starts_by_changing_little_or_as_a_longer_window():
    softmax, gate = (body("gpt2", CacheSpec(cache_join=join)).recurrence for join in ("softmax", "gate"))
    for recurrence in (softmax, gate):
        recurrence.reset(recurrence)
    assert not softmax.offsets.any()
    assert (gate.scales == 1).all() and (30 * gate.gates).sigmoid().unique().item() == pytest.approx(0.018, abs=1e-4)
    model, text = body("gpt2", CacheSpec(cache_rows=16, cache_join="gate")), some_tokens(8, 33)
    model.recurrence.reset(model.recurrence)
    state = model.read(text[:, :16]).state
    losses = [
        F.cross_entropy(model.logits(model.read(text[:, 16:32], one).top_BTK).flatten(0, 1), text[:, 17:].flatten())
        for one in (None, state)
    ]
    assert losses[0] != losses[1] and losses[1].item() == pytest.approx(losses[0].item(), rel=0.01)


@torch.no_grad()
def test_in_low_precision_rows_are_kept_as_they_were_read():
    model = body("gpt2", CacheSpec(cache_rows=8)).float()
    with torch.autocast("cpu", torch.bfloat16):
        rows, filled = model.read(some_tokens(2, 6), model.recurrence.empty(2), torch.tensor([True, False])).state
    assert (rows.dtype, filled.dtype) == (torch.bfloat16, torch.float32)


def test_costs_in_closed_form():
    windowing = Windowing(300)
    assert recomputed_windows(TrialConfig(recurrence="cache"), Plan(1)) == 0
    assert CACHE.flops(CacheSpec(cache_rows=300), GPT2, windowing) / 300 == 4 * 768 * 300 * 12
    work = CACHE.work(CacheSpec(cache_rows=100, cache_layer=1, cache_join="softmax"), GPT2, windowing)
    assert work == Work(made=0, used=(400**2 - 300**2) * 4 * 768)
    assert CACHE.state_floats(CacheSpec(cache_rows=300), GPT2) == 2 * 12 * 300 * 768 + 1


def test_what_a_base_cannot_do_is_refused_in_a_sentence():
    with pytest.raises(UserError) as refusal:
        TrialConfig(recurrence="cache", cache_layer=13).check_base(GPT2)
    assert str(refusal.value) == "cache_layer: 13 is not a layer of gpt2; choose one from 1 to 12, or 'all'."
    llama = shape_of(KNOWN_SHAPES["HuggingFaceTB/SmolLM2-135M"])
    trial = {"recurrence": "cache", "base": "smol", "window": 8000}
    with pytest.raises(UserError) as refusal:
        TrialConfig(**trial, cache_rows=193).check_base(llama)
    assert str(refusal.value) == (
        "window: 8000 tokens and the 193 rows of 'cache' beside them need 8193 positions, but smol has 8192; choose "
        "fewer of either."
    )
    TrialConfig(**trial, cache_rows=192).check_base(llama)
    TrialConfig(**trial | {"cache_rows": 193, "cache_join": "gate"}).check_base(llama)  # without positions
    TrialConfig(recurrence="cache", window=1024, cache_rows=999, cache_join="gate").check_base(GPT2)
    with pytest.raises(UserError, match="need 1025 positions, but gpt2 has 1024"):
        TrialConfig(recurrence="cache", window=1000, cache_rows=25).check_base(GPT2)
