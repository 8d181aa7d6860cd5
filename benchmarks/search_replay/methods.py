"""Every method by the name that the tables have for it."""

from __future__ import annotations

from collections.abc import Callable

from .clock import Method
from .moasha import MOASHA
from .ours import Ours
from .outside import SmacProposer, SyneTuneProposer
from .peers import Peer, ShippedPair, optuna_peer
from .staged import MomfProposer, PrimoProposer, StagedPeer
from .task import Task

Maker = Callable[[Task, int, int], Method]  # of a task, a seed and the full trials that the tokens are enough for


def _with_moasha(mended: bool) -> Maker:
    def make(task: Task, seed: int, trials: int) -> Method:
        budget = task.spec().budget
        return optuna_peer(task, seed, "random", MOASHA(budget.rung_tokens, budget.reduction, mended))

    return make


def _optuna(sampler: str) -> Maker:
    return lambda task, seed, trials: optuna_peer(task, seed, sampler)


def _ours(sampler: str, stops: bool) -> Maker:
    return lambda task, seed, trials: Ours(task, seed, sampler, stops)


RANDOM = "random"
METHODS: dict[str, Maker] = {
    RANDOM: _optuna("random"),
    "TPE": _optuna("TPE"),
    "NSGA-II": _optuna("NSGA-II"),
    "NSGA-III": _optuna("NSGA-III"),
    "GPSampler": _optuna("GPSampler"),
    "MO-ASHA, as published": _with_moasha(mended=False),
    "MO-ASHA, mended": _with_moasha(mended=True),
    "Ray's OptunaSearch + ASHA": lambda task, seed, trials: ShippedPair(task, seed),
    "SMAC3, ParEGO": lambda task, seed, trials: Peer(task, SmacProposer(task, seed, trials)),
    "Syne Tune, EHVI": lambda task, seed, trials: Peer(task, SyneTuneProposer(task, seed)),
    "PriMO": lambda task, seed, trials: StagedPeer(task, PrimoProposer(task, seed), seed),
    "BoTorch, MOMF": lambda task, seed, trials: StagedPeer(task, MomfProposer(task, seed), seed),
    "ours: stopping alone": _ours("random", stops=True),
    "ours: TPE alone": _ours("tpe", stops=False),
    "ours: TPE + stopping": _ours("tpe", stops=True),
    "ours: known costs alone": _ours("known-costs", stops=False),
    "ours: known costs + freeze-thaw": _ours("known-costs", stops=True),
}
SLOW = ("GPSampler", "Syne Tune, EHVI", "PriMO", "BoTorch, MOMF")  # a minute or more for one search
