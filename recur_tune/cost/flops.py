"""FLOPs per token: as the paper counts them, and all of a training step's.

A multiply-add counts as two operations, and only matrix products count, as in the paper and in
`torch.utils.flop_counter`. What a recurrence adds is its mechanism's own closed form or, where it has none, what torch
counts (`counted`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recur_tune.common.shape import Shape
from recur_tune.common.windowing import Windowing
from recur_tune.config.trial import TrialConfig
from recur_tune.recurrences.registry import Work
from recur_tune.tasks.task import next_token_head

if TYPE_CHECKING:  # importing torch takes seconds, and a report counts without it
    from recur_tune.bptt.plan import Plan


def flops_per_token(config: TrialConfig, shape: Shape, counted: Work | None = None) -> float:
    """The paper's count (Tables 1 and 2): one forward pass of blocks and recurrence per scored token, without
    embeddings and head, with causal attention at its average length. A task may count these too."""
    positions = config.windowing.in_patches(shape.patch).size
    window = positions * _blocks_per_position(shape, attended=shape.pairs(positions) / positions)
    total = shape.columns * (window + recurrence_flops(config, shape, counted))
    if config.task.counts_head:
        beside = shape.columns * positions * (shape.reading + shape.choosing)
        total += 2 * (beside + config.task.head(shape, positions))
    return total / config.windowing.stride


def plain_reading_flops(shape: Shape, windowing: Windowing) -> float:
    """FLOPs per scored token of the base alone, reading a text in such windows: blocks and head."""
    attended = shape.pairs(windowing.size) / windowing.size
    blocks = windowing.size * _blocks_per_position(shape, attended) / windowing.stride
    return blocks + 2 * next_token_head(shape, 1)


def recurrence_flops(config: TrialConfig, shape: Shape, counted: Work | None = None) -> float:
    """FLOPs that the recurrence adds to a window's forward pass in one batch row, by the same count."""
    mechanism = config.mechanism
    if mechanism is None:
        return 0.0
    if mechanism.flops is not None:
        return mechanism.flops(config.recurrence_spec, shape, config.windowing.in_patches(shape.patch))
    return sum(_needed(counted))


def training_flops_per_token(config: TrialConfig, shape: Shape, plan: Plan, counted: Work | None = None) -> float:
    """All FLOPs of a training step per scored token: forward, backward, recomputation, the task's head, and attention
    over the full square."""
    windowing, windows = config.windowing.in_patches(shape.patch), config.bptt_windows
    positions = windowing.size
    body = positions * _blocks_per_position(shape, attended=positions)
    reading = 2 * positions * shape.reading
    head = 2 * config.task.head(shape, positions)
    mechanism, recomputed = config.mechanism, recomputed_windows(config, plan)
    # A product's backward pass is two products of the same size, or one where its input has no gradient.
    total = 3 * windows * body + 2 * windows * reading + recomputed * (body + reading)
    total += 2 * windows * positions * shape.choosing
    if mechanism:
        for part in mechanism.parts if mechanism.work else (mechanism,):
            # The last window makes no state, and the first reads none unless the initial state is learned.
            without = 0 if part.from_the_start else 1
            work = part.work(config.recurrence_spec, shape, windowing) if part.work else _needed(counted)
            total += 3 * (windows - without) * work.used
            # A state without a gradient is made in the forward pass alone.
            making = (windows - 1) * work.made + (windows - 1 - without) * work.carried
            total += making * (1 if part.stops_gradients else 1 + part.backward_of_making)
            total += recomputed * work.made + max(recomputed - without, 0) * (work.used + work.carried)
    return (shape.columns * total + 3 * windows * head) / config.windowing.span(windows)


def recomputed_windows(config: TrialConfig, plan: Plan) -> int:
    """Windows whose forward pass runs twice; none where each is differentiated when it is read."""
    return 0 if config.has_separate_windows else config.bptt_windows - plan.kept_windows


def is_closed(config: TrialConfig) -> bool:
    """Whether the recurrence has closed forms for all of its costs."""
    mechanism = config.mechanism
    return mechanism is None or None not in (mechanism.flops, mechanism.work, mechanism.state_floats)


def _blocks_per_position(shape: Shape, attended: float) -> float:
    projections = 2 * shape.block_products
    attention = 2 * 2 * shape.heads * shape.head_size * attended
    return shape.layers * (projections + attention)


def _needed(counted: Work | None) -> Work:
    assert counted is not None, "a mechanism without a closed form is counted first"
    return counted
