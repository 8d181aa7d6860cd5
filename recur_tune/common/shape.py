"""Shape of a body: the sizes that costs, checks and recurrences need, without torch.

Letters: K hidden size, L layers, H heads, G key-value heads, D head size, I the MLP's inner size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

ANSWER_KINDS = ("span", "yes", "no")  # the classes of an encoder's answer-type head
CALENDAR = 5  # features of a date: minute, hour, day of the week, of the month, of the year
_RECURRENT = "recurrent_"  # prefix of our own configurations' `model_type`
_ALIGNED = 128  # tensor cores are fastest at multiples of it, and slow with an odd vocabulary


@dataclass(frozen=True)
class Shape:
    """A body's sizes.

    Attributes:
        family: transformers' `model_type`.
        hidden: Size of the residual stream.
        layers: Blocks.
        heads: Query heads.
        key_value_heads: Heads of keys and values, each shared by as many query heads.
        head_size: Numbers in a head.
        inner: Units in a block's MLP.
        vocabulary: Tokens.
        context: The longest window that the body was made for.
        tied: Whether the input's embeddings are the output's weights too.
        biases: Bias parameters of one block.
        norms: Norm parameters of one block.
        final_norm: Parameters of the norm after the last block.
        gated: Whether the MLP has a gate, a third matrix product.
        learned_positions: Whether positions have learned embeddings.
        bidirectional: Whether a position attends to later ones too: an encoder.
        others: Further parameters: an encoder's other embeddings and its task heads.
        joined_heads: Whether queries, keys and values are made by one matrix.
        patch: Tokens of a position: time steps, for a body that reads series.
        columns: Rows of a batch that a chain has: a series' columns, where each is read on its own.
        reading: Multiply-adds of what reads one position, for a body that reads numbers; its input has no gradient.
        forecasting: Multiply-adds of one position outside the blocks, for such a body.
        choosing: Multiply-adds of one position that only choose, and have no backward pass.
        held: Numbers that a stream holds in every row beside keys and values.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    inner: int
    vocabulary: int
    context: int
    tied: bool
    biases: int
    norms: int
    final_norm: int
    gated: bool
    learned_positions: bool
    bidirectional: bool = False
    others: int = 0
    joined_heads: bool = False
    patch: int = 1
    columns: int = 1
    reading: int = 0
    forecasting: int = 0
    choosing: int = 0
    held: int = 0

    @property
    def block_products(self) -> int:
        """Weights of one block's matrix products."""
        queries, keys = self.heads * self.head_size, self.key_value_heads * self.head_size
        attention = self.hidden * (queries + 2 * keys) + queries * self.hidden
        return attention + (3 if self.gated else 2) * self.hidden * self.inner

    @property
    def parameters(self) -> int:
        """All weights; tied ones count once."""
        embeddings = self.vocabulary * (1 if self.tied else 2) + (self.context if self.learned_positions else 0)
        block = self.block_products + self.biases + self.norms
        return embeddings * self.hidden + self.layers * block + self.final_norm + self.others

    def pairs(self, rows: int) -> float:
        """Pairs of a row and a row that it attends to, itself included."""
        return rows * rows if self.bidirectional else rows * (rows + 1) / 2


