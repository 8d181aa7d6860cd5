"""What the workers of a trial exchange in a step, and how long that takes at a bandwidth."""

from __future__ import annotations

from recur_tune.common.shape import Shape
from recur_tune.config.trial import TrialConfig

_BYTES = 4  # of a gradient

# Nominal bytes a second that a worker sends and receives at the same time. The first link is the H100's and H200's own,
# the second a common network of a cluster.
LINKS = {"NVLink": 450e9, "100 Gb/s": 12.5e9}


def exchanged_bytes(config: TrialConfig, shape: Shape, workers: int) -> int:
    """Bytes that each worker sends in a step, and receives: a ring's all-reduce of the gradients.

    A reduce-scatter of gradients and an all-gather of weights, as with a sharded optimizer, are as many.
    """
    from recur_tune.cost.counted_flops import trained_parameters  # torch takes seconds to import

    return 2 * (workers - 1) * _BYTES * trained_parameters(config, shape) // workers


def exchange_seconds(sent: int, bandwidth: float) -> float:
    """Seconds of the exchange on a link of so many bytes a second, without the start of a collective."""
    return sent / bandwidth
