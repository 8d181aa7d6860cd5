"""Key-value cache: the last keys and values of layers, to which the next window attends (Transformer-XL, Memorizing
Transformers). A row is a key and a value. No gradient goes back to the windows that rows come from.

Positions of rows. In one softmax with a window's own keys, rows stand before the window, one behind the other. Rotary
position embeddings are applied to kept keys at their present positions, as in a longer window. Learned positions are
part of keys and values from the start. But a mean over many texts shows what each position adds to a layer's keys and
values (`places`). So rows are kept without the part of their old position, and get that of their present one: the first
positions, behind which the window's own begin. On a pretrained GPT-2 this is within a few thousandths of a nat of
reading the rows' text again. A learned offset, zero at first, distinguishes rows from the window's own.

Which rows are kept: a document's first rows and the last of all. A pretrained body uses the first token as an attention
sink: heads with nothing to attend to put their weight there. A window that follows rows has no such token of its own,
so the document's first rows stay (StreamingLLM). With scores (`keep.py`) only half of the rows are the last ones.

Apart from the window, with a gate, neither rows nor queries have rotary position embeddings. A row is found by its
content alone, so there may be more rows than the body has positions.

Shape suffixes: B batch rows, S sites (layers that keep rows), M rows, C columns.
"""

from __future__ import annotations

import torch

from recur_tune.recurrences.cache.collected import CachedWindowPass
from recur_tune.recurrences.cache.joins import GatedWindowPass, JoinedWindowPass, PlacedWindowPass
from recur_tune.recurrences.cache.weights import CacheWeights
from recur_tune.recurrences.seam import State


class Cached(CacheWeights):
    """A key-value cache of layers, to which the next window attends.

    The state is these rows, and how many of them each batch row has filled; these come last, in the text's order. A row
    is a key and a value side by side, before rotary positions or less what learned ones add.
    """

    def open(self, state: State | None, fresh_B: torch.Tensor | None, in_parts: bool) -> CachedWindowPass:
        """Where a document begins, no row is filled."""
        window_pass = (
            GatedWindowPass if self.gates is not None else JoinedWindowPass if self.places is None else PlacedWindowPass
        )
        if state is None:
            return window_pass(self, None, None)
        rows_BSMC, filled_B = (one.detach() for one in state)
        if fresh_B is not None:
            filled_B = filled_B.masked_fill(fresh_B, 0)
        return window_pass(self, rows_BSMC, filled_B)
