"""Inference memory: what is predicted is what a stream holds, to the byte."""

from __future__ import annotations

import pytest
import torch
from pydantic import BaseModel

from recur_tune.bptt.memory_tracker import MemoryTracker
from recur_tune.common.precision import Precision
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.cost.counted_flops import state_floats
from recur_tune.cost.inference_memory import inference_memory
from recur_tune.models import WindowedDecoder
from recur_tune.models.kv_cache import TextCache
from recur_tune.ops.device import autocast
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.recurrences.registry import settings_of
from tests.models import some_tokens
from tests.models.bodies import body
from tests.models.mechanisms import SPECS

WINDOW = 6
FORMS: dict[str, BaseModel | None] = {
    "none": None,
    **SPECS,
    "pooled, a maximum": PooledSpec(width=8, depth=1, pooling="max"),
    "pooled by attention": PooledSpec(width=8, depth=1, pooling="attention"),
    "pooled, longer stretches than windows": PooledSpec(width=8, depth=1, pooling="recent", embeddings=5),
}


def predicted(model: WindowedDecoder, spec: BaseModel | None, precision: Precision) -> int:
    fields = {"recurrence": "none"} if spec is None else {"recurrence": settings_of(spec)["kind"], **spec.model_dump()}
    config, shape = TrialConfig(window=WINDOW, bptt_windows=4, precision=precision, **fields), model.config.shape
    return inference_memory(config, shape, state_floats(config, shape, model.config))


@torch.no_grad()
def held(model: WindowedDecoder, parts: list[int], precision: Precision, overlap: int = 0) -> list[int]:
    """Bytes that live after each of these parts of a text, beside its weights."""
    cache, found = TextCache(Windowing(WINDOW, overlap)), list[int]()
    parts_1T = some_tokens(1, sum(parts)).split(parts, dim=1)
    with MemoryTracker() as tracker, autocast(torch.device("cpu"), precision):
        tracker.hold([*model.parameters(), *model.buffers()])
        weights = tracker.live
        for part_1T in parts_1T:
            model.read_text(part_1T.clone(), cache)
            torch.clear_autocast_cache()
            found.append(tracker.live - weights)
    return found


@pytest.mark.parametrize("spec", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("name", "precision"), [("gpt2", "float32"), ("qwen3", "bfloat16")])
def test_it_is_what_a_stream_holds_at_the_end_of_a_window_and_never_less(name, spec, precision):
    model = body(name, spec).float()
    expected = predicted(model, spec, precision)
    token_by_token = held(model, [1] * (2 * WINDOW), precision)
    assert token_by_token[-1] == expected == max(token_by_token)
    assert held(model, [WINDOW + 2, WINDOW - 2, WINDOW], precision)[-1] == expected


def test_tokens_that_windows_share_are_eight_bytes_each_more():
    model = body("gpt2").float()
    assert held(model, [1] * WINDOW, "float32", overlap=3)[-1] == predicted(model, None, "float32") + 3 * 8
