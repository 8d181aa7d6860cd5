"""The fused backward pass gives autograd's gradients, and keeps what it says."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import pytest
import torch
from torch import nn

from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.models import RecurrentGPT2
from recur_tune.models.attention import Extra, attend
from recur_tune.ops import reference as pointwise
from recur_tune.ops.autograd import BlockOps
from recur_tune.ops.fused_backward import FusedBackward, GradAccumulators
from recur_tune.ops.reference import move
from recur_tune.ops.triton import pointwise as kernels
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.conftest import small_model
from tests.models import some_tokens
from tests.models.bodies import body

SHAPES = [{}, {"n_layer": 1}, {"scale_attn_by_inverse_layer_idx": True}, {"activation_function": "relu", "n_inner": 30}]
RECURRENCES = {
    "none": None, "mean": PooledSpec(width=8, depth=1), "max": PooledSpec(width=8, depth=1, pooling="max"),
    "all": PooledSpec(l_ins="all", embeddings=2, width=8, depth=1), "skip": PooledSpec(width=8, depth=1, skip=True),
    "recent": PooledSpec(l_ins="all", pooling="recent", embeddings=4, width=8, depth=1, skip=True),
}  # fmt: skip
TOKENS = [some_tokens(3, 7), some_tokens(3, 7)]
FRESH = torch.tensor([True, False, False])


def two_windows(model: RecurrentGPT2, **options: object) -> list[torch.Tensor]:
    """What a window after another becomes, and the state that it leaves."""
    first = model.read(TOKENS[0], **options)
    second = model.read(TOKENS[1], first.state, FRESH if first.state is not None else None, **options)
    return [first.top_BTK, second.top_BTK, *(second.state or ())]


def gradients(outputs: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    grad_outputs = [torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one.dtype) for one in outputs]
    return list(torch.autograd.grad(outputs, wanted, grad_outputs, allow_unused=True))


def gathered(model: RecurrentGPT2) -> tuple[list[torch.Tensor], dict[nn.Parameter, torch.Tensor]]:
    """The same by the fused backward pass, and the gradient of every parameter that is trained."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    totals = GradAccumulators(trained, model.body)
    step = FusedBackward(totals)
    outputs = two_windows(model, ops=step)
    for total, one in zip(totals.gradients, gradients(outputs, [step.anchor, *trained])[1:], strict=True):
        total += 0 if one is None else one
    return outputs, dict(zip(trained, totals.gradients, strict=True))


@pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_gradients_are_autograds(recurrence, shape):
    if recurrence is not None and shape.get("n_layer") == 1:
        recurrence = recurrence.model_copy(update={"l_ins": 1 if recurrence.l_ins == 2 else recurrence.l_ins})
    model = small_model(recurrence, **shape).double()
    outputs, totals = gathered(model)
    expected = two_windows(model)
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(totals.values(), gradients(expected, list(totals)), strict=True):
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9 * float(1 + theirs.abs().max()))


