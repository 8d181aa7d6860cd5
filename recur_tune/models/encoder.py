"""A pretrained encoder over windows: bidirectional attention, the state of the window before, heads for an answer.

Its blocks are post-norm: they normalise behind every sum. Every position is seen by all others, so a mask hides
padding, and a state where a question begins.

Shape suffixes: W windows, B batch rows, T positions, M rows of a recurrence, S all rows that are seen, K hidden size,
H heads, D head size, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from recur_tune.common.shape import ANSWER_KINDS
from recur_tune.models.attention import split_keys_values
from recur_tune.models.windowed import Windowed, WindowOutput
from recur_tune.ops.autograd import BlockOps
from recur_tune.ops.body import Block, Body, Module, Projection
from recur_tune.recurrences.seam import State, WindowPass

HEADS = ("qa_outputs.", "answer_kind.")  # how the names of their weights begin
_BY_AUTOGRAD = BlockOps()


@dataclass(frozen=True, eq=False)
class EncoderBody(Body):
    """An encoder's modules in their places; `dropout` and `final_norm` are None, since both stand elsewhere.

    Attributes:
        segments: Segment embeddings, of which every token gets the first; None where the family has none.
        embedding_norm: Behind the sum of embeddings.
        embedding_dropout: Behind that.
        first_place: The position of a window's first token.
        distances: Module with the relative position bias (`relative_attention_bias`); None where the family has none.
    """

    segments: nn.Embedding | None
    embedding_norm: Module
    embedding_dropout: Module
    first_place: int
    distances: Module | None


class WindowedEncoder(Windowed):
    """A pretrained encoder, the recurrence that connects its windows, and heads for the span and the kind of an
    answer."""

    opened_by, scored_by = "AutoModelForQuestionAnswering", "recur_tune.models.span_loss:SpanScorer"
    dropout_fields = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    body: EncoderBody

    def add_heads(self) -> None:
        """A head for the answer's start and end, with transformers' name, and one for its kind."""
        self.qa_outputs = nn.Linear(self.config.hidden_size, 2)
        self.answer_kind = nn.Linear(self.config.hidden_size, len(ANSWER_KINDS))

    def freeze_body(self) -> None:
        """Train only the recurrence and the heads, which are not pretrained."""
        super().freeze_body()
        self.qa_outputs.requires_grad_(True)
        self.answer_kind.requires_grad_(True)

    def read(
        self,
        tokens_BT: torch.Tensor,
        state: State | None = None,
        fresh_B: torch.Tensor | None = None,
        leave_state: bool = True,
        overlap: int | None = None,
        ops: BlockOps = _BY_AUTOGRAD,
    ) -> WindowOutput:
        """Run one window.

        Args:
            tokens_BT: The window's tokens, padded with the configuration's `pad_token_id`.
            state: What the window before left; None where a question begins.
            fresh_B: Batch rows that begin a question and must not see the state; None means that all may see it.
            leave_state: False spares making the state where no window follows.
            overlap: Tokens of the text that the next window reads again; default: the configuration's.
            ops: The blocks' operations.
        """
        positions, window_pass = tokens_BT.shape[1], None
        if self.recurrence is not None:
            window_pass = self.recurrence.open(state, fresh_B, in_parts=False)
            window_pass.fused = ops.fused
        place_T = torch.arange(positions, device=tokens_BT.device)
        x_BTK = self._embedded(tokens_BT, place_T[None] + self.body.first_place, ops)
        there_BT = (tokens_BT != self.config.pad_token_id) | (place_T == 0)  # an empty batch row sees itself
        before_BMK = None if window_pass is None else window_pass.before()
        behind_BMK = None if window_pass is None or not leave_state else window_pass.behind()
        first = 0 if before_BMK is None else before_BMK.shape[1]
        last = 0 if behind_BMK is None else behind_BMK.shape[1]
        if first or last:
            rows = [one.expand(len(x_BTK), -1, -1) for one in (before_BMK, x_BTK, behind_BMK) if one is not None]
            x_BTK, there_BT = torch.cat(rows, dim=1), F.pad(there_BT, (first, last), value=True)
        seen_BTT = there_BT[:, None]
        if last:  # summary rows see the window, but it does not see them: whether a state is left changes nothing
            own_T = torch.arange(x_BTK.shape[1], device=x_BTK.device) < first + positions
            seen_BTT = seen_BTT & (own_T | ~own_T[:, None])
        watcher = window_pass if leave_state else None
        top_BTK = self._run(x_BTK, there_BT, seen_BTT, window_pass, watcher, fresh_B, ops)
        left = None
        if window_pass is not None and leave_state:
            overlap = (self.config.overlap or 0) if overlap is None else overlap
            left = window_pass.close(overlap, top_BTK[:, first + positions :] if last else None)
        return WindowOutput(top_BTK[:, first : first + positions], left)

    def _embedded(self, tokens_BT: torch.Tensor, place_1T: torch.Tensor, ops: BlockOps) -> torch.Tensor:
        body = self.body
        x_BTK = ops.embed(tokens_BT, place_1T, body)
        if body.segments is not None:
            x_BTK = x_BTK + body.segments.weight[0]
        return body.embedding_dropout(ops.norm(x_BTK, None, body.embedding_norm)[1])

    def _run(
        self,
        x_BTK: torch.Tensor,
        there_BT: torch.Tensor,
        seen_BTT: torch.Tensor,
        window_pass: WindowPass | None,
        watcher: WindowPass | None,
        fresh_B: torch.Tensor | None,
        ops: BlockOps,
    ) -> torch.Tensor:
        """Run rows through all blocks; the last one's output."""
        share_BT1 = (there_BT / there_BT.sum(1, keepdim=True)).to(x_BTK.dtype)[..., None]
        distances = self.body.distances
        bias_1HTT = None if distances is None else _by_distance(x_BTK.shape[1], distances, x_BTK.device)
        for layer, block in enumerate(self.body.blocks):
            inserted_BMK = None if window_pass is None else window_pass.inserted(layer)
            attended_BTC = self._attended(x_BTK, seen_BTT, inserted_BMK, fresh_B, bias_1HTT, block, ops)
            assert block.dropouts is not None
            behind_attention, behind_mlp = block.dropouts
            added = ops.dropout(ops.project(attended_BTC, block.out), behind_attention)
            x_BTK = ops.norm(x_BTK, added, block.attention_norm)[1]
            added = ops.dropout(ops.mlp(x_BTK, block), behind_mlp)
            x_BTK = ops.norm(x_BTK, added, block.mlp_norm)[1]
            if watcher is not None:
                watcher.observe(layer, _observed(watcher, x_BTK, share_BT1, ops))
        return x_BTK

    def _attended(
        self,
        x_BTK: torch.Tensor,
        seen_BTT: torch.Tensor,
        inserted_BMK: torch.Tensor | None,
        fresh_B: torch.Tensor | None,
        bias_1HTT: torch.Tensor | None,
        block: Block,
        ops: BlockOps,
    ) -> torch.Tensor:
        """Attention to the window and to inserted rows, which have no position and so no relative position bias."""
        q_BHTD, k_BHSD, v_BHSD = ops.heads(ops.project(x_BTK, block.qkv), block)
        mask_BTS = seen_BTT
        if inserted_BMK is not None:
            extra = split_keys_values(_keys_values(inserted_BMK, block, ops), block)
            k_BHSD, v_BHSD = (
                torch.cat([one.to(own.dtype), own], dim=2) for one, own in zip(extra, (k_BHSD, v_BHSD), strict=True)
            )
            may_B = torch.ones_like(mask_BTS[:, 0, 0]) if fresh_B is None else ~fresh_B
            may_BTM = may_B[:, None, None].expand(-1, mask_BTS.shape[1], inserted_BMK.shape[1])
            mask_BTS = torch.cat([may_BTM, mask_BTS], dim=2)
        mask = mask_BTS[:, None]
        if bias_1HTT is not None:
            bias_1HTS = F.pad(bias_1HTT, (mask.shape[3] - bias_1HTT.shape[3], 0)).to(q_BHTD.dtype)
            mask = bias_1HTS.masked_fill(~mask, float("-inf"))
        rate = block.attention_dropout if self.training else 0.0
        out_BHTD = F.scaled_dot_product_attention(
            q_BHTD, k_BHSD, v_BHSD, attn_mask=mask, dropout_p=rate, scale=block.scaling
        )
        return out_BHTD.transpose(1, 2).flatten(2)

    def forward(self, input_ids: torch.Tensor) -> QuestionAnsweringModelOutput:
        """Logits of an answer's start and end in single windows: Hugging Face's interface. To go from window to window,
        call `read`, and `qa_outputs` on its output."""
        start_BT, end_BT = self.qa_outputs(self.read(input_ids, leave_state=False).top_BTK).unbind(-1)
        return QuestionAnsweringModelOutput(start_logits=start_BT, end_logits=end_BT)


