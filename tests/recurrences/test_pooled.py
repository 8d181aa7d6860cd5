"""The state is what the paper's equation (1) and its feedforward network make of a window."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from recur_tune.models import RecurrentGPT2
from recur_tune.ops.reference import stretches
from recur_tune.recurrences.pooled.module import Pooled
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.conftest import small_config, small_model
from tests.models import hugging_face, some_tokens


def network_input(model: RecurrentGPT2, tokens: torch.Tensor) -> torch.Tensor:
    """What reaches the recurrence's network: the paper's z."""
    inputs: list[torch.Tensor] = []
    hook = model.recurrence.network.register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
    model.read(tokens)
    hook.remove()
    return inputs[0]


def mixture(model: RecurrentGPT2, tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The weighted sum over layers in equation (1), from Hugging Face's hidden states: the embeddings are no layer."""
    layers = hugging_face(model)(tokens, output_hidden_states=True).hidden_states[1:]
    weights = logits.exp() / logits.exp().sum()
    return sum(weight * layer for weight, layer in zip(weights, layers, strict=True))


def model_of(pooling: str, logits: list[float]) -> RecurrentGPT2:
    model = small_model(PooledSpec(pooling=pooling)).double()
    model.recurrence.layer_logits.copy_(torch.tensor(logits))
    return model