@pytest.mark.parametrize("frozen", ["wte", "c_fc", "ln_1", "bias", "recurrence"])
def test_what_is_not_trained_gets_no_gradient_and_takes_none_from_the_rest(frozen):
    model = small_model(RECURRENCES["mean"]).double()
    _, all_totals = gathered(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    _, totals = gathered(model)
    assert 0 < len(totals) < len(all_totals)
    for parameter, total in totals.items():
        torch.testing.assert_close(total, all_totals[parameter], rtol=1e-10, atol=1e-12)


def test_under_autocast_products_are_rounded_and_sums_are_not():
    model = small_model(RECURRENCES["all"])
    with torch.autocast("cpu", torch.bfloat16):
        outputs, totals = gathered(model)
        alike = two_windows(model)
    for ours, theirs in zip(outputs, alike, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.03 * float(theirs.abs().max()))
    assert {total.dtype for total in totals.values()} == {torch.float32}
    exact = gradients(two_windows(model), list(totals))

    def distance(found: Iterable[torch.Tensor]) -> torch.Tensor:
        return torch.cat([(one - other).flatten() for one, other in zip(found, exact, strict=True)]).norm()

    assert distance(totals.values()) < 1.2 * distance(gradients(alike, list(totals)))


def test_a_layer_keeps_two_sums_and_what_its_products_made():
    """Per position: the sums before both norms, three vectors for attention and its output, and four before GELU."""
    batch_size, positions, hidden, heads = 2, 16, 24, 2

    def kept(layers: int) -> int:
        model = small_model(n_layer=layers)
        trained = list(model.parameters())
        totals = GradAccumulators(trained, model.body)
        with MemoryTracker() as tracker:
            tracker.hold([*trained, *totals.gradients])
            before = tracker.live
            reading = model.read(some_tokens(batch_size, positions), ops=FusedBackward(totals))
            assert reading.top_BTK.requires_grad
            return tracker.live - before

    moments, normaliser = 2 * 2, heads  # of both norms; of attention's softmax
    a_layer = batch_size * positions * ((2 + 3 + 1 + 4) * hidden + moments + normaliser) * 4
    assert kept(3) - kept(2) == a_layer


@pytest.mark.parametrize(
    ("down", "expected"),
    [
        (2, [[0, 0, 1, 2, 3], [0, 0, 4, 5, 6]]),
        (torch.tensor([0, 2]), [[1, 2, 3, 0, 0], [0, 0, 4, 5, 6]]),
        (torch.tensor([-1, 1]), [[2, 3, 0, 0, 0], [0, 4, 5, 6, 0]]),
        (-1, [[2, 3], [5, 6]]),
        (torch.tensor([-2, 0]), [[3, 0], [4, 5]]),
    ],
)
def test_rows_are_moved_down_and_leave_zeros(down, expected):
    rows = torch.arange(1.0, 7.0).view(2, 3, 1)  # 1 2 3 and 4 5 6
    assert move(rows, down, len(expected[0]))[..., 0].tolist() == expected


@pytest.mark.parametrize("seen_B", [None, torch.tensor([0, 3, 1])], ids=["all", "by batch row"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_gradients_of_inserted_attention_match_finite_differences(name, seen_B):
    model = body(name).double()
    block, shape = model.body.blocks[0], model.config.shape
    columns = 2 * shape.key_value_heads * shape.head_size
    cos_sin = model.body.cos_sin(0, 4, torch.zeros(1, dtype=torch.float64))
    sizes = [(3, 4, shape.heads * shape.head_size + columns), (3, 3, columns), (3, columns)]
    given = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]

    def taken(qkv_BTC: torch.Tensor, rows_BMC: torch.Tensor, places_MC: torch.Tensor) -> torch.Tensor:
        return attend(BlockOps(), block, qkv_BTC, cos_sin, Extra(rows_BMC, seen_B, places_MC))[0]

    assert torch.autograd.gradcheck(taken, given, fast_mode=True)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_gelu_is_differentiated_as_autograd_does_far_from_zero_too(dtype, close):
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e4, 0.0, 1e4])]).to(dtype).requires_grad_()
    total = torch.zeros_like(x)
    active = pointwise.gelu(x)
    [expected] = torch.autograd.grad(active, x, torch.full_like(x, 3.0))
    gradient, again = pointwise.gelu_backward(x.detach()[None], torch.full_like(x, 3.0)[None], total)
    torch.testing.assert_close([gradient[0], again[0]], [expected, active.detach()], rtol=close, atol=3 * close)
    torch.testing.assert_close(total, expected, rtol=close, atol=3 * close)


@pytest.mark.parametrize(
    "name",
    ["add_norm", "add_norm_backward", "stretch_means", "stretch_means_backward", "add_columns", "gelu",
     "gelu_backward", "swiglu", "swiglu_backward", "apply_rotary", "join", "move", "pack", "grad_extra", "grad_places",
     "cross_entropy"],
)  # fmt: skip
def test_a_kernel_takes_what_its_pass_takes(name):
    taken, expected = (list(inspect.signature(getattr(module, name)).parameters) for module in (kernels, pointwise))
    assert taken == expected
