"""Scores by their definition, over a whole text position by position, inside transformers' own models."""

from __future__ import annotations

from math import cos, pi, sin

import pytest
import torch

from recur_tune.common.errors import UserError
from recur_tune.common.parsing import parse
from recur_tune.config.trial import TrialConfig
from recur_tune.recurrences.scores.module import Scores
from recur_tune.recurrences.scores.spec import SCORES, ScoresSpec
from tests.models import some_tokens
from tests.models.bodies import body
from tests.models.heads_by_hand import ByHand
from tests.models.mechanisms import start_cost

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
# Heads that have scores, and their kinds, of 4; every second one is dilated.
KINDS = {
    1: {0: "regular"},
    2: {0: "regular", 2: "cosine"},
    3: {0: "regular", 1: "cosine", 2: "sine"},
    4: {0: "regular", 1: "regular", 2: "cosine", 3: "sine"},
}


def score(recurrence: Scores, layer: int, number: int, kind: str, step: int, lag: int) -> float:
    """P at one lag."""
    if lag <= 0 or lag % step:
        return 0.0
    power, regular = lag // step, recurrence.fading.shape[1]
    if kind == "regular":
        return float(recurrence.fading[layer, number].tanh()) ** power
    size = float(recurrence.damping[layer, number - regular].sigmoid()) ** power
    angle = float(recurrence.angles[layer, number - regular]) * power
    return size * (cos(angle) if kind == "cosine" else sin(angle))


class WholeText:
    """Every layer's values since the text began: a sum over all of them, where the model has a state."""

    def __init__(self, recurrence: Scores, heads: dict[int, str], dilation: int, stride: int) -> None:
        self.recurrence, self.heads, self.dilation, self.stride = recurrence, heads, dilation, stride
        self.past: dict[int, list[torch.Tensor]] = {}
        self.now: dict[int, torch.Tensor] = {}

    def next_window(self) -> None:
        for layer, v in self.now.items():
            self.past[layer] = [*self.past.get(layer, []), v[:, : self.stride]]

    def mix(self, layer, q, k, v, out):
        self.now[layer], mixed = v, out.clone()
        values = torch.cat([*self.past.get(layer, []), v], dim=1)
        begin = values.shape[1] - v.shape[1]
        for number, (head, kind) in enumerate(self.heads.items()):
            gate = (30 * self.recurrence.gate_logits[layer, number]).sigmoid()
            step, v_SD = self.dilation if number % 2 else 1, values[head * len(v) // len(q)]
            for at in range(v.shape[1]):
                taken = torch.zeros_like(out[head, at])
                for j in range(begin + at):
                    taken += score(self.recurrence, layer, number, kind, step, begin + at - j) * v_SD[j]
                mixed[head, at] = (1 - gate) * out[head, at] + gate * taken
        return mixed


@pytest.mark.parametrize(("heads", "dilation"), [(1, 1), (2, 2), (3, 4), (4, 3)])
@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_windows_are_read_as_the_whole_text_is(name, overlap, heads, dilation):
    model = body(name, ScoresSpec(score_heads=heads, dilation=dilation))
    for parameter in model.recurrence.parameters():
        parameter.copy_(torch.randn_like(parameter))
    text = WholeText(model.recurrence, KINDS[heads], dilation, stride=6 - overlap)
    by_hand, state = ByHand(model, text.mix), None
    for _ in range(3):
        tokens = some_tokens(6)
        reading = model.read(tokens[None], state, overlap=overlap)
        torch.testing.assert_close(reading.top_BTK[0], by_hand.read(tokens), **CLOSE)
        state = reading.state
        text.next_window()


def taken(scores: Scores, values: torch.Tensor, windows: list[int]) -> torch.Tensor:
    """PV of all layers, window by window; the gates are open and attention gives nothing."""
    state, found = None, []
    for part in values.split(windows, dim=3):
        window_pass = scores.open(state, None, in_parts=False)
        nothing = torch.zeros(part.shape[1], part.shape[3], scores.shape.heads * scores.shape.head_size).to(part)
        rows = [
            window_pass.attended(layer, nothing, lambda layer=layer, part=part: (None, None, part[layer]))
            for layer in range(scores.shape.layers)
        ]
        state = window_pass.close(0, None)
        found.append(torch.stack(rows))
    return torch.cat(found, dim=2)


@pytest.mark.parametrize("dilation", [1, 3])
def test_long_windows_and_their_gradients_are_those_of_the_text_in_one(dilation):
    shape = body("llama").config.shape
    values = torch.randn(
        3, 2, 2, 900, 6, dtype=torch.float64, requires_grad=True
    )  # layers, batch rows, heads of values
    weight, results = torch.randn(3, 2, 900, 24, dtype=torch.float64), []
    scores = Scores(shape, score_heads=3, dilation=dilation).double()
    with torch.no_grad():
        scores.fading.fill_(5.0)  # so slow that a window hands much on
        scores.damping.fill_(5.0)
        scores.gate_logits.fill_(0.0)
    for windows in ([900], [300, 300, 300], [1, 2, 400, 497]):
        out = taken(scores, values, windows)
        results.append([out, *torch.autograd.grad((out * weight).sum(), [values, *scores.parameters()])])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9 * float(1 + one.abs().max()))


