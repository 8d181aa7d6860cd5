"""Small forms of every mechanism, for tests that hold for all of them."""

from __future__ import annotations

import torch
from pydantic import BaseModel

from recur_tune.models import WindowedDecoder
from recur_tune.recurrences.blocks.spec import BlocksSpec
from recur_tune.recurrences.cache.spec import CacheSpec
from recur_tune.recurrences.fast_weights.spec import FastWeightsSpec
from recur_tune.recurrences.gated_delta.spec import GatedDeltaSpec
from recur_tune.recurrences.pooled.spec import PooledSpec
from recur_tune.recurrences.scores.spec import ScoresSpec
from recur_tune.recurrences.tokens.spec import TokensSpec
from recur_tune.recurrences.ttt.spec import TestTimeTrainingSpec
from tests.models import some_tokens
from tests.models.bodies import body


def start_cost(spec: BaseModel) -> tuple[WindowedDecoder, float]:
    """A small Llama with an untrained recurrence, and what that adds to the loss of a text's second window."""
    model, fresh = body("llama"), body("llama", spec)
    fresh.load_state_dict(model.state_dict(), strict=False)
    for module in fresh.recurrence.modules():
        fresh.recurrence.reset(module)
    text, losses = some_tokens(4, 25), []
    with torch.no_grad():
        state = fresh.read(text[:, :12]).state
        for one in (fresh.read(text[:, 12:24], state), model.read(text[:, 12:24])):
            log_p = model.logits(one.top_BTK).log_softmax(-1)
            losses.append(float(-log_p.gather(-1, text[:, 13:, None]).mean()))
    return fresh, losses[0] - losses[1]


SPECS: dict[str, BaseModel] = {
    "pooled, one layer": PooledSpec(l_ins=2, width=8, depth=1, pooling="recent", embeddings=3, skip=True),
    "pooled, all layers": PooledSpec(l_ins="all", embeddings=2, width=8, depth=1),
    "blocks, fixed gate": BlocksSpec(state_vectors=3),
    "blocks, lstm gate": BlocksSpec(state_vectors=4, block_layer=2, block_gate="lstm"),
    "fast weights, delta": FastWeightsSpec(),
    "fast weights, gated": FastWeightsSpec(write_rule="gated", fast_layers=2),
    "scores, dilated": ScoresSpec(score_heads=3, dilation=4),
    "cache, in one softmax": CacheSpec(cache_rows=7),
    "cache, behind a gate": CacheSpec(cache_rows=14, cache_join="gate"),
    "cache, one layer": CacheSpec(cache_rows=3, cache_layer=2),
    "cache, keydiff": CacheSpec(cache_rows=7, cache_keep="keydiff", cache_sinks=1),
    "cache, tova": CacheSpec(cache_rows=8, cache_keep="tova", cache_sinks=1),
    "cache, h2o": CacheSpec(cache_rows=7, cache_keep="h2o", cache_sinks=1),
    "cache, 4 bits": CacheSpec(cache_rows=7, cache_bits=4),
    "cache, keydiff, 8 bits, behind a gate": CacheSpec(
        cache_rows=14, cache_join="gate", cache_keep="keydiff", cache_sinks=1, cache_bits=8
    ),
    "cache, h2o, behind a gate": CacheSpec(cache_rows=7, cache_join="gate", cache_keep="h2o", cache_sinks=0),
    "cache, overflow": CacheSpec(cache_rows=5, cache_sinks=1, overflow="gated_delta"),
    "cache, keydiff, 4 bits, overflow": CacheSpec(
        cache_rows=5, cache_keep="keydiff", cache_sinks=1, cache_bits=4, overflow="gated_delta", delta_every=2
    ),
    "cache, scores beside": CacheSpec(cache_rows=7, cache_sinks=0, beside="scores", score_heads=3, dilation=4),
    "cache, blocks beside": CacheSpec(cache_rows=7, beside="blocks", state_vectors=3),
    "cache, overflow, scores beside": CacheSpec(cache_rows=5, overflow="gated_delta", beside="scores", score_heads=2),
    "gated delta": GatedDeltaSpec(),
    "test-time training": TestTimeTrainingSpec(ttt_every=2),
    "tokens": TokensSpec(state_tokens=3),
    "tokens, a ring": TokensSpec(state_tokens=2, ring=3),
}
