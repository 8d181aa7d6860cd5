"""LoRA: rank, alpha, targets and dropout of low-rank changes of a frozen base's matrices; it needs no torch."""

from __future__ import annotations

from typing import Literal, NamedTuple

from recur_tune.common.shape import Shape

Targets = Literal["attention", "mlp", "all"]


class LoraSpec(NamedTuple):
    """LoRA's fields: a weight W becomes W + alpha / rank · B A, and A and B alone learn.

    Attributes:
        rank: Rows of A, and columns of B.
        alpha: Over the rank, the factor of B A.
        targets: The matrices that it changes, in every block.
        dropout: Rate, on A's input.
    """

    rank: int
    alpha: float
    targets: Targets = "all"
    dropout: float = 0.0

    @property
    def scaling(self) -> float:
        """The factor of B A."""
        return self.alpha / self.rank

    def has(self, part: Literal["attention", "mlp"]) -> bool:
        """Whether it changes attention's matrices, or the MLP's."""
        return self.targets in (part, "all")

    def parameters(self, shape: Shape) -> int:
        """Weights of A and B in a body of this shape."""
        return self.rank * shape.layers * sum(inputs + outputs for inputs, outputs in self._matrices(shape))

    def refusal(self, shape: Shape, base: str) -> str | None:
        """A sentence where a body cannot have it, or None."""
        if shape.bidirectional:
            return f"trainable: 'lora' needs a decoder, and {base} reads in both directions; choose all or recurrence."
        smaller = min(side for sides in self._matrices(shape) for side in sides)
        if self.rank > smaller:
            return (
                f"lora_rank: {self.rank} is above {smaller}, the smaller side of one of the matrices of {base} "
                f"(lora_targets: {self.targets}); choose at most {smaller}."
            )
        return None

    def _matrices(self, shape: Shape) -> list[tuple[int, int]]:
        """Inputs and outputs of the matrices of one block."""
        hidden, queries, keys = shape.hidden, shape.heads * shape.head_size, shape.key_value_heads * shape.head_size
        found = []
        if self.has("attention"):
            own = [queries + 2 * keys] if shape.joined_heads else [queries, keys, keys]
            found += [*((hidden, outputs) for outputs in own), (queries, hidden)]
        if self.has("mlp"):
            found += [(hidden, shape.inner)] * (2 if shape.gated else 1) + [(shape.inner, hidden)]
        return found
