"""LCBench: learning curves of small networks on tabular data, from YAHPO Gym's surrogate; its folder is given.

Seven hyperparameters, 52 epochs, validation cross-entropy. The surrogate knows no cost but time, so both costs are
worked out from the network: a funnel of `num_layers` layers that narrows from `max_units` to the classes. All tasks are
taken to have 100 inputs and 10 classes, since the surrogate does not say. An epoch counts as 1,000 tokens.

A search has a trial's own fields, so the hyperparameters go by the names of fields of the same kind, with the ranges
that they have there. What a field means matters to no method.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from recur_tune.config.trial import TrialConfig

from .task import History, Task, best_of

FIRST_TEN = ("3945", "7593", "34539", "126025", "126026", "126029", "146212", "167104", "167149", "167152")
EPOCHS, EPOCH = 52, 1_000
INPUTS, CLASSES = 100, 10
VALIDATED = (13, 26, 39, 52)  # epochs
FIELDS = {  # by the order of the surrogate's inputs, the epoch before them
    "batch_size": "batch", "learning_rate": "learning_rate", "momentum": "recurrence_rate",
    "weight_decay": "weight_decay", "num_layers": "bptt_windows", "max_units": "window", "max_dropout": "dropout",
}  # fmt: skip
_DRAWN = 20_000  # for the reference point and the best known front
_WORST_THAT_COUNTS = 90  # per cent of them have a lower cross-entropy


class LCBench(Task):
    """One of its data sets."""

    quality = "loss"
    tolerance = 0.1
    longest = EPOCHS * EPOCH

    def __init__(self, folder: Path, data_set: str) -> None:
        self.folder, self.data_set, self.name = folder, data_set, f"LCBench {data_set}"
        given = {one["name"]: one for one in json.loads((folder / "config_space.json").read_text())["hyperparameters"]}
        space: dict[str, Any] = {"base": "tiny", "recurrence": "none", "overlap": 0, "corpus": f"text:/{data_set}"}
        for theirs, ours in FIELDS.items():
            low, high = given[theirs]["lower"], given[theirs]["upper"]
            high = min(high, 0.999) if theirs == "max_dropout" else high  # a trial's has to be below 1
            space[ours] = {"from": low, "to": high, "log": given[theirs]["log"]}
        self.search = {"space": space, "budget": {"tokens": self.longest, "rungs": 3, "reduction": 2}}
        self.code = json.loads((folder / "encoding.json").read_text())["OpenML_task_id"][data_set]
        self.given = given

    @cached_property
    def reference(self) -> list[float]:  # type: ignore[override]
        losses, flops, memory = self._drawn.T
        worst = float(np.percentile(losses, _WORST_THAT_COUNTS))
        return [worst, float(1.01 * flops.max()), float(1.01 * memory.max())]

    @cached_property
    def front(self) -> np.ndarray:  # type: ignore[override]
        return best_of(self._drawn[(self._drawn < self.reference).all(axis=1)])

    @cached_property
    def _surrogate(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return onnxruntime.InferenceSession(str(self.folder / "model.onnx"), options)

    def _losses(self, inputs: np.ndarray) -> np.ndarray:
        which = np.full((len(inputs), 1), self.code, dtype=np.int32)
        [output] = self._surrogate.run(None, {"x_cont": inputs.astype(np.float32), "x_cat": which})
        return np.maximum(output[:, 2].astype(float), 1e-3)  # a cross-entropy is not negative, its model's may be

    @cached_property
    def _drawn(self) -> np.ndarray:
        """The objectives at points of the prior; a replay does without."""
        random, columns = np.random.default_rng(0), {}
        for name in FIELDS:
            low, high, whole = (self.given[name][key] for key in ("lower", "upper", "type"))
            if whole == "uniform_int":
                low, high = low - 0.5, high + 0.5
            log = self.given[name]["log"]
            column = random.uniform(math.log(low) if log else low, math.log(high) if log else high, _DRAWN)
            column = np.exp(column) if log else column
            columns[name] = column.round() if whole == "uniform_int" else column
        losses = self._losses(np.column_stack([np.full(_DRAWN, EPOCHS), *columns.values()]))
        flops, memory = costs(columns["num_layers"], columns["max_units"], columns["batch_size"])
        return np.column_stack([losses, flops, memory])

    def history(self, config: TrialConfig) -> History:
        point = [getattr(config, name) for name in FIELDS.values()]
        losses = self._losses(np.array([[epoch, *point] for epoch in VALIDATED], dtype=float))
        return [(epoch * EPOCH, float(loss)) for epoch, loss in zip(VALIDATED, losses, strict=True)]

    def costs(self, config: TrialConfig) -> tuple[float, float]:
        network = [getattr(config, FIELDS[name]) for name in ("num_layers", "max_units", "batch_size")]
        flops, memory = costs(*np.array(network).reshape(-1, 1))
        return float(flops[0]), float(memory[0])


def refused(folder: Path, data_sets: Sequence[str]) -> str | None:
    """Why these data sets cannot be read from there, in a sentence."""
    for name in ("model.onnx", "config_space.json", "encoding.json"):
        if not (folder / name).is_file():
            return f"--lcbench: {folder} has no {name}; give the folder of YAHPO Gym's lcbench."
    if importlib.util.find_spec("onnxruntime") is None:
        return "--lcbench: onnxruntime is not installed, which runs the surrogate; pip install onnxruntime."
    known = {*json.loads((folder / "encoding.json").read_text())["OpenML_task_id"]} - {"#na#"}
    strange = next((one for one in data_sets if one not in known), None)
    return strange and f"--data-sets: LCBench has no {strange}; known: {', '.join(sorted(known))}."


def costs(layers: np.ndarray, units: np.ndarray, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs of an example, and bytes in training: weights, gradients and momentum, and a batch's activations."""
    weights, before = np.zeros(len(layers)), np.full(len(layers), float(INPUTS))
    wide = before.copy()
    for layer in range(int(layers.max())):
        there = layer < layers
        width = np.round(units - (units - CLASSES) * layer / layers)
        weights += np.where(there, (before + 1) * width, 0)
        wide += np.where(there, width, 0)
        before = np.where(there, width, before)
    weights += (before + 1) * CLASSES
    return 2 * weights, 4 * (3 * weights + batch * (wide + CLASSES))
