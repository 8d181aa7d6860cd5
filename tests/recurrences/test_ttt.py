"""Test-time training in place, position by position, inside transformers' own models."""

from __future__ import annotations

import pytest
import torch

from recur_tune.common.known_shapes import KNOWN_SHAPES
from recur_tune.common.shape import shape_of
from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.mechanism import Held, Work
from recur_tune.recurrences.ttt.spec import TTT, TestTimeTrainingSpec
from tests.models import some_tokens
from tests.models.bodies import body, hugging_face
from tests.models.mechanisms import start_cost

SMOL = shape_of(KNOWN_SHAPES["HuggingFaceTB/SmolLM2-135M"])


class Learning:
    """A model whose MLPs take weights that are learned from each window, by hooks on transformers' own modules."""

    def __init__(self, model, stride: int) -> None:
        self.own, self.stride, self.plain = model.recurrence, stride, hugging_face(model)
        self.before, self.behind, self.stream = {}, {}, {}
        is_gpt2 = model.config.shape.family == "gpt2"
        for layer, block in enumerate(self.plain.transformer.h if is_gpt2 else self.plain.model.layers):
            if layer in self.own.sites:
                norm = block.ln_2 if is_gpt2 else block.post_attention_layernorm
                down = block.mlp.c_proj if is_gpt2 else block.mlp.down_proj
                norm.forward = self._noted(norm.forward, layer)
                down.register_forward_hook(self._taught(layer))

    def read(self, tokens_T: torch.Tensor) -> torch.Tensor:
        self.before, self.behind = self.behind, {}
        return self.plain.base_model(tokens_T[None], use_cache=False).last_hidden_state[0]

    def _noted(self, forward, layer: int):
        def noting(x_1TK):
            self.stream[layer] = x_1TK[0]
            return forward(x_1TK)

        return noting

    def _taught(self, layer: int):
        def hook(_module, inputs, output):
            site, units_TF, x_TK = self.own.sites.index(layer), inputs[0][0], self.stream[layer]
            x_TK = torch.stack([x / (x.square().mean() + 1e-6).sqrt() for x in x_TK])
            keeps = 1 / (1 + (-30 * self.own.decay_logits[site]).exp())
            learned = keeps * self.before.get(layer, torch.zeros(x_TK.shape[1], units_TF.shape[1]).double())
            for t in range(self.stride):
                near = {tap: t + tap - 2 for tap in range(5) if 0 <= t + tap - 2 < len(x_TK)}
                target = sum(self.own.taps[site, tap] * x_TK[at] for tap, at in near.items()) @ self.own.targets[site]
                learned = learned + 0.3 / self.stride * torch.outer(target, units_TF[t] / units_TF[t].norm())
            self.behind[layer] = learned
            if layer in self.before:
                return output + torch.stack([self.before[layer] @ unit for unit in units_TF])
            return output

        return hook


@pytest.mark.parametrize(("name", "every", "overlap"), [("gpt2", 1, 2), ("qwen3", 2, 0), ("llama", 7, 1)])
@torch.no_grad()
def test_windows_are_read_by_the_equations(name, every, overlap):
    model, state = body(name, TestTimeTrainingSpec(ttt_every=every)), None
    learning = Learning(model, 6 - overlap)
    for _ in range(3):
        tokens = some_tokens(6)
        reading = model.read(tokens[None], state, overlap=overlap)
        torch.testing.assert_close(reading.top_BTK[0], learning.read(tokens), rtol=1e-9, atol=1e-9)
        state = reading.state
        for site, layer in enumerate(model.recurrence.sites):
            torch.testing.assert_close(state[0][0, site], learning.behind[layer], rtol=1e-9, atol=1e-9)


def test_an_untrained_one_changes_nothing():
    model, cost = start_cost(TestTimeTrainingSpec())
    assert cost == pytest.approx(0, abs=1e-12)
    targets_KK = model.recurrence.targets[0].detach()
    assert targets_KK.diagonal().count_nonzero() == targets_KK.count_nonzero() == len(targets_KK)


def test_costs_in_closed_form():
    spec, windowing, weights = TestTimeTrainingSpec(), Windowing(100, 10), 576 * 1536
    assert TTT.work(spec, SMOL, windowing) == Work(5 * 90 * 2 * (576**2 + weights), 5 * 100 * 2 * weights)
    assert TTT.state_floats(spec, SMOL) == 5 * weights
    assert TTT.held(spec, SMOL, windowing) == Held(5 * (weights + 100 * (576 + 1536)), 0)
