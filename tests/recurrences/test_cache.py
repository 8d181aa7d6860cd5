"""Windows with a cache are Transformer-XL's, or Memorizing Transformers', written out in loops."""

from __future__ import annotations

from itertools import product

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
from tests.models.naive import Naive, look, weights, with_exact_turns

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
GPT2 = shape_of(base_config("gpt2").to_dict())
rotary = pytest.mark.parametrize("name", ["llama", "qwen3"])


def naive_window(
    naive: Naive, model: WindowedDecoder, spec: CacheSpec, tokens_T, kept, stride: int, overflow=None, mix=None
):
    """A window's last layer; `kept` has each layer's rows, a list of pairs [2, D] of each key-value head; it changes.

    In one softmax of a body with learned positions they are kept less what their place adds. An overflow adds to what
    heads took, and gets the rows that leave; `mix` changes it, given all heads before their positions.
    """
    own = getattr(model.recurrence, "exact", model.recurrence)
    placed, length = not naive.rotary and spec.cache_join == "softmax", len(tokens_T)
    first = max(len(rows[0]) for rows in kept) if placed else 0
    x_TK = naive.embed(tokens_T, first)
    for number, layer in enumerate(naive.layers):
        q_THD, k_TGD, v_TGD = layer.qkv(x_TK)
        is_site = spec.cache_layer in ("all", number + 1)
        site = 0 if spec.cache_layer != "all" else number
        rows = kept[number]
        received = torch.zeros(naive.heads, length, len(rows[0]) + length).double()
        heads_THD = torch.zeros(length, naive.heads, naive.head_size).double()
        for g in range(naive.groups):
            keys = [naive.apply_rotary(key, t) for t, key in enumerate(k_TGD[:, g])]
            values, looked = list(v_TGD[:, g]), keys
            if is_site and spec.cache_join == "softmax":
                added = own.offsets[site].view(2, naive.groups, -1)[:, g]
                at_place = own.places[site].view(-1, 2, naive.groups, naive.head_size)[:, :, g] if placed else None
                before = [pair + added + (at_place[at] if placed else 0) for at, pair in enumerate(rows[g])]
                keys = [naive.apply_rotary(key, at - len(before)) for at, (key, _) in enumerate(before)] + keys
                values, looked = [value for _, value in before] + values, keys
            elif is_site:
                scales = own.scales[site].view(2, naive.groups, -1)[:, g]
                found_in = [pair * scales for pair in rows[g]]
                looked = [key for key, _ in found_in] + [scales[0] * key for key in k_TGD[:, g]]
            for head, t in product([head for head in range(naive.heads) if naive.group(head) == g], range(length)):
                query, seen = naive.apply_rotary(q_THD[t, head], t), len(keys) - length + t + 1
                heads_THD[t, head] = look(query, keys[:seen], values[:seen])
                if is_site and spec.cache_join == "gate":
                    query, seen = q_THD[t, head], len(looked) - length + t + 1
                    if rows[g]:
                        gate = 1 / (1 + (-30 * own.gates[site, head]).exp())
                        found = look(query, *zip(*found_in, strict=True))
                        heads_THD[t, head] = (1 - gate) * heads_THD[t, head] + gate * found
                received[head, t, :seen] = weights(query, looked[:seen]) if is_site else 0
        if is_site:
            pairs_TC = torch.cat([k_TGD.flatten(1), v_TGD.flatten(1)], dim=-1)
            pairs_TC = pairs_TC - own.places[site, first : first + length] if placed else pairs_TC
            pairs = pairs_TC.view(length, 2, naive.groups, -1)
            for g in range(naive.groups):
                candidates = rows[g] + list(pairs[:stride, :, g])
                of_group = [received[head] for head in range(naive.heads) if naive.group(head) == g]
                stored = [*rows[g], *(rounded(pair, spec.cache_bits) for pair in candidates[len(rows[g]) :])]
                scores = naive_scores(spec, stored, of_group, list(received), len(rows[g]))
                stays = staying(spec, scores)
                kept[number][g] = [stored[at] for at in stays]
                if overflow is not None:
                    overflow.write(number, g, [one for at, one in enumerate(candidates) if at not in stays])
        if overflow is not None:
            heads_THD += overflow.read(number, q_THD)
        if mix is not None:
            by_head = [one.transpose(0, 1) for one in (q_THD, k_TGD, v_TGD, heads_THD)]
            heads_THD = mix(number, *by_head).transpose(0, 1)
        x_TK = x_TK + layer.out(heads_THD.flatten(1))
        x_TK = x_TK + layer.mlp(x_TK)
    return naive.final_norm(x_TK)


def rounded(pair, bits: int):
    """A key and a value [2, D] as a row of so many bits has them: each number is one of 2^bits, evenly spaced."""
    if bits == 16:
        return pair
    short = lambda number: float(torch.tensor(number).bfloat16())  # noqa: E731
    found = []
    for vector in pair.tolist():
        low = short(min(vector))
        step = short((max(vector) - low) / (2**bits - 1))
        codes = [min(max(round((one - low) / step), 0), 2**bits - 1) for one in vector]
        found.append([low + code * step for code in codes])
    return torch.tensor(found).to(pair.dtype)


