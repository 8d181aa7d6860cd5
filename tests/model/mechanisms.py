"""Small forms of every mechanism, for tests that hold for all of them."""

from __future__ import annotations

from pydantic import BaseModel

from recur_tune.recurrences.blocks import BlocksSpec
from recur_tune.recurrences.cache import CacheSpec
from recur_tune.recurrences.fast_weights import FastWeightsSpec
from recur_tune.recurrences.pooled import PooledSpec
from recur_tune.recurrences.scores import ScoresSpec
from recur_tune.recurrences.tokens import TokensSpec

SPECS: dict[str, BaseModel] = {
    "pooled, one layer": PooledSpec(l_ins=2, width=8, depth=1, pooling="recent", embeddings=3, skip=True),
    "pooled, all layers": PooledSpec(l_ins="all", embeddings=2, width=8, depth=1),
    "blocks, fixed gate": BlocksSpec(state_vectors=3),
    "blocks, lstm gate": BlocksSpec(state_vectors=4, block_layer=2, block_gate="lstm"),
    "fast weights, delta": FastWeightsSpec(),
    "fast weights, gated": FastWeightsSpec(write_rule="gated", fast_layers=2),
    "scores, dilated": ScoresSpec(score_heads=3, dilation=4),
    "cache, in one softmax": CacheSpec(cache_rows=7, cache_join="softmax"),
    "cache, behind a gate": CacheSpec(cache_rows=14),
    "cache, one layer": CacheSpec(cache_rows=3, cache_layer=2, cache_join="softmax"),
    "tokens": TokensSpec(state_tokens=3),
    "tokens, a ring": TokensSpec(state_tokens=2, ring=3),
}
