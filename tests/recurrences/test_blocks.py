"""State vectors are what the Block-Recurrent Transformer's equations make of a window."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.common.shape import shape_of
from recur_tune.config.trial import TrialConfig
from recur_tune.models.pretrained import base_config
from recur_tune.recurrences.blocks.module import Blocks
from recur_tune.recurrences.blocks.spec import BLOCKS, BlocksSpec
from tests.conftest import small_config, small_model
from tests.models import some_tokens
from tests.models.bodies import body, hugging_face

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
GPT2 = shape_of(base_config("gpt2").to_dict())


def weighed(query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
    """One head's attention from one query."""
    weight = [math.exp(float(query @ key) / math.sqrt(len(query))) for key in keys]
    return sum(one / sum(weight) * value for one, value in zip(weight, values, strict=True))


def attention(queries, keys, values, heads: int) -> list[torch.Tensor]:
    """Every query over all keys, head by head."""
    size, taken = len(queries[0]) // heads, []
    for query in queries:
        parts = []
        for begin in range(0, len(query), size):
            part = slice(begin, begin + size)
            parts.append(weighed(query[part], [key[part] for key in keys], [value[part] for value in values]))
        taken.append(torch.cat(parts))
    return taken


def normed(row: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    row = row - row.mean()
    row = row / torch.sqrt(row.square().mean() + 1e-5) * norm.weight
    return row if norm.bias is None else row + norm.bias


def one_window(blocks: Blocks, states, rows, heads: int, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the branch adds to the rows of one batch row, and the next states, by the equations."""
    weight = blocks.state_dict()
    seen = [normed(state, blocks.norm_of_states) + one for state, one in zip(states, blocks.ids, strict=True)]
    tokens = [normed(row, blocks.norm_of_tokens) for row in rows]

    def times(name: str, of: list[torch.Tensor], half: int | None = None) -> list[torch.Tensor]:
        matrix = weight[f"{name}.weight"]
        matrix = matrix if half is None else matrix.chunk(2)[half]
        return [matrix @ one for one in of]

    keys, values = (times("state_keys_values", seen, half) for half in (0, 1))
    taken = attention(times("token_query", tokens), keys, values, heads)
    added = torch.stack(times("token_output", taken))
    among = attention(times("state_queries", seen, 0), keys, values, heads)
    token_keys, token_values = (times("token_keys_values", tokens[:stride], half) for half in (0, 1))
    outside = attention(times("state_queries", seen, 1), token_keys, token_values, heads)
    both = [torch.cat(pair) for pair in zip(among, outside, strict=True)]
    new = [one + blocks.join.bias for one in times("join", both)]
    if blocks.gate_bias is not None:
        share = 1 / (1 + torch.exp(-blocks.gate_bias))
        return added, torch.stack([old * share + z * (1 - share) for old, z in zip(states, new, strict=True)])
    forget, take = (
        [one + blocks.gates.bias.chunk(2)[half] for one in times("gates", both, half)] for half in (0, 1)
    )  # fmt: skip
    following = [
        old / (1 + torch.exp(-(f + 1))) + z / (1 + torch.exp(-(i - 1)))
        for old, z, f, i in zip(states, new, forget, take, strict=True)
    ]
    return added, torch.stack(following)


def of_attention(plain: nn.Module, layer: int) -> nn.Module:
    decoder = plain.base_model
    return decoder.h[layer].attn if hasattr(decoder, "h") else decoder.layers[layer].self_attn


@pytest.mark.parametrize("gate", ["fixed", "lstm"])
@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize(("name", "layer"), [("gpt2", 2), ("llama", 3), ("qwen3", "upper")])
@torch.no_grad()
def test_three_windows_by_the_equations(name: str, layer: Any, overlap: int, gate: str) -> None:
    model = body(name, BlocksSpec(state_vectors=3, block_layer=layer, block_gate=gate))
    plain, at = hugging_face(model), 0 if layer == "upper" else layer - 1
    expected, state = model.recurrence.initial.repeat(2, 1, 1), None
    for tokens in some_tokens(3, 2, 6):
        # Nothing below the layer knows of the states, so that its rows are transformers' own.
        rows = plain(tokens, output_hidden_states=True).hidden_states[at]
        heads = model.config.shape.heads
        windows = [one_window(model.recurrence, expected[row], rows[row], heads, 6 - overlap) for row in (0, 1)]
        added, expected = (torch.stack(parts) for parts in zip(*windows, strict=True))
        hook = of_attention(plain, at).register_forward_hook(lambda _m, _i, out, more=added: (out[0] + more, *out[1:]))
        top = plain.base_model(tokens).last_hidden_state
        hook.remove()
        reading = model.read(tokens, state, overlap=overlap)
        state = reading.state
        torch.testing.assert_close(reading.top_BTK, top, **CLOSE)
        torch.testing.assert_close(state[0], expected, **CLOSE)


@torch.no_grad()
def test_untrained_it_is_the_base() -> None:
    for gate in ("fixed", "lstm"):
        model = small_model(BlocksSpec(state_vectors=5, block_gate=gate))
        tokens, state = some_tokens(2, 12), model.read(some_tokens(2, 12)).state
        without = small_model(None)
        without.load_state_dict(
            {name: one for name, one in model.state_dict().items() if not name.startswith("recurrence.")}
        )
        assert torch.equal(model.read(tokens, state).top_BTK, without.read(tokens).top_BTK)


def test_untrained_it_has_a_gradient() -> None:
    model = small_model(BlocksSpec(state_vectors=5))
    model.read(some_tokens(2, 12)).top_BTK.square().mean().backward()
    assert model.recurrence.token_output.weight.grad.abs().max() > 1e-6


@torch.no_grad()
def test_it_starts_as_its_source_does() -> None:
    shape = shape_of(small_config(n_embd=96).to_dict())
    fixed, lstm = Blocks(shape, state_vectors=50), Blocks(shape, state_vectors=50, block_gate="lstm")
    assert fixed.initial.std().item() == pytest.approx(0.1, rel=0.1)
    assert fixed.ids.std().item() == pytest.approx(1, rel=0.1)
    assert fixed.gate_bias.std().item() == pytest.approx(0.1, rel=0.3)
    assert fixed.state_queries.weight.std().item() == pytest.approx(96**-0.5, rel=0.05)
    assert lstm.gates.weight.std().item() == pytest.approx((0.1 / 192) ** 0.5, rel=0.05)
    states, taken = torch.ones(1, 50, 96), torch.zeros(1, 50, 192)
    assert fixed.gated(states, taken).mean().item() == pytest.approx(0.5, abs=0.02)
    assert lstm.gated(states, taken).mean().item() == pytest.approx(1 / (1 + math.exp(-1)), abs=0.02)


@pytest.mark.parametrize(
    ("layers", "wanted", "found"), [(12, "upper", 9), (3, "upper", 0), (2, "upper", 0), (12, 12, 11), (2, 1, 0)]
)
def test_the_layer_with_the_states(layers: int, wanted: Any, found: int) -> None:
    shape = shape_of(small_config(n_layer=layers).to_dict())
    blocks = Blocks(shape, state_vectors=2, block_layer=wanted)
    window_pass = blocks.open(None, None, in_parts=False)
    row = torch.ones(1, 1, shape.hidden)
    assert [layer for layer in range(layers) if window_pass.branch(layer, row) is not None] == [found]


@pytest.mark.parametrize("gate", ["fixed", "lstm"])
@torch.no_grad()
def test_states_stay_in_single_precision(gate: str) -> None:
    model = small_model(BlocksSpec(state_vectors=5, block_gate=gate))
    with torch.autocast("cpu", torch.bfloat16):
        [state] = model.read(some_tokens(2, 12)).state
    assert state.dtype == torch.float32


@torch.no_grad()
def test_a_gate_near_1_is_exact_in_low_precision() -> None:
    blocks = Blocks(small_config().shape, state_vectors=5, block_gate="lstm")
    blocks.gates.bias.fill_(3)
    with torch.autocast("cpu", torch.bfloat16):
        kept = blocks.gated(torch.ones(1, 5, 24), torch.zeros(1, 5, 48))
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 + math.exp(-4))))


def test_in_closed_form() -> None:
    spec = BlocksSpec(state_vectors=64)
    k, s, t = 768, 64, 300
    config = TrialConfig(recurrence="blocks", window=t)
    # The source has 4K² less a position: its states see the keys and values that the positions have for each other.
    expected = t * (8 * k * k + 8 * s * k) + 12 * s * k * k + 4 * s * s * k
    assert BLOCKS.flops is not None and BLOCKS.flops(spec, GPT2, config.windowing) == expected
    assert BLOCKS.state_floats is not None and BLOCKS.state_floats(spec, GPT2) == s * k


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"block_layer": 13}, "block_layer: 13 is not a layer of gpt2; choose one from 1 to 12, or 'upper'."),
        ({"block_layer": "top"}, "block_layer: 'top' is not "),
        ({"state_vectors": 0}, "state_vectors: 0 is not greater than 0."),
        ({"block_gate": "gru"}, "block_gate: 'gru' is not 'fixed' or 'lstm'."),
    ],
)
def test_bad_input_is_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse(TrialConfig, {"recurrence": "blocks", **fields}).check_base(GPT2)
    assert str(refusal.value).startswith(sentence)
