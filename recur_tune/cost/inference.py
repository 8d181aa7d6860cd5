"""Bytes that one stream needs while a text is read or continued, beside the weights: exact before anything runs."""

from __future__ import annotations

from recur_tune.shape import Shape
from recur_tune.spec import TrialConfig

_STATE_BYTES = 4  # of a number in a state, which is carried in single precision


def inference_memory(config: TrialConfig, shape: Shape, state_floats: int) -> int:
    """The key-value cache of one full window, in the precision that it is read in, and the recurrence's state."""
    from recur_tune.training.precision import default_device, uses_bfloat16  # torch takes seconds to import

    number = 2 if uses_bfloat16(default_device(), config.precision) else 4
    cached = 2 * shape.layers * shape.key_value_heads * shape.head_size * config.window
    return cached * number + state_bytes(state_floats)


def closed_state_floats(config: TrialConfig, shape: Shape) -> int | None:
    """Numbers in one stream's state by the mechanism's closed form, None where it has none."""
    mechanism = config.mechanism
    if mechanism is None:
        return 0
    return None if mechanism.state_floats is None else mechanism.state_floats(config.recurrence_spec, shape)


def state_bytes(state_floats: int) -> int:
    """Bytes of a state."""
    return state_floats * _STATE_BYTES
