"""A trained model on held-out documents or questions, in the same way for every experiment."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison_results import SPLITS

from recur_tune.common.units import parse_count
from recur_tune.common.windowing import Windowing
from recur_tune.models.pretrained import load_model
from recur_tune.ops.device import default_device
from recur_tune.training.evaluation_settings import evaluation_settings


@dataclass(frozen=True)
class Scoring:
    """How much of every document is scored, and how it is cut."""

    opening: int | None
    pieces: int | None
    batch: int

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """The options that `of` reads."""
        parser.add_argument(
            "--opening", type=parse_count, metavar="TOKENS", help="score no more of each document than this"
        )
        parser.add_argument(
            "--pieces", type=parse_count, metavar="TOKENS", help="and cut that into pieces to score alone"
        )
        parser.add_argument("--batch", type=int, default=64, help="documents scored side by side")

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Scoring:
        """As the command line says."""
        return cls(arguments.opening, arguments.pieces, arguments.batch)

    def scores(
        self,
        folder: Path,
        corpus: str,
        windowing: Windowing,
        states: Sequence[str] = ("own",),
        controlled: Sequence[str] = SPLITS,
    ) -> dict[str, Any]:
        """What the model in `folder` reaches, by split and by the state that windows are given.

        Other states than its own are tried on the `controlled` splits.
        """
        model, tokenizer = load_model(folder)
        model = model.to(default_device())
        reading = evaluation_settings(folder, model, corpus, windowing.size, windowing.overlap)
        task = reading.task.build(reading.task_spec)
        found: dict[str, Any] = {}
        for split in SPLITS:
            prepared = task.prepare(corpus, split, tokenizer)
            if self.opening:
                prepared = prepared.openings(self.opening)
            if self.pieces:
                prepared = prepared.pieces(self.pieces)
            found[split] = {
                state: task.evaluate(model, prepared, reading.windowing, self.batch, given=state).report()
                for state in (states if split in controlled else ("own",))
            }
        return found