def naive_scores(spec: CacheSpec, candidates: list, of_group: list, of_all: list, rows: int) -> list[float]:
    """Of each candidate of a key-value head, from attention [T, rows + T] of its query heads, and of all."""
    if spec.cache_keep == "recent":
        return list(range(len(candidates)))
    if spec.cache_keep == "keydiff":
        mean = sum(key / key.norm() for key, _ in candidates)
        return [float(-(key @ mean) / key.norm() / mean.norm()) for key, _ in candidates]
    if spec.cache_keep == "tova":
        return [float(sum(one[-1, at] for one in of_all)) for at in range(len(candidates))]
    queries = len(of_group[0])
    return [
        float(sum(one[:, at].sum() for one in of_group)) / (queries - max(at - rows, 0))
        for at in range(len(candidates))
    ]


def staying(spec: CacheSpec, scores: list[float]) -> list[int]:
    """A document's first rows, the last half of all, and of those between the ones with the best scores."""
    many, sinks = len(scores), min(spec.cache_sinks, spec.cache_rows)
    if many <= spec.cache_rows:
        return list(range(many))
    last = min(spec.cache_rows // 2, spec.cache_rows - sinks)
    always = {*range(sinks), *range(many - last, many)}
    others = sorted(set(range(many)) - always, key=lambda at: scores[at])
    return sorted(always.union(others[len(others) - (spec.cache_rows - len(always)) :]))


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize(
    "spec",
    [
        CacheSpec(cache_rows=7, cache_join="softmax", cache_sinks=2),
        CacheSpec(cache_rows=4, cache_layer=2, cache_join="softmax", cache_sinks=4),
        CacheSpec(cache_rows=7, cache_sinks=1),
        CacheSpec(cache_rows=5, cache_layer=3, cache_sinks=0),
        CacheSpec(cache_rows=8, cache_keep="keydiff", cache_sinks=1),
        CacheSpec(cache_rows=7, cache_keep="keydiff", cache_join="gate", cache_sinks=0),
        CacheSpec(cache_rows=8, cache_keep="tova", cache_sinks=0),
        CacheSpec(cache_rows=7, cache_keep="tova", cache_join="gate", cache_layer=2, cache_sinks=1),
        CacheSpec(cache_rows=7, cache_keep="h2o", cache_sinks=0),
        CacheSpec(cache_rows=8, cache_keep="h2o", cache_join="gate", cache_sinks=1),
        CacheSpec(cache_rows=7, cache_bits=4, cache_sinks=2),
        CacheSpec(cache_rows=7, cache_bits=8, cache_join="gate", cache_keep="keydiff", cache_sinks=1),
        CacheSpec(cache_rows=8, cache_bits=4, cache_keep="h2o", cache_sinks=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
@torch.no_grad()
def test_windows_are_those_that_loops_make(name, spec, overlap):
    model, windowing = with_exact_turns(body(name, spec)), Windowing(5, overlap)
    text = torch.randperm(61)[: windowing.span(4)]  # keys of equal tokens would be equal
    naive, state = Naive(model), None
    kept = [[[] for _ in range(naive.groups)] for _ in naive.layers]
    for window in range(4):
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
def test_of_rows_with_equal_scores_the_newest_stay():
    # In the first layer equal tokens have equal keys: only the rule on positions can choose among them.
    model = body("qwen3", CacheSpec(cache_rows=6, cache_layer=1, cache_keep="keydiff", cache_sinks=1))
    text = torch.full((1, 9), 5)
    text[:, 3] = 7  # differs from the others, so it stays, behind the first
    row_MC = model.read(text).state[0][0, 0]
    assert [torch.equal(row, row_MC[0]) for row in row_MC] == [True, False, True, True, True, True]


@torch.no_grad()
def test_rows_that_were_never_filled_are_not_seen():
    for join, keep in product(("softmax", "gate"), ("recent", "keydiff", "tova", "h2o")):
        spec = CacheSpec(cache_rows=9, cache_join=join, cache_keep=keep, cache_sinks=0)
        model, tokens = body("llama", spec), some_tokens(2, 6)
        rows, filled = model.read(tokens).state
        assert filled.tolist() == [6, 6]
        other = rows.clone()
        other[:, :, :3] = 1e6
        one, another = (model.read(tokens, (state, filled)) for state in (rows, other))
        torch.testing.assert_close(one.top_BTK, another.top_BTK, **CLOSE)
        torch.testing.assert_close(one.state, another.state, **CLOSE)


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
    recent = CacheSpec(cache_rows=100, cache_layer=1)
    chosen = {"keydiff": 100 + 270, "tova": 100 + 300, "h2o": 300 * 100 + 300 * 301 // 2}
    for keep, pairs in chosen.items():
        spec, windowing = recent.model_copy(update={"cache_keep": keep}), Windowing(300, 30)
        assert CACHE.flops(spec, GPT2, windowing) - CACHE.flops(recent, GPT2, windowing) == 2 * 768 * pairs
        made = 300 * (100 + 300) if keep == "h2o" else pairs
        assert CACHE.work(spec, GPT2, windowing) == CACHE.work(recent, GPT2, windowing)._replace(made=2 * 768 * made)
        assert CACHE.state_floats(spec, GPT2) == CACHE.state_floats(recent, GPT2)


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