def padded(vocabulary: int) -> int:
    """Columns of the logits: the vocabulary, rounded up for speed."""
    return -(-vocabulary // _ALIGNED) * _ALIGNED


def family_of(settings: Mapping[str, Any]) -> str:
    """The family that a configuration names, with a recurrence or without."""
    return str(settings.get("model_type")).removeprefix(_RECURRENT)


def shape_of(settings: Mapping[str, Any]) -> Shape:
    """The shape that a configuration (transformers' `config.json`) describes; its family must be one of FAMILIES."""
    return FAMILIES[family_of(settings)].shape(settings)


def _gpt2(settings: Mapping[str, Any]) -> Shape:
    k, heads = settings["n_embd"], settings["n_head"]
    inner = settings.get("n_inner") or 4 * k
    return Shape(
        family="gpt2", hidden=k, layers=settings["n_layer"], heads=heads, key_value_heads=heads, head_size=k // heads,
        inner=inner, vocabulary=settings.get("vocab_size", 50257), context=settings.get("n_positions", 1024),
        tied=settings.get("tie_word_embeddings", True), biases=3 * k + k + inner + k, norms=4 * k, final_norm=2 * k,
        gated=False, learned_positions=True, joined_heads=True,
    )  # fmt: skip


def _llama(settings: Mapping[str, Any]) -> Shape:
    family, k, heads = family_of(settings), settings["hidden_size"], settings["num_attention_heads"]
    groups = settings.get("num_key_value_heads") or heads
    head_size, inner = settings.get("head_dim") or k // heads, settings["intermediate_size"]
    queries, keys = heads * head_size, groups * head_size
    biases = 0
    if family == "qwen2" or settings.get("attention_bias"):
        biases += queries + 2 * keys + (0 if family == "qwen2" else k)
    if settings.get("mlp_bias"):
        biases += 2 * inner + k
    # Our windows stay within the sliding window, where attention is full.
    sliding = settings.get("sliding_window") if settings.get("use_sliding_window", family == "mistral") else None
    context = min(settings["max_position_embeddings"], sliding or settings["max_position_embeddings"])
    return Shape(
        family=family, hidden=k, layers=settings["num_hidden_layers"], heads=heads, key_value_heads=groups,
        head_size=head_size, inner=inner, vocabulary=settings["vocab_size"], context=context,
        tied=bool(settings.get("tie_word_embeddings")), biases=biases,
        norms=2 * k + (2 * head_size if family == "qwen3" else 0), final_norm=k, gated=True, learned_positions=False,
    )  # fmt: skip


def _encoder(settings: Mapping[str, Any]) -> Shape:
    family, k, heads = family_of(settings), settings["hidden_size"], settings["num_attention_heads"]
    inner, places = settings["intermediate_size"], settings["max_position_embeddings"]
    unused = first_place(settings)
    # The norm after the embeddings; MPNet has relative position biases, the others segment embeddings.
    others = 2 * k + unused * k
    others += (
        settings["relative_attention_num_buckets"] * heads if family == "mpnet" else settings["type_vocab_size"] * k
    )
    others += (k + 1) * (2 + len(ANSWER_KINDS))  # where an answer starts and ends, and its kind
    return Shape(
        family=family, hidden=k, layers=settings["num_hidden_layers"], heads=heads, key_value_heads=heads,
        head_size=k // heads, inner=inner, vocabulary=settings["vocab_size"], context=places - unused, tied=True,
        biases=3 * k + k + inner + k, norms=4 * k, final_norm=0, gated=False, learned_positions=True,
        bidirectional=True, others=others,
    )  # fmt: skip


def _patches(settings: Mapping[str, Any]) -> Shape:
    """Llama's blocks; patches of a column are embedded, and a horizon is forecast from every position."""
    k, patch, horizon = settings["hidden_size"], settings["patch"], settings["horizon"]
    ends = (patch + 1) * k + (k + 1) * horizon
    return replace(
        _llama(settings), vocabulary=0, tied=True, others=ends, patch=patch, columns=settings["columns"],
        reading=patch * k, forecasting=k * horizon,
    )  # fmt: skip


def _dlinear(settings: Mapping[str, Any]) -> Shape:
    """No blocks: a whole window of a column is one position."""
    window, horizon = settings["patch"], settings["horizon"]
    return Shape(
        family="dlinear", hidden=window, layers=0, heads=1, key_value_heads=1, head_size=0, inner=0, vocabulary=0,
        context=1, tied=True, biases=0, norms=0, final_norm=0, gated=False, learned_positions=False,
        others=2 * (window + 1) * horizon, patch=window, columns=settings["columns"], reading=2 * window * horizon,
        held=window,
    )  # fmt: skip


def _informer(settings: Mapping[str, Any]) -> Shape:
    """A whole window of all columns is one position; nothing of it is counted as blocks."""
    k, inner, heads = settings["d_model"], settings["encoder_ffn_dim"], settings["encoder_attention_heads"]
    layers, columns = settings["encoder_layers"], settings["columns"]
    window, horizon = settings["patch"], settings["horizon"]
    made, factor = settings["label"] + horizon, settings["sampling_factor"]
    read = (window + made) * (3 * columns + CALENDAR) * k
    products = choices = 0
    for layer in range(layers):
        products += _informer_layer(window, k, inner, factor) + (3 * window * k * k if layer < layers - 1 else 0)
        choices += window * kept_positions(window, factor) * k
        window = window if layer == layers - 1 else (window - 1) // 2 + 1
    for _ in range(settings["decoder_layers"]):
        products += _informer_layer(made, k, inner, factor)
        products += 2 * made * k * k + 2 * window * k * k + 2 * made * window * k  # cross-attention
        choices += made * kept_positions(made, factor) * k
    layer_weights = 4 * k * (k + 1) + k * (inner + 1) + inner * (k + 1) + 4 * k
    weights = 2 * (3 * columns + 1 + CALENDAR + 1) * k + layers * layer_weights + 2 * 2 * k + (k + 1) * columns
    weights += (layers - 1) * (3 * k + 3) * k
    weights += settings["decoder_layers"] * (layer_weights + 4 * k * (k + 1) + 2 * k)
    return Shape(
        family="informer", hidden=0, layers=layers + settings["decoder_layers"], heads=heads, key_value_heads=heads,
        head_size=0, inner=0, vocabulary=0, context=1, tied=True, biases=0, norms=0, final_norm=0, gated=False,
        learned_positions=False, others=weights, patch=settings["patch"], reading=read,
        forecasting=products + horizon * k * columns, choosing=choices, held=settings["patch"] * columns,
    )  # fmt: skip


def _informer_layer(positions: int, k: int, inner: int, factor: int) -> int:
    """Multiply-adds of a layer's projections, MLP and attention of the queries that are kept."""
    return positions * (4 * k * k + 2 * k * inner) + 2 * kept_positions(positions, factor) * positions * k


def kept_positions(positions: int, factor: int) -> int:
    """ProbSparse attention: how many queries of so many are kept, and how many keys are sampled for each."""
    return min(factor * max(math.ceil(math.log(positions)), 1), positions)


def first_place(settings: Mapping[str, Any]) -> int:
    """The position of an encoder's first token: RoBERTa and MPNet do not use positions up to padding's."""
    return 0 if family_of(settings) == "bert" else settings["pad_token_id"] + 1


class Family(NamedTuple):
    """A family of bodies.

    Attributes:
        shape: Reads the shape from a configuration.
        model: The module in `models/bodies/` and its class, as `module.Class`; a name, so that torch is not imported.
        is_encoder: Whether it reads a window in both directions.
        is_ours: Whether it is no model of transformers, and has no weights but those that are trained here.
        within: Where no state goes from window to window, the mechanisms that it has within one; None: a state does.
    """

    shape: Callable[[Mapping[str, Any]], Shape]
    model: str
    is_encoder: bool = False
    is_ours: bool = False
    within: frozenset[str] | None = None


# The registry of bodies, by transformers' `model_type`.
FAMILIES: dict[str, Family] = {
    "gpt2": Family(_gpt2, "gpt2.RecurrentGPT2"),
    "llama": Family(_llama, "llama.RecurrentLlama"),
    "mistral": Family(_llama, "llama.RecurrentMistral"),
    "qwen2": Family(_llama, "llama.RecurrentQwen2"),
    "qwen3": Family(_llama, "llama.RecurrentQwen3"),
    "roberta": Family(_encoder, "bert.RecurrentRoberta", is_encoder=True),
    "bert": Family(_encoder, "bert.RecurrentBert", is_encoder=True),
    "mpnet": Family(_encoder, "mpnet.RecurrentMPNet", is_encoder=True),
    "patches": Family(_patches, "patches.PatchDecoder", is_ours=True),
    "dlinear": Family(_dlinear, "dlinear.DLinear", is_ours=True, within=frozenset()),
    "informer": Family(_informer, "informer.ForecastingInformer", is_ours=True, within=frozenset({"scores"})),
}
