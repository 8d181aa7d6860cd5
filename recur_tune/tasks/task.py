"""Task: all that the rest of recur-tune knows of what a model is trained for.

Nothing here imports torch: flags, checks and closed-form costs need a task's description, and only training needs the
code behind it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel

from recur_tune.common.shape import Shape


class Quality(NamedTuple):
    """A number of a validation that a search may minimise, and how tables and axes call it."""

    name: str
    title: str


@dataclass(frozen=True)
class Task:
    """What is predicted, of which corpora, with which head, and how it is scored.

    Attributes:
        name: What messages call it.
        corpora: Names of the corpora that are for it; None: all others.
        spec: Its fields, a frozen pydantic model; each has a default and a description.
        module: Where its code is (`recur_tune.tasks.seam.TaskCode`), as `package.module:Class`.
        qualities: What a search over its trials may minimise.
        loss_of: What a loss is a mean over.
        bidirectional: Whether its bodies are encoders, which read a window in both directions.
        reserved: Given its fields, positions of every window that are no text of the corpus.
        head: Given a body's shape and a window's positions, the multiply-adds of its head in that window.
        flops_independent_fields: Fields that no cost depends on.
    """

    name: str
    corpora: frozenset[str] | None
    spec: type[BaseModel]
    module: str
    qualities: tuple[Quality, ...]
    loss_of: str
    bidirectional: bool
    reserved: Callable[[Any], int]
    head: Callable[[Shape, int], int]
    flops_independent_fields: frozenset[str] = frozenset()

    def refusal(self, shape: Shape, base: str, corpus: str) -> str | None:
        """One sentence where a body cannot do it."""
        if shape.bidirectional == self.bidirectional:
            return None
        reads = "both directions" if shape.bidirectional else "one direction"
        needed = "an encoder, as roberta-base" if self.bidirectional else "a decoder, as gpt2"
        return f"base: {base} reads in {reads}, and {self.name}, which {corpus} is for, need {needed}."

    def build(self, spec: BaseModel) -> Any:
        """Its code, with these fields; importing it takes torch's seconds."""
        place, _, name = self.module.partition(":")
        return getattr(importlib.import_module(place), name)(**spec.model_dump())
