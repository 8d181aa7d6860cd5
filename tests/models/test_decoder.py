"""The model against Hugging Face's own code and against attention written out one head at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recur_tune.models import Cache, RecurrentGPT2, State
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.conftest import small_model
from tests.models import hugging_face, some_tokens

SHAPES = [{}, {"scale_attn_by_inverse_layer_idx": True}, {"scale_attn_weights": False},
          {"activation_function": "gelu"}, {"activation_function": "relu", "n_inner": 30}]  # fmt: skip
SITES = [(1, 1), (2, 1), (3, 1), (2, 3), ("all", 2)]


def double_model(recurrence: PooledSpec | None, **changes: object) -> RecurrentGPT2:
    """In double precision, for close comparisons; every weight is random, biases and norms too."""
    model = small_model(recurrence, **changes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def some_state(model: RecurrentGPT2, batch_size: int) -> State:
    """A state that some other text left."""
    return tuple(one.detach() for one in model.read(some_tokens(batch_size, 9)).state)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("recurrence", [None, PooledSpec()], ids=["none", "pooled"])
@torch.no_grad()
def test_without_a_state_the_model_is_hugging_faces(recurrence, shape):
    model, tokens = double_model(recurrence, **shape), some_tokens(2, 20)
    theirs = hugging_face(model)(tokens).logits
    torch.testing.assert_close(model(tokens).logits, theirs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.float()(tokens).logits, theirs.float(), rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_model_without_a_recurrence_leaves_no_state():
    assert small_model().read(some_tokens(1, 4)).state is None


@pytest.mark.parametrize(("l_ins", "embeddings"), SITES)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@torch.no_grad()
def test_the_state_is_a_key_and_a_value_but_no_query(l_ins, embeddings, shape):
    model = double_model(PooledSpec(l_ins=l_ins, embeddings=embeddings), **shape)
    tokens, state = some_tokens(2, 20), some_state(model, 2)
    top = model.read(tokens, state).top_BTK
    assert top.shape == (2, 20, 24)
    for row in range(2):
        torch.testing.assert_close(top[row], slow_read(model, tokens[row], state[0][row]), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_300_tokens_are_301_keys_where_a_state_is_inserted():
    model, cache = small_model(PooledSpec(l_ins=2), n_positions=300), Cache()
    reading = model.read(some_tokens(1, 300), some_state(model, 1), cache=cache)
    assert reading.top_BTK.shape[1] == 300
    assert [cache.keys_values[layer][0].shape[2] for layer in range(3)] == [300, 301, 300]
    assert [cache.keys_values[layer][1].shape[2] for layer in range(3)] == [300, 301, 300]


@pytest.mark.parametrize("l_ins", [1, 2, 3])
@torch.no_grad()
def test_the_state_changes_nothing_before_its_layer(l_ins):
    model, tokens = small_model(PooledSpec(l_ins=l_ins)), some_tokens(2, 12)
    one = layer_outputs(model, tokens, some_state(model, 2))
    other = layer_outputs(model, tokens, some_state(model, 2))
    without = layer_outputs(model, tokens, None)
    for layer in range(3):
        before = layer < l_ins - 1
        assert torch.equal(one[layer], other[layer]) == before
        assert torch.equal(one[layer], without[layer]) == before


@pytest.mark.parametrize(("l_ins", "embeddings"), [(2, 1), ("all", 2)])
@torch.no_grad()
def test_a_fresh_row_is_the_plain_model_and_its_neighbour_sees_the_state(l_ins, embeddings):
    model = double_model(PooledSpec(l_ins=l_ins, embeddings=embeddings))
    tokens, state = some_tokens(3, 12), some_state(model, 3)
    mixed = model.read(tokens, state, fresh_B=torch.tensor([True, False, True]))
    without, seeing = model.read(tokens), model.read(tokens, state)
    assert not torch.allclose(without.top_BTK, seeing.top_BTK, atol=1e-3)
    for row, expected in enumerate([without, seeing, without]):
        torch.testing.assert_close(mixed.top_BTK[row], expected.top_BTK[row], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(mixed.state[0][row], expected.state[0][row], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("parts", [[1] * 12, [5] + [1] * 7, [1, 4, 7], [6, 6]], ids=str)
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize(
    "recurrence", [None, PooledSpec(), PooledSpec(l_ins="all", embeddings=2, pooling="max")], ids=["none", "one", "all"]
)
@torch.no_grad()
def test_reading_in_parts_is_reading_the_window_at_once(recurrence, with_state, parts):
    model, tokens = double_model(recurrence), some_tokens(2, 12)
    state = some_state(model, 2) if recurrence and with_state else None
    whole, cache = model.read(tokens, state), Cache()
    readings = [model.read(part, state, cache=cache) for part in tokens.split(parts, dim=1)]
    top = torch.cat([reading.top_BTK for reading in readings], dim=1)
    torch.testing.assert_close(top, whole.top_BTK, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(readings[-1].state, whole.state, rtol=1e-9, atol=1e-9)
    assert cache.length == 12


@pytest.mark.parametrize("with_state", [False, True])
@torch.no_grad()
def test_a_later_token_changes_no_earlier_output(with_state):
    model, tokens = small_model(PooledSpec(l_ins=1)), some_tokens(2, 12)
    state = some_state(model, 2) if with_state else None
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 61
    one, other = (model.read(t, state).top_BTK for t in (tokens, changed))
    torch.testing.assert_close(one[:, :7], other[:, :7])
    assert (one[:, 7:] - other[:, 7:]).abs().amax((0, 2)).gt(1e-4).all()


@torch.no_grad()
def test_every_position_sees_the_state():
    model, tokens = small_model(PooledSpec(l_ins=3)), some_tokens(2, 12)
    difference = model.read(tokens, some_state(model, 2)).top_BTK - model.read(tokens).top_BTK
    assert difference.abs().amax(-1).gt(1e-4).all()


@torch.no_grad()
def test_no_state_is_made_where_no_window_follows():
    model, tokens = small_model(PooledSpec()), some_tokens(2, 6)
    reading = model.read(tokens, leave_state=False)
    assert reading.state is None
    assert torch.equal(reading.top_BTK, model.read(tokens).top_BTK)


def layer_outputs(model: RecurrentGPT2, tokens: torch.Tensor, state: State | None) -> list[torch.Tensor]:
    """Every block's output, taken where its MLP ends."""
    outputs: list[torch.Tensor] = []
    hooks = [
        block.mlp.c_proj.register_forward_hook(lambda _m, _a, out: outputs.append(out)) for block in model.transformer.h
    ]
    model.read(tokens, state)
    for hook in hooks:
        hook.remove()
    return outputs