def test_in_single_precision_what_fades_away_leaves_no_hole():
    scores = Scores(body("llama").config.shape, score_heads=4, dilation=2)
    with torch.no_grad():
        scores.fading[0].fill_(1e-4)  # to the power of 300 nothing
        scores.fading[1].fill_(0.0)
        scores.fading[2].fill_(30.0)  # exactly 1: never fades
        scores.damping.fill_(-30.0)
    values = torch.randn(3, 1, 2, 900, 6, requires_grad=True)
    out = taken(scores, values, [300, 300, 300])
    out.sum().backward()
    assert out.isfinite().all()
    assert all(one.grad.isfinite().all() for one in (values, *scores.parameters()))


@torch.no_grad()
def test_a_state_is_in_single_precision_whatever_a_window_is_read_in():
    model, tokens = body("llama", ScoresSpec(score_heads=4, dilation=2)).float(), some_tokens(1, 12)
    exact = model.read(tokens).state
    with torch.autocast("cpu", torch.bfloat16):
        first = model.read(tokens).state
        second = model.read(tokens, first).state
    for state in (first, second):
        assert (state[0] != state[0].bfloat16()).float().mean() > 0.5  # but for the imaginary parts of regular heads
    low = model.bfloat16()
    for state in (first, second, low.read(tokens).state, low.recurrence.empty(1)):
        assert [(one.dtype, one.shape) for one in state] == [(torch.float32, one.shape) for one in exact]


@torch.no_grad()
def test_it_starts_as_the_source_says_and_almost_closed():
    scores = Scores(body("gpt2").config.shape, score_heads=4)
    assert (30 * scores.gate_logits == -4).all() and torch.allclose(scores.angles, torch.tensor(pi / 4))
    for started in (scores.fading.abs(), scores.damping):
        assert ((started >= 1) & (started <= 2)).all() and started.std() > 0


def test_an_untrained_recurrence_changes_little():
    _, cost = start_cost(ScoresSpec(score_heads=2))
    assert 0 < abs(cost) < 0.05


def test_a_document_starts_from_zeros_whatever_was_before():
    model, tokens = body("gpt2", ScoresSpec()), some_tokens(2, 6)
    old = torch.full_like(model.recurrence.empty(2)[0], torch.nan).requires_grad_()
    reading = model.read(tokens, (old,), torch.tensor([True, True]))
    torch.testing.assert_close(reading.top_BTK, model.read(tokens).top_BTK, **CLOSE)
    (reading.top_BTK.square().sum() + reading.state[0].square().sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.recurrence.parameters())
    assert not old.grad.any()


def test_a_position_is_counted_with_what_it_sees():
    shape = body("llama").config.shape  # 3 layers, heads of 6
    windowing = TrialConfig(window=10, overlap=2).windowing
    a_weight = 3 * 2 * 2 * 6
    assert SCORES.flops(ScoresSpec(score_heads=2, dilation=3), shape, windowing) == a_weight * (
        10 * 5.5 + 10 * 2 + 6 * (6 + 8)
    )


def test_bad_input_is_refused_in_a_sentence():
    with pytest.raises(UserError) as refusal:
        parse(TrialConfig, {"recurrence": "scores", "dilation": 0})
    assert str(refusal.value).startswith("dilation: 0 is not greater than 0")
    config = parse(TrialConfig, {"recurrence": "scores", "score_heads": 5, "window": 8})
    with pytest.raises(UserError) as refusal:
        config.check_base(body("gpt2").config.shape)
    assert str(refusal.value) == "score_heads: 5 are more than gpt2 has in a layer; choose from 1 to 4."
