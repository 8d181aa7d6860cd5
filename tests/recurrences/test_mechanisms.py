"""What holds for every mechanism on every kind of body: exact gradients, parts, overlap, generation, costs, files."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from recur_tune.bptt.chain import Chain
from recur_tune.bptt.optimizer import make_optimizer
from recur_tune.bptt.plan import Plan
from recur_tune.bptt.step import train_step
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import counted
from recur_tune.cost.flops import flops_per_token, training_flops_per_token
from recur_tune.cost.inference_memory import closed_state_floats
from recur_tune.models import Cache, WindowedDecoder
from recur_tune.models.generation import generate
from recur_tune.recurrences.registry import MECHANISMS, mechanism_of, settings_of
from tests.models import chain_batch, some_tokens
from tests.models.bodies import body, hugging_face
from tests.models.mechanisms import SPECS
from tests.models.test_bodies import by_hand

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
WINDOWING = Windowing(6, 2)
NAMES = ("gpt2", "qwen3")  # the second has all that the Llama family has
specs = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
bodies = pytest.mark.parametrize("name", NAMES)
either_body = pytest.mark.parametrize(
    ("name", "spec"), [(NAMES[at % 2], spec) for at, spec in enumerate(SPECS.values())], ids=SPECS
)


def pairwise(what: str, *ways: object) -> pytest.MarkDecorator:
    """Every form with both bodies and in both ways: which way goes with which body alternates among the forms."""
    cases = [
        pytest.param(name, spec, ways[(at + place) % 2], id=f"{name}-{form}-{ways[(at + place) % 2]}")
        for at, (form, spec) in enumerate(SPECS.items())
        for place, name in enumerate(NAMES)
    ]
    return pytest.mark.parametrize(("name", "spec", what), cases)


def made(name: str, spec, windowing: Windowing = WINDOWING) -> WindowedDecoder:
    """A body and a recurrence, all weights random, trained to read in such windows."""
    model = body(name, spec)
    model.config.window, model.config.overlap = windowing.size, windowing.overlap
    return model


def mixed_batch():
    """Documents begin in mid-batch, and one ends early."""
    return chain_batch(WINDOWING, [[18], [9, 5], [5, 5, 6]], windows=4)


def differentiated(model: WindowedDecoder, plan: Plan, uniform: bool = False):
    chain = Chain(model, plan)
    chain.uniform = uniform
    return chain.differentiate(mixed_batch())[:2]


def test_every_mechanism_is_tested_here():
    assert {settings_of(spec)["kind"] for spec in SPECS.values()} == MECHANISMS.keys()


# Windows kept, and whether they run uniformly, as for a CUDA graph, or as a CPU runs them.
@pairwise("plans", ((1, False), (2, True)), ((1, True), (4, False)))
def test_a_chains_gradients_are_autograds_under_every_plan(name, spec, plans):
    model = made(name, spec)
    expected = by_hand(model, mixed_batch())
    grad_parameter = torch.autograd.grad(expected, list(model.parameters()), materialize_grads=True)
    for kept, uniform in plans:
        loss, gradients = differentiated(model, Plan(kept), uniform)
        torch.testing.assert_close(loss, expected.detach(), **CLOSE)
        for ours, theirs in zip(gradients, grad_parameter, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9 * float(1 + theirs.abs().max()))


class HostCopies(TorchDispatchMode):
    """Refuses tensors that lie on the host or were made there, as a CUDA graph's capture does: all that an operation is
    given is known, or is what another operation made."""

    def __init__(self, *known):
        super().__init__()
        self.known = list(known)  # held, so that no other storage takes a place
        self.storages = set(map(self.storage, known))

    @staticmethod
    def storage(tensor):
        return tensor.untyped_storage()._cdata

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        given_here = [one for one in tree_leaves((given, named)) if isinstance(one, torch.Tensor) and one.ndim]
        assert self.storages.issuperset(map(self.storage, given_here)), f"{operation} takes a tensor from the host"
        made_here = operation(*given, **(named or {}))
        for one in tree_leaves(made_here):
            if isinstance(one, torch.Tensor) and one.is_meta:
                self.known.append(one)
                self.storages.add(self.storage(one))
        return made_here


@either_body
def test_a_step_copies_nothing_from_the_host(name, spec, monkeypatch):
    model, batch = made(name, spec).to("meta"), chain_batch(WINDOWING, [[5, 5]], windows=2).to("meta")
    monkeypatch.setattr(torch, "autocast", lambda *given, **named: nullcontext())  # which the meta device does not have
    chain = Chain(model, Plan(2))
    chain.uniform = True  # as a CUDA graph needs it
    given = [one for one in vars(batch).values() if isinstance(one, torch.Tensor)]
    with HostCopies(*model.parameters(), *model.buffers(), *given):
        chain.differentiate(batch)


@either_body
def test_every_weight_of_a_recurrence_learns_and_alike_with_a_frozen_body(name, spec):
    model = made(name, spec)
    _, all_gradients = differentiated(model, Plan(2))
    expected = dict(zip((n for n, _ in model.named_parameters()), all_gradients, strict=True))
    own = {n: gradient for n, gradient in expected.items() if n.startswith("recurrence.")}
    assert not [n for n, gradient in own.items() if not gradient.abs().sum()]
    model.freeze_body()
    _, gradients = differentiated(model, Plan(2))
    trained = [n for n, parameter in model.named_parameters() if parameter.requires_grad]
    for parameter_name, gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(gradient, expected[parameter_name], rtol=1e-9, atol=1e-9)


@pairwise("reading", (0, [1] * 12), (3, [5, 1, 6]))
@torch.no_grad()
def test_reading_in_parts_is_reading_the_window_at_once(name, spec, reading):
    overlap, parts = reading
    model, tokens = made(name, spec, Windowing(12, overlap)), some_tokens(2, 12)
    state = model.read(some_tokens(2, 12), model.read(some_tokens(2, 12)).state).state
    whole, cache = model.read(tokens, state), Cache()
    readings = [model.read(part, state, cache=cache) for part in tokens.split(parts, dim=1)]
    torch.testing.assert_close(torch.cat([one.top_BTK for one in readings], dim=1), whole.top_BTK, **CLOSE)
    torch.testing.assert_close(readings[-1].state, whole.state, **CLOSE)


@specs
@bodies
@torch.no_grad()
def test_in_parts_too_a_fresh_row_sees_no_state(name, spec):
    model, tokens, fresh = made(name, spec), some_tokens(2, 6), torch.tensor([True, False])
    state = model.read(some_tokens(2, 6)).state
    whole, cache = model.read(tokens, state, fresh), Cache()
    readings = [model.read(part, state, fresh, cache) for part in tokens.split([1, 3, 2], dim=1)]
    torch.testing.assert_close(torch.cat([one.top_BTK for one in readings], dim=1), whole.top_BTK, **CLOSE)


@specs
@bodies
@torch.no_grad()
def test_a_fresh_row_knows_nothing_of_the_document_before(name, spec):
    model, tokens = made(name, spec), some_tokens(3, 6)
    state = model.read(some_tokens(3, 6), model.read(some_tokens(3, 6)).state).state
    mixed = model.read(tokens, state, fresh_B=torch.tensor([True, False, True]))
    without, seeing = model.read(tokens), model.read(tokens, state)
    for row, expected in enumerate([without, seeing, without]):
        torch.testing.assert_close(mixed.top_BTK[row], expected.top_BTK[row], **CLOSE)
        next_of = [
            model.read(tokens[row : row + 1], tuple(one[row : row + 1] for one in reading.state)).top_BTK
            for reading in (mixed, expected)
        ]
        torch.testing.assert_close(*next_of, **CLOSE)
    assert not torch.allclose(without.top_BTK, seeing.top_BTK, atol=1e-4)
    if not mechanism_of(spec).from_the_start:
        unmodified = hugging_face(model).base_model(tokens).last_hidden_state
        torch.testing.assert_close(without.top_BTK, unmodified, **CLOSE)


@specs
@bodies
@torch.no_grad()
def test_an_empty_state_is_that_of_a_documents_first_window(name, spec):
    model, tokens = made(name, spec), some_tokens(2, 6)
    empty = model.recurrence.double().empty(2)
    seen = model.read(tokens, empty, fresh_B=torch.tensor([True, True]))
    torch.testing.assert_close(seen.top_BTK, model.read(tokens).top_BTK, **CLOSE)
    left = model.read(tokens, empty).state
    assert [one.shape for one in left] == [one.shape for one in empty]
    assert [one.dtype for one in left] == [one.dtype for one in empty]
    assert all(one.is_floating_point() or one.dtype == torch.uint8 for one in left)


@specs
@bodies
@torch.no_grad()
def test_generated_text_has_the_probability_that_reading_gives_it(name, spec):
    model, windowing = made(name, spec, Windowing(6, 2)), Windowing(6, 2)
    prompt = some_tokens(1, 5)[0].tolist()
    stream = generate(model, prompt, windowing, generator=torch.Generator().manual_seed(0))
    sampled = [next(stream) for _ in range(12)]
    text = torch.tensor([[*prompt, *(token for token, _ in sampled)]])
    expected, state = [], None
    for begin, end, first in ((0, 6, 0), (4, 10, 2), (8, 14, 2), (12, 16, 2)):
        reading = model.read(text[:, begin:end], state, overlap=2)
        log_p = model.logits(reading.top_BTK[0, first:]).log_softmax(-1)
        expected += [log_p[at, text[0, begin + first + at + 1]] for at in range(len(log_p))]
        state = reading.state
    found = torch.tensor([log_p for _, log_p in sampled], dtype=torch.float64)
    torch.testing.assert_close(found, torch.stack(expected[4:]), rtol=1e-5, atol=1e-5)  # told as single precision


@specs
@torch.no_grad()
def test_reordered_rows_take_their_state_along(spec):
    model, tokens, index_B = made("llama", spec), some_tokens(3, 4), torch.tensor([2, 0, 0])
    state = model.read(some_tokens(3, 6)).state
    moved, again = Cache(), Cache()
    for part in tokens.split([3, 1], dim=1):
        model.read(part, state, cache=moved)
    moved.reorder(index_B)
    model.read(tokens[index_B], tuple(one[index_B] for one in state), cache=again)
    torch.testing.assert_close(model.leave(moved, 0), model.leave(again, 0), **CLOSE)
    more = some_tokens(3, 2)
    one, other = (model.read(more, cache=cache) for cache in (moved, again))
    torch.testing.assert_close(one.top_BTK, other.top_BTK, **CLOSE)
    torch.testing.assert_close(one.state, other.state, **CLOSE)


@specs
def test_closed_forms_are_what_torch_counts(spec):
    model, mechanism = made("mistral", spec), mechanism_of(spec)
    config = TrialConfig(recurrence=mechanism.name, window=16, overlap=4, bptt_windows=4, **spec.model_dump())
    found, shape = counted(config, model.config), model.config.shape
    assert closed_state_floats(config, shape) == found.state_floats
    assert mechanism.work(spec, shape, config.windowing) == pytest.approx(found.work)
    plain = flops_per_token(config.model_copy(update={"recurrence": "none"}), shape)
    assert flops_per_token(config, shape) > plain


@specs
@pytest.mark.parametrize(("name", "kept"), [("gpt2", 1), ("llama", 3)])
def test_training_flops_are_what_torch_counts(name, spec, kept):
    model = made(name, spec, Windowing(6)).float()
    batch = chain_batch(Windowing(6), [[18], [18]], windows=3)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        Chain(model, Plan(kept)).differentiate(batch)
    config = TrialConfig(recurrence=mechanism_of(spec).name, window=6, bptt_windows=3, batch=2, **spec.model_dump())
    estimated = training_flops_per_token(config, model.config.shape, Plan(kept))
    assert estimated == pytest.approx(counter.get_total_flops() / batch.scored, rel=1e-9)


@pytest.mark.slow
@specs
def test_a_step_in_low_precision_learns(spec):
    """Every type that autocast makes of a state is one that the next window takes."""
    model = made("qwen3", spec).float().train()
    chain, batch = Chain(model, Plan(1)), mixed_batch()
    optimizer = make_optimizer(model, 1e-3, 0.1)
    losses = [float(train_step(chain, optimizer, batch, 1.0, "bfloat16")[0]) for _ in range(2)]
    assert losses[-1] < losses[0]


@specs
@torch.no_grad()
def test_a_saved_model_is_the_same_model(spec, tmp_path: Path):
    model = made("llama", spec)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    tokens = some_tokens(1, 17)
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits, **CLOSE)
    assert json.loads((tmp_path / "config.json").read_text())["recurrence"]["kind"] == mechanism_of(spec).name


@specs
def test_stopping_gradients_is_said_alike_by_description_and_module(spec):
    mechanism = mechanism_of(spec)
    assert mechanism.build(spec, made("llama", None).config.shape).stops_gradients == mechanism.stops_gradients
