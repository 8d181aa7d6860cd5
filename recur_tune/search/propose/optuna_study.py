"""Optuna's study of a search: its journal, its samplers and the trials that it begins with."""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from recur_tune.recurrences.pooled.spec import PAPER
from recur_tune.recurrences.registry import DEFAULT, MECHANISMS, NONE, canonical
from recur_tune.search.record.directory import STUDY
from recur_tune.search.record.knowledge import NOTHING, Knowledge
from recur_tune.search.record.spec import SearchSpec

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # grouped TPE, by choice


STUDY_STATES = {
    "complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED,
    "infeasible": TrialState.PRUNED, "failed": TrialState.FAIL,
}  # fmt: skip


@dataclass(frozen=True)
class Proposal:
    """A trial that the sampler proposes, while its costs are computed."""

    trial: optuna.Trial
    params: dict[str, Any]
    costs: Future[dict[str, float]]


def make_sampler(spec: SearchSpec, already: int) -> optuna.samplers.BaseSampler:
    """The sampler by its name; a resumed search has another seed, so that it does not draw the same numbers again."""
    seed = spec.sampler.seed + 1_000_003 * already
    match spec.sampler.name:
        case "tpe":
            return optuna.samplers.TPESampler(multivariate=True, group=True, constant_liar=True, seed=seed)
        case "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed)
        case "nsga3":
            return optuna.samplers.NSGAIIISampler(seed=seed)
        case "gp":
            return optuna.samplers.GPSampler(seed=seed, deterministic_objective=False)
        case "random" | "known-costs":  # ours only registers its points with the study
            return optuna.samplers.RandomSampler(seed=seed)
    raise AssertionError(f"{spec.sampler.name} has no case here")


def first_points(spec: SearchSpec, knowledge: Knowledge = NOTHING) -> dict[str, dict[str, Any]]:
    """By role: the plain baseline, each mechanism's own points, as near as the space comes to them; then `first`.

    All have the baseline's windows, so that a difference is due to the mechanism. Where earlier searches say what to
    expect, only the first of them is tried: the others would cost as much as what these recommend.
    """
    space = spec.parsed_space
    recurrence = space.parameters.get("recurrence")
    kinds = [canonical(kind) for kind in getattr(recurrence, "values", (space.fixed.get("recurrence", DEFAULT),))]
    points, windowing = {}, {name: PAPER[name] for name in ("window", "overlap")}
    if NONE in kinds:
        points["baseline"] = space.closest({**PAPER, "recurrence": NONE})
    for kind in kinds:
        for role, fields in MECHANISMS[kind].first.items() if kind != NONE else ():
            point = space.closest({**windowing, **fields, "recurrence": kind})
            if point not in points.values():  # the field in which two forms differ may be fixed here
                points[f"{kind} {role}" if role in points else role] = point
    if knowledge.searches:
        points = dict([*points.items()][:1])
    return points | {f"first {number}": space.point(given) for number, given in enumerate(spec.first, 1)}


def study_name(storage: JournalStorage, name: str) -> str:
    """The study's name: the search's name when it began, which may have changed since."""
    return next(iter(optuna.get_all_study_names(storage)), name)


def study_storage(folder: Path) -> JournalStorage:
    """Optuna's journal in the search directory."""
    return JournalStorage(JournalFileBackend(str(folder / STUDY), lock_obj=NoLock()))


class NoLock:
    """The lock of a journal with a single writer, which the search's lease guarantees.

    A lock file of Optuna's would outlive a killed process and block a resume. Optuna does not document these methods.
    """

    def acquire(self) -> bool:
        """Always succeed."""
        return True

    def release(self) -> None:
        """Do nothing."""


def reopen(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> optuna.Trial:
    """A running trial of an earlier process, to be told by this one; its id is private to Optuna."""
    return optuna.Trial(study, trial._trial_id)
