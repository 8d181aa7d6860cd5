"""A pretrained decoder over windows: one window through the body and the recurrence, and texts window by window.

The weights live in Hugging Face's own modules, so any model of a family loads and saves as it is. Only the loop over
blocks is written here, because a recurrence takes part in it.

Shape suffixes: B batch rows, T positions, M rows that a recurrence brings, K hidden size, C columns,
F units of an MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache as cache_calls
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from recur_tune.common.windowing import NOT_SCORED
from recur_tune.models.attention import Extra, attend, attend_part, inserted_keys_values, rotary_keys_values
from recur_tune.models.kv_cache import Cache, TextCache
from recur_tune.models.windowed import Windowed, WindowOutput
from recur_tune.ops.autograd import BlockOps, Product, activated
from recur_tune.ops.body import CosSin
from recur_tune.ops.reference import apply_rotary
from recur_tune.recurrences.seam import Rotary, State, WindowPass

_BY_AUTOGRAD = BlockOps()
_CALIBRATED_TOGETHER = 16  # texts


class WindowedDecoder(Windowed):
    """A pretrained decoder and the recurrence that connects its windows.

    `forward` and Hugging Face's `generate` read a text of any length, in the windows of its configuration.
    """

    opened_by, scored_by = "AutoModelForCausalLM", "recur_tune.models.loss:NextTokenScorer"
    _is_stateful = True  # no assisted decoding: it would have to return to a window that is over
    accepts_loss_kwargs = False  # else Hugging Face's Trainer would pass its own arguments as **unknown

    def read(
        self,
        tokens_BT: torch.Tensor,
        state: State | None = None,
        fresh_B: torch.Tensor | None = None,
        cache: Cache | None = None,
        leave_state: bool = True,
        overlap: int | None = None,
        ops: BlockOps = _BY_AUTOGRAD,
    ) -> WindowOutput:
        """Run one window.

        Args:
            tokens_BT: The window's tokens, or with a `cache` its next ones.
            state: What the window before left; None where a document begins.
            fresh_B: Batch rows that begin a document and must not see the state; None means that all may see it.
            cache: The window's earlier part, updated in place.
            leave_state: False spares making the state where no window follows.
            overlap: Tokens that the next window reads again; default: the configuration's.
            ops: The blocks' operations.
        """
        begin, positions = cache.length if cache else 0, tokens_BT.shape[1]
        window_pass = cache.window_pass if cache else None
        if window_pass is None and self.recurrence is not None:
            window_pass = self.recurrence.open(state, fresh_B, in_parts=cache is not None)
            window_pass.fused, window_pass.rotary = ops.fused, self._rotary()
        position_BT = torch.arange(begin, begin + positions, device=tokens_BT.device)[None]
        if window_pass is not None and window_pass.moved_B is not None:
            position_BT = position_BT + window_pass.moved_B[:, None]
        x_BTK = self.embed(tokens_BT, position_BT, ops)
        before_BMK = window_pass.before() if window_pass is not None and not begin else None
        behind_BMK = window_pass.behind() if window_pass is not None and leave_state and cache is None else None
        first = 0 if before_BMK is None else before_BMK.shape[1]
        rows = [one.expand(len(x_BTK), -1, -1) for one in (before_BMK, x_BTK, behind_BMK) if one is not None]
        if len(rows) > 1:
            x_BTK = torch.cat(rows, dim=1)
        observed = leave_state or cache is not None
        top_BTK = self._run(x_BTK, begin - first, window_pass, fresh_B, cache, observed, ops)
        if behind_BMK is not None:
            behind_BMK = top_BTK[:, first + positions :]
        if len(rows) > 1:
            top_BTK = top_BTK[:, first : first + positions]
        if cache is not None:
            cache.window_pass, cache.length = window_pass, begin + positions
        left = None
        if window_pass is not None and leave_state:
            overlap = (self.config.overlap or 0) if overlap is None else overlap
            left = self.leave(cache, overlap) if cache is not None else window_pass.close(overlap, behind_BMK)
        if window_pass is not None and cache is not None:
            window_pass.rest()
            window_pass.rotary = self._rotary()  # the last one holds the angles of this part
        return WindowOutput(top_BTK, left)

    def embed(self, tokens_BT: torch.Tensor, position_BT: torch.Tensor, ops: BlockOps) -> torch.Tensor:
        """Where the residual stream begins."""
        return ops.embed(tokens_BT, position_BT, self.body)

    @torch.no_grad()
    def calibrate(self, texts: Callable[[], torch.Tensor], weight: float = 1.0) -> None:
        """Let the recurrence measure the body on texts [N, T]; `texts` is called only if it has something to measure.
        The weight is that of this measurement against earlier ones."""
        measure = None if self.recurrence is None else self.recurrence.calibrated_by()
        if measure is None:
            return
        tokens_NT = texts().to(self.device)
        was_training, position_1T = self.training, torch.arange(tokens_NT.shape[1], device=tokens_NT.device)[None]
        self.eval()
        for tokens_BT in tokens_NT.split(_CALIBRATED_TOGETHER):
            x_BTK = self.embed(tokens_BT, position_1T, _BY_AUTOGRAD)
            self._run(x_BTK, 0, measure, None, None, False, _BY_AUTOGRAD)
        self.train(was_training)
        measure.take(weight)

    def leave(self, cache: Cache, overlap: int) -> State | None:
        """The state of a window that is read in parts, as far as it was read; reading can go on."""
        if cache.window_pass is None:
            return None
        behind_BMK = cache.window_pass.behind()
        if behind_BMK is not None:  # on a copy of the cache, since the window may go on
            batch_size = len(next(iter(cache.keys_values.values()))[0])
            behind_BMK = behind_BMK.expand(batch_size, -1, -1)
            aside = replace(cache, keys_values=dict(cache.keys_values), window_pass=None)
            behind_BMK = self._run(behind_BMK, cache.length, None, None, aside, False, _BY_AUTOGRAD)
        return cache.window_pass.close(overlap, behind_BMK)

    def _run(
        self,
        x_BTK: torch.Tensor,
        begin: int,
        window_pass: WindowPass | None,
        fresh_B: torch.Tensor | None,
        cache: Cache | None,
        observed: bool,
        ops: BlockOps,
    ) -> torch.Tensor:
        """Run rows from position `begin` on through all blocks; the last one's output, normalised."""
        body, watcher = self.body, window_pass if observed else None
        means = watcher.stretches if watcher is not None and watcher.wants == "means" else 0
        # A pass that gets the heads of all parts has keys kept before rotary positions, which are made for all.
        whole = cache is not None and window_pass is not None and window_pass.whole_heads
        earlier = cache.kept if cache is not None and whole else 0
        cos_sin = body.cos_sin(begin - earlier, earlier + x_BTK.shape[1], x_BTK)
        # The same in all layers. Only dtype and device of its argument count, so an empty tensor spares memory.
        cos_sin_before = cache_calls(partial(body.cos_sin_before, x_BTK=x_BTK.new_empty(0)))
        seen_before = cache_calls(lambda rows: None if fresh_B is None else rows * ~fresh_B)
        added: Product | None = None  # the MLP's output of the block before
        for layer, block in enumerate(body.blocks):
            x_BTK, qkv, means_BMK = ops.norm_project(
                x_BTK, added, block.attention_norm, block.qkv, means=means if layer else 0
            )
            if watcher is not None and layer:  # the sum is the output of the block before
                watcher.observe(layer - 1, x_BTK if means_BMK is None else means_BMK)
            rate = block.attention_dropout if self.training else 0.0
            adapt = None if window_pass is None else partial(window_pass.attended, layer)
            past = None if cache is None else cache.keys_values.get(layer)
            extra = None
            if past is None or whole:
                extra = self._extra(layer, window_pass, cos_sin_before, seen_before, ops)
            if cache is None:
                attended_BTC = attend(ops, block, qkv, cos_sin, extra, rate, adapt)
            else:
                rows, hidden_B = None, cache.hidden.get(layer)
                if extra is not None:
                    rows, hidden_B = extra.keys_values(block), extra.hidden_B
                if not whole and extra is not None:  # they are kept with the window's own
                    past, rows = rows, None
                    if hidden_B is not None:
                        cache.hidden[layer] = hidden_B
                attended_BTC, cache.keys_values[layer] = attend_part(
                    ops, block, qkv, cos_sin, rows, past, hidden_B, rate, adapt, whole
                )
            behind_attention, behind_mlp = block.dropouts or (None, None)
            added = ops.dropout(ops.project(attended_BTC, block.out), behind_attention)
            added = ops.plus(added, None if window_pass is None else window_pass.branch(layer, x_BTK))
            if window_pass is not None and layer in window_pass.unit_layers:
                x_BTK, hidden, _ = ops.norm_project(x_BTK, added, block.mlp_norm, block.up)
                unit_BTF = activated(ops.value(hidden), block)
                added = ops.plus(ops.project(unit_BTF, block.down), window_pass.units(layer, x_BTK, unit_BTF))
            else:
                x_BTK, added = ops.norm_mlp(x_BTK, added, block)
            added = ops.dropout(added, behind_mlp)
        _, top_BTK = ops.norm(x_BTK, added, body.final_norm)
        if watcher is not None:  # like Hugging Face's hidden states, the last one is normalised
            watcher.observe(len(body.blocks) - 1, ops.means(top_BTK, means) if means else top_BTK)
        return top_BTK

    def _extra(
        self,
        layer: int,
        window_pass: WindowPass | None,
        cos_sin_before: Callable[[int], CosSin | None],
        seen_before: Callable[[int], torch.Tensor | None],
        ops: BlockOps,
    ) -> Extra | None:
        """Keys and values that a window pass inserts into a layer."""
        if window_pass is None:
            return None
        block, rows_BMC = self.body.blocks[layer], window_pass.keys_values(layer)
        if rows_BMC is not None:
            rows_BMC = rotary_keys_values(ops, block, rows_BMC, cos_sin_before(rows_BMC.shape[1]))
        elif (inserted_BMK := window_pass.inserted(layer)) is not None:
            rows_BMC = inserted_keys_values(ops, block, inserted_BMK)
        else:
            return None
        seen_B = seen_before(rows_BMC.shape[1]) if window_pass.seen_B is None else window_pass.seen_B
        return Extra(rows_BMC, seen_B, window_pass.places(layer))

    def _rotary(self) -> Rotary | None:
        """Rotary position embeddings for a window pass; None where positions are learned."""
        if self.body.rotary is None:
            return None
        like = torch.empty(0, dtype=self.body.stream_dtype, device=self.device)
        cos_sin = cache_calls(partial(self.body.cos_sin, x_BTK=like))  # the same in all layers

        def rotary(x_BHTD: torch.Tensor, begin: int) -> torch.Tensor:
            _, heads, positions, _ = x_BHTD.shape
            at_positions = cos_sin(begin, positions)
            assert at_positions is not None, "the body has rotary positions"
            rotated_BTC = apply_rotary(x_BHTD.transpose(1, 2).flatten(2), *at_positions, heads)
            return rotated_BTC.unflatten(-1, (heads, -1)).transpose(1, 2)

        return rotary

    def logits(self, top_BTK: torch.Tensor) -> torch.Tensor:
        """Logits over the vocabulary."""
        return self.lm_head(top_BTK)

    def read_text(self, tokens_BT: torch.Tensor, cache: TextCache) -> torch.Tensor:
        """Read the next tokens of a text, over any number of windows; the last layer's output at each, [B, T, K].

        Windows are those of evaluation, counted from where the cache began.
        """
        if not tokens_BT.shape[1]:
            raise ValueError("input_ids: there is no token to read; give at least one.")
        if cache.recent_BT is not None and len(cache.recent_BT) != len(tokens_BT):
            raise ValueError(
                f"input_ids: {len(tokens_BT)} texts cannot go on from the past of {len(cache.recent_BT)}; give as many."
            )
        tops, rest_BT = [], tokens_BT
        while rest_BT.shape[1]:
            state, again_BT = None, None
            if not cache.room:
                state = self.leave(cache.window, cache.windowing.overlap)
                again_BT = cache.next_window()
            repeated = 0 if again_BT is None else again_BT.shape[1]
            new_BT, rest_BT = rest_BT.tensor_split([cache.room - repeated], dim=1)
            part_BT = new_BT if again_BT is None else torch.cat([again_BT, new_BT], dim=1)
            # Within a window the cache is enough; a state is made when the window is full.
            reading = self.read(part_BT, state, cache=cache.window, leave_state=False)
            cache.note(new_BT)
            tops.append(reading.top_BTK[:, repeated:])
        return torch.cat(tops, dim=1)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: TextCache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **unknown: object,
    ) -> CausalLMOutputWithPast:
        """Logits, and with `labels` the loss, of texts of any length: Hugging Face's interface.

        Args:
            input_ids: Equally many tokens of every text; with `past_key_values` the next ones.
            attention_mask: Ones alone. Pad texts of different lengths on the right, where no token sees the padding,
                with labels of -100.
            past_key_values: An earlier call's.
            labels: The same tokens again; each is predicted from those before it, and -100 is not scored.
            use_cache: Whether to return the cache; default: the configuration's.
            logits_to_keep: Only so many of the last positions; 0 keeps all.
            unknown: Arguments of other models; refused.
        """
        _refuse(unknown, attention_mask, past_key_values)
        cache = TextCache(self.config.windowing) if past_key_values is None else past_key_values
        logits_BTV = self.logits(self.read_text(input_ids, cache)[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            scores_NV, target_N = logits_BTV[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            loss = F.cross_entropy(scores_NV.float(), target_N, ignore_index=NOT_SCORED)
        keep = self.config.use_cache if use_cache is None else use_cache
        return CausalLMOutputWithPast(loss=loss, logits=logits_BTV, past_key_values=cache if keep else None)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: `forward` makes the cache."""
        return False

    def get_output_embeddings(self) -> nn.Module:
        """For Hugging Face's weight tying."""
        return self.lm_head


def _refuse(unknown: dict[str, object], attention_mask: torch.Tensor | None, past: object) -> None:
    """Refuse what Hugging Face's interface allows and reading in windows does not."""
    for name, value in unknown.items():
        if value is not None and value is not False:
            raise ValueError(f"{name}: a model that is read in windows takes tokens alone (input_ids); leave it out.")
    if attention_mask is not None and not attention_mask.all():
        raise ValueError(
            "attention_mask: it hides some tokens, but windows are counted from a text's first token; give texts of "
            "one length, or to score them pad on the right and leave the mask out."
        )
    if not isinstance(past, TextCache | None):
        raise ValueError(f"past_key_values: a {type(past).__name__} knows no windows; give what this model returned.")
