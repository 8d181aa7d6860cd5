"""Every family is transformers' own model, window by window, with a recurrence and without."""

from __future__ import annotations

import pytest
import torch

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.plan import Plan
from recur_tune.common.windowing import NOT_SCORED, Windowing
from recur_tune.models import Cache, WindowedDecoder
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.models import chain_batch, some_tokens
from tests.models.bodies import BODIES, body, hugging_face

ALL_LAYERS = PooledSpec(l_ins="all", embeddings=2, width=8, depth=1)
ONE_LAYER = PooledSpec(l_ins=2, width=8, depth=1, pooling="recent", embeddings=3, skip=True)
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
names = pytest.mark.parametrize("name", BODIES)


def mixed_batch():
    """Documents begin in mid-batch, and one ends early."""
    return chain_batch(Windowing(6, 2), [[18], [9, 5], [5, 5, 6]], windows=4)


def by_hand(model: WindowedDecoder, batch) -> torch.Tensor:
    """The summed loss, every document read alone by autograd."""
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(batch.inputs_WBT.shape[1]):
        state = None
        for window in range(batch.inputs_WBT.shape[0]):
            if batch.fresh_WB[window, row]:
                state = None
            reading = model.read(batch.inputs_WBT[window, row : row + 1], state)
            state = reading.state
            log_p_TV = model.logits(reading.top_BTK[0]).log_softmax(-1)
            target_T = batch.targets_WBT[window, row]
            scored_T = target_T != NOT_SCORED
            loss = loss - log_p_TV[scored_T].gather(1, target_T[scored_T][:, None]).sum()
    return loss


@names
def test_logits_and_gradients_are_transformers_own(name):
    model, tokens = body(name), some_tokens(2, 20)
    theirs = hugging_face(model)
    ours_logits, their_logits = model(tokens).logits, theirs(tokens).logits
    torch.testing.assert_close(ours_logits, their_logits, **CLOSE)
    weight = torch.randn_like(their_logits)
    (ours_logits * weight).sum().backward()
    (their_logits * weight).sum().backward()
    found = dict(theirs.named_parameters())
    for parameter_name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, found[parameter_name].grad, rtol=1e-9, atol=1e-8)


# A square in which every body, every recurrence and every plan meet each other.
@pytest.mark.parametrize(
    ("name", "spec", "kept"),
    [
        (name, spec, (1, 2, 4)[(row + column) % 3])
        for row, name in enumerate(BODIES)
        for column, spec in enumerate((None, ALL_LAYERS, ONE_LAYER))
    ],
    ids=[f"{name}-{spec}" for name in BODIES for spec in ("none", "all layers", "one layer")],
)
def test_a_chains_gradients_are_autograds_under_every_plan(name, spec, kept):
    model, batch = body(name, spec), mixed_batch()
    expected = by_hand(model, batch)
    grad_parameter = torch.autograd.grad(expected, list(model.parameters()))
    loss, gradients, _ = Chain(model, Plan(kept)).differentiate(batch)
    torch.testing.assert_close(loss, expected.detach(), **CLOSE)
    for ours, theirs in zip(gradients, grad_parameter, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9 * float(1 + theirs.abs().max()))


@pytest.mark.parametrize("spec", [ALL_LAYERS, ONE_LAYER], ids=["all layers", "one layer"])
@names
def test_with_a_frozen_body_the_recurrences_gradients_are_the_same(name, spec):
    model, batch = body(name, spec), mixed_batch()
    all_gradients = Chain(model, Plan(2)).differentiate(batch).gradients
    expected = dict(zip((n for n, _ in model.named_parameters()), all_gradients, strict=True))
    model.freeze_body()
    chain = Chain(model, Plan(2))
    gradients = chain.differentiate(batch).gradients
    trained = [n for n, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all(n.startswith("recurrence.") for n in trained)
    for parameter_name, gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(gradient, expected[parameter_name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("parts", [[1] * 12, [5, 1, 6]], ids=str)
@names
@torch.no_grad()
def test_reading_in_parts_is_reading_the_window_at_once(name, parts):
    model, tokens = body(name, ALL_LAYERS), some_tokens(2, 12)
    state = model.read(some_tokens(2, 9)).state
    whole, cache = model.read(tokens, state), Cache()
    readings = [model.read(part, state, cache=cache) for part in tokens.split(parts, dim=1)]
    torch.testing.assert_close(torch.cat([one.top_BTK for one in readings], dim=1), whole.top_BTK, **CLOSE)
    torch.testing.assert_close(readings[-1].state, whole.state, **CLOSE)


@names
@torch.no_grad()
def test_a_fresh_row_is_the_plain_model_and_its_neighbour_sees_the_state(name):
    model, tokens = body(name, ALL_LAYERS), some_tokens(3, 12)
    state = model.read(some_tokens(3, 9)).state
    mixed = model.read(tokens, state, fresh_B=torch.tensor([True, False, True])).top_BTK
    without, seeing = model.read(tokens).top_BTK, model.read(tokens, state).top_BTK
    torch.testing.assert_close(without, hugging_face(model).base_model(tokens).last_hidden_state, **CLOSE)
    assert not torch.allclose(without, seeing, atol=1e-3)
    torch.testing.assert_close(mixed, torch.stack([without[0], seeing[1], without[2]]), **CLOSE)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@torch.no_grad()
def test_an_inserted_key_stands_at_position_0(name):
    """A layer that is given its first token's embedding again makes the same key and value of it."""
    model, tokens = body(name, PooledSpec(l_ins=1)), some_tokens(1, 8)
    state = (model.body.tokens(tokens[:, :1])[:, None],)
    plain, cache = Cache(), Cache()
    model.read(tokens, cache=plain)
    model.read(tokens, state, cache=cache)
    for ours, theirs in zip(cache.keys_values[0], plain.keys_values[0], strict=True):
        torch.testing.assert_close(ours[:, :, 0], theirs[:, :, 0], **CLOSE)
        torch.testing.assert_close(ours[:, :, 1:], theirs, **CLOSE)