def _observed(watcher: WindowPass, x_BTK: torch.Tensor, share_BT1: torch.Tensor, ops: BlockOps) -> torch.Tensor:
    """A layer's outputs or means, as a window pass wants them; a mean over the whole window leaves padding out."""
    if watcher.wants == "outputs":
        return x_BTK
    if watcher.stretches > 1:
        return ops.means(x_BTK, watcher.stretches)
    return (x_BTK * share_BT1).sum(1, keepdim=True)


def _by_distance(positions: int, distances: Module, device: torch.device) -> torch.Tensor:
    """Relative position bias [1, H, T, T]. Buckets are made on the device: transformers 5.17 makes them on the CPU, and
    CUDA graph capture allows no copy from there."""
    place_T = torch.arange(positions, device=device)
    buckets_TT = distances.relative_position_bucket(place_T - place_T[:, None])
    return distances.relative_attention_bias(buckets_TT).permute(2, 0, 1)[None]


def _keys_values(inserted_BMK: torch.Tensor, block: Block, ops: BlockOps) -> torch.Tensor:
    """Keys and values of embeddings, by the layer's own projections; queries are left out."""
    _, *modules = block.qkv.modules
    made = [ops.value(ops.project(inserted_BMK, Projection((module,)))) for module in modules]
    return torch.cat(made, dim=-1)