def slow_read(model: RecurrentGPT2, tokens_T: torch.Tensor, state_SMK: torch.Tensor) -> torch.Tensor:
    """One batch row, with attention written out: in each head a token sees the state, itself and the tokens before."""
    body, sites = model.transformer, model.config.recurrence["l_ins"]
    x = body.wte.weight[tokens_T] + body.wpe.weight[: len(tokens_T)]
    for layer, block in enumerate(body.h):
        seen = state_SMK[layer] if sites == "all" else state_SMK[0] if layer == sites - 1 else x[:0]
        x = x + slow_attention(block, block.ln_1(x), block.ln_1(seen), layer, model.config)
        x = x + block.mlp(block.ln_2(x))
    return body.ln_f(x)


def slow_attention(block: nn.Module, own: torch.Tensor, seen: torch.Tensor, layer: int, config: object) -> torch.Tensor:
    size, weight, bias = config.n_embd // config.n_head, block.attn.c_attn.weight, block.attn.c_attn.bias
    scale = size**-0.5 if config.scale_attn_weights else 1.0
    scale /= layer + 1 if config.scale_attn_by_inverse_layer_idx else 1
    heads = []
    for head in range(config.n_head):
        query, key, value = (
            slice(part * config.n_embd + head * size, part * config.n_embd + (head + 1) * size) for part in range(3)
        )
        rows = []
        for position in range(len(own)):
            visible = torch.cat([seen, own[: position + 1]])
            keys, values = visible @ weight[:, key] + bias[key], visible @ weight[:, value] + bias[value]
            score = keys @ (own[position] @ weight[:, query] + bias[query]) * scale
            rows.append(score.exp() @ values / score.exp().sum())
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ block.attn.c_proj.weight + block.attn.c_proj.bias