@pytest.mark.parametrize("logits", [[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]], ids=["equal", "learned"])
@torch.no_grad()
def test_the_network_sees_equation_1(logits):
    model, tokens = model_of("mean", logits), some_tokens(2, 12)
    expected = mixture(model, tokens, torch.tensor(logits).double()).sum(1) / 12
    torch.testing.assert_close(network_input(model, tokens), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_all_layers_weigh_the_same_at_first():
    assert small_model(PooledSpec()).recurrence.layer_logits.tolist() == [0.0, 0.0, 0.0]


@torch.no_grad()
def test_max_pooling_takes_the_largest_over_positions():
    logits = [1.0, -2.0, 0.5]
    model, tokens = model_of("max", logits), some_tokens(2, 12)
    expected = mixture(model, tokens, torch.tensor(logits).double()).max(1).values
    torch.testing.assert_close(network_input(model, tokens), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_attention_pooling_weighs_positions_by_a_fixed_learned_key():
    logits, key = [1.0, -2.0, 0.5], torch.randn(24).double()
    model, tokens = model_of("attention", logits), some_tokens(2, 12)
    mixed = mixture(model, tokens, torch.tensor(logits).double())
    torch.testing.assert_close(network_input(model, tokens), mixed.mean(1), rtol=1e-9, atol=1e-9)  # before it learns
    model.recurrence.pooling_key.copy_(key)
    for row, pooled in enumerate(network_input(model, tokens)):
        weight = (mixed[row] @ key / 24**0.5).exp()
        torch.testing.assert_close(pooled, weight @ mixed[row] / weight.sum(), rtol=1e-9, atol=1e-9)


def test_the_pooling_key_learns():
    model = small_model(PooledSpec(pooling="attention"))
    model.read(some_tokens(2, 12)).state[0].sum().backward()
    assert model.recurrence.pooling_key.grad.abs().max() > 0
    assert model.recurrence.layer_logits.grad.abs().max() > 0


@torch.no_grad()
def test_the_network_has_the_papers_shape_and_relu_between_layers():
    network = Pooled(small_config().shape).network
    assert [(m.in_features, m.out_features) for m in network if isinstance(m, nn.Linear)] == [
        (24, 200), (200, 200), (200, 200), (200, 24),
    ]  # fmt: skip
    assert [type(m) for m in network[1::2]] == [nn.ReLU] * 3


@torch.no_grad()
def test_depth_0_is_one_linear_map():
    model, tokens = small_model(PooledSpec(depth=0, embeddings=2)), some_tokens(2, 12)
    (linear,) = model.recurrence.network
    expected = network_input(model, tokens) @ linear.weight.T + linear.bias
    torch.testing.assert_close(model.read(tokens).state[0].flatten(1), expected)


@pytest.mark.parametrize(("l_ins", "embeddings", "sites"), [(2, 1, 1), (3, 4, 1), ("all", 1, 3), ("all", 2, 3)])
@torch.no_grad()
def test_the_state_is_the_networks_output_for_every_site_and_embedding(l_ins, embeddings, sites):
    model, tokens = small_model(PooledSpec(l_ins=l_ins, embeddings=embeddings)), some_tokens(2, 12)
    [state] = model.read(tokens).state
    assert state.shape == (2, sites, embeddings, 24)
    torch.testing.assert_close(state.flatten(1), model.recurrence.network(network_input(model, tokens)))


@torch.no_grad()
def test_at_all_layers_every_layer_sees_its_own_embeddings():
    pooled = Pooled(small_config().shape, l_ins="all", embeddings=2)
    state = pooled.make(torch.randn(2, 12, 24))
    window_pass = pooled.open((state,), None, in_parts=False)
    for layer in range(3):
        assert torch.equal(window_pass.inserted(layer), state[:, layer])
    assert not torch.equal(state[:, 0], state[:, 1])


@torch.no_grad()
def test_only_the_chosen_layer_sees_the_state():
    pooled = Pooled(small_config().shape, l_ins=2)
    window_pass = pooled.open((pooled.make(torch.randn(2, 12, 24)),), None, in_parts=False)
    assert [window_pass.inserted(layer) is None for layer in range(3)] == [True, False, True]


@torch.no_grad()
def test_the_network_starts_by_hes_rule_and_not_as_gpt2_does():
    for linear in small_model(PooledSpec()).recurrence.network[::2]:
        assert linear.weight.std().item() == pytest.approx((2 / linear.in_features) ** 0.5, rel=0.05)
        assert linear.bias.abs().max() == 0


@torch.no_grad()
def test_two_texts_leave_clearly_different_states_at_initialisation():
    model = small_model(PooledSpec())
    about_this, about_that = torch.randint(0, 30, (32,)), torch.randint(30, 60, (32,))
    one, other = model.read(torch.stack([about_this, about_that])).state[0]
    assert (one - other).norm() > 0.4 * one.norm()
    assert one.norm() > 1


@pytest.mark.parametrize("pooling", ["mean", "recent"])
@torch.no_grad()
def test_a_skipped_network_adds_to_what_it_is_given(pooling):
    spec = PooledSpec(pooling=pooling, embeddings=2, l_ins="all", skip=True)
    model, tokens = small_model(spec), some_tokens(2, 12)
    [state], given = model.read(tokens).state, network_input(model, tokens)
    given = (given if pooling == "recent" else given[:, None].expand(-1, 2, -1))[:, None].expand(-1, 3, -1, -1)
    assert 0.01 < (state - given).norm() / given.norm() < 0.3  # at first it is little that the network adds
    model.recurrence.network[-1].weight.zero_()
    torch.testing.assert_close(model.read(tokens).state[0], given)


@pytest.mark.parametrize(
    ("positions", "embeddings", "sizes"),
    [
        (12, 4, [1, 2, 4, 5]),
        (12, 1, [12]),
        (3, 4, [1, 2, 0, 0]),
        (300, 8, [1, 2, 4, 8, 16, 32, 64, 173]),
        (1, 2, [1, 0]),
    ],
)
def test_stretches_double_from_the_windows_end(positions, embeddings, sizes):
    found = stretches(positions, embeddings)
    assert [end - begin for begin, end in found] == sizes
    assert found[0][1] == positions and found[-1][0] == 0
    assert all(earlier[1] == later[0] for later, earlier in pairwise(found))


@torch.no_grad()
def test_recent_pooling_makes_each_embedding_from_its_own_stretch():
    model = small_model(PooledSpec(pooling="recent", embeddings=3, l_ins="all")).double()
    recurrence, tokens = model.recurrence, some_tokens(2, 12)
    recurrence.stretch_offsets.copy_(torch.randn(3, 24))
    z = mixture(model, tokens, torch.zeros(3).double())
    [state] = model.read(tokens).state
    for number, stretch in enumerate((slice(11, 12), slice(9, 11), slice(0, 9))):
        made = recurrence.network(z[:, stretch].mean(1) + recurrence.stretch_offsets[number])
        torch.testing.assert_close(state[:, :, number], made.unflatten(-1, (3, 24)), rtol=1e-9, atol=1e-9)
