"""Inference memory: bytes of one stream beside the weights, exact before anything runs."""

from __future__ import annotations

from recur_tune.common.shape import Shape
from recur_tune.config.trial import TrialConfig

_SINGLE = 4  # bytes


def inference_memory(config: TrialConfig, shape: Shape, state_floats: int) -> int:
    """What a stream holds between two tokens, at most: the key-value cache of one full window, in the precision of
    reading, and what the recurrence holds beside it. An encoder has no cache: it reads a window at once, and only the
    state is held. Of a series every column is a row of its own, and some bodies hold the window itself."""
    if shape.bidirectional:
        return state_bytes(config, shape, state_floats)
    windowing = config.windowing.in_patches(shape.patch)
    cached = 2 * shape.layers * shape.key_value_heads * shape.head_size * windowing.size * _number(config)
    cached += shape.held * _SINGLE
    if config.mechanism is None or config.mechanism.held is None:
        return shape.columns * (cached + state_bytes(config, shape, state_floats))
    held = config.mechanism.held(config.recurrence_spec, shape, windowing)
    return shape.columns * (cached + held.as_read * _number(config) + held.single * _SINGLE + held.quantised)


def closed_state_floats(config: TrialConfig, shape: Shape) -> int | None:
    """Numbers in one stream's state by the mechanism's closed form, None where it has none."""
    mechanism = config.mechanism
    if mechanism is None:
        return 0
    return None if mechanism.state_floats is None else mechanism.state_floats(config.recurrence_spec, shape)


def state_bytes(config: TrialConfig, shape: Shape, state_floats: int) -> int:
    """Bytes of a state: in single precision, but for the parts that keep activations as they are, and for quantised
    numbers."""
    spec, parts = config.recurrence_spec, () if config.mechanism is None else config.mechanism.parts
    kept = [part.state_floats for part in parts if part.kept_as_read]
    if len(kept) == len(parts):
        as_read = state_floats
    else:
        as_read = sum(floats(spec, shape) for floats in kept if floats is not None)
    quantised = sum(part.quantised_bytes(spec, shape) for part in parts)
    return as_read * _number(config) + (state_floats - as_read) * _SINGLE + quantised


def _number(config: TrialConfig) -> int:
    """Bytes of a number in the precision that a window is read in."""
    from recur_tune.ops.device import default_device, uses_bfloat16  # torch takes seconds to import

    return 2 if uses_bfloat16(default_device(), config.precision) else _SINGLE
