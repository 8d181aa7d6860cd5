"""From scratch: `base: none:SHAPE` is a model of random weights, which a trial trains from nothing.

A shape is written by its sizes, as 14x512x8, or named as a base is: a preset, a published model or a folder, of which
only the configuration is read.
"""

from __future__ import annotations

import re
from typing import Any

from recur_tune.common.known_shapes import KNOWN_SHAPES, PRESETS

_NONE = "none"
_DEFAULT = "14x512x8"  # of the Transformer-XL that Encoding Recurrence into Transformers adds its scores to
_SIZES = re.compile(r"(\d+)x(\d+)(?:x(\d+))?")
_HEAD, _INNER_STEP = 64, 64
_CONTEXT = 8192  # rotary positions have no weights
_BYTES, _BYTES_TOKENIZER = 256, "bytes"


def is_from_scratch(base: str) -> bool:
    """Whether a base is a shape alone."""
    return base.partition(":")[0] == _NONE


def shape_named(base: str) -> str:
    """What stands behind `none:`; `none` alone has the usual shape."""
    _, colon, shape = base.partition(":")
    return shape if colon else _DEFAULT


def sized(base: str, vocabulary: int | None = None) -> dict[str, Any] | None:
    """The configuration of a shape that is written by its sizes, a body of Llama's form; None for one with a name."""
    found = _SIZES.fullmatch(shape_named(base))
    if found is None:
        return None
    layers, width = int(found[1]), int(found[2])
    # A gate's matrix beside two: two thirds of the four widths that an MLP without one has.
    inner = -(-8 * width // (3 * _INNER_STEP)) * _INNER_STEP
    return {
        "model_type": "llama", "num_hidden_layers": layers, "hidden_size": width,
        "num_attention_heads": _heads(found), "num_key_value_heads": _heads(found), "intermediate_size": inner,
        "vocab_size": vocabulary or _BYTES, "max_position_embeddings": _CONTEXT, "tie_word_embeddings": True,
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


def known_settings(base: str, tokenizer: str | None = None) -> dict[str, Any] | None:
    """A configuration that is known without a disk and a network; None for any other base, and for a shape with a
    tokenizer of its own, whose vocabulary is not known."""
    name = shape_named(base) if is_from_scratch(base) else base
    if is_from_scratch(base):
        settings = sized(base)
        if tokenizer not in (None, _BYTES_TOKENIZER if settings else name):
            return None
        if settings:
            return settings
    named = PRESETS.get(name) or KNOWN_SHAPES.get(name)
    return {"model_type": "gpt2", **named} if named else None


def refused_shape(base: str) -> str | None:
    """A sentence where `none:SHAPE` cannot be a shape, else None."""
    if not is_from_scratch(base):
        return None
    shape = shape_named(base)
    if not shape:
        return (
            f"base: {base} names no shape; write layers, width and heads behind it, as {_NONE}:{_DEFAULT}, or a "
            f"model's name, as {_NONE}:gpt2."
        )
    found = _SIZES.fullmatch(shape)
    if found is None:
        return None
    layers, width, heads = int(found[1]), int(found[2]), _heads(found)
    if not (layers and width and heads) or width % (2 * heads):
        return (
            f"base: {base} has {layers} layers of {width} in {heads} heads; choose a width that is an even multiple of "
            f"the heads, and none of them 0, as {_NONE}:{_DEFAULT}."
        )
    return None


def _heads(found: re.Match[str]) -> int:
    return int(found[3]) if found[3] else max(1, int(found[2]) // _HEAD)
